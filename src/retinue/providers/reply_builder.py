"""Builds a reply from the pieces of a stream, within size limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from msgspec.structs import replace

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_REPLY_BYTES
from retinue.domain.model_turn import ModelReply, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Usage
from retinue.providers.errors import MAX_MESSAGE_CHARS, sanitize_server_text
from retinue.providers.reply_data import UNKNOWN_ORIGIN, ReplyOrigin, encode_reply_data, make_vendor_id
from retinue.providers.request_encoding import invalid_arguments_reason

MAX_TOOL_CALLS = 4096
"""Tool calls kept from one reply; the runtime's own limit is far lower."""
MAX_HIDDEN_TOKENS = 1_000_000
"""Tokens a provider may count beyond the bytes sent or received, such as hidden thinking.

A higher count is treated as wrong.
"""
MAX_BLOCKS = 2 * MAX_TOOL_CALLS
MAX_NAME_CHARS = 256
"""Longest accepted name of a tool or model."""
_MAX_SHOWN_ARGUMENT_CHARS = 2_000
_CHARS_PER_TOKEN = 4
_MAX_COUNT = 1 << 53


@dataclass(slots=True, kw_only=True)
class PartialToolCall:
    """A tool call whose arguments are still arriving."""

    name: str = ""
    id: str = ""
    """The server's id, used to tell fragments apart, and sent back to that server."""
    pieces: list[str]
    size: int = 0
    fields: dict[str, Any]
    """Other fields that the server wants back with the call."""


class ReplyBuilder:
    """Collect the content of one stream. Once `is_full`, the rest of the stream need not be read."""

    __slots__ = (
        "_limit_reached",
        "_on_delta",
        "_origin",
        "_pending",
        "_pending_kind",
        "_size",
        "_texts",
        "model",
        "provider_data",
        "tool_calls",
    )

    def __init__(self, on_delta: Callable[[ReplyDelta], None], origin: ReplyOrigin = UNKNOWN_ORIGIN) -> None:
        self._on_delta = on_delta
        self._origin = origin
        self._texts: list[str] = []
        self._pending: list[str] = []
        """Pieces of one kind that have not been passed to the listener yet."""
        self._pending_kind = ""
        self._size = 0
        self._limit_reached = ""
        self.tool_calls: list[PartialToolCall] = []
        self.provider_data: list[str] = []
        self.model = ""

    @property
    def is_full(self) -> bool:
        return bool(self._limit_reached)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add_text(self, piece: str) -> None:
        if piece := self.truncate_to_limit(piece):
            if self._pending_kind != "text":
                self._switch_kind("text")
            self._texts.append(piece)
            self._pending.append(piece)

    def add_thinking(self, piece: str) -> str:
        if piece := self.truncate_to_limit(piece):
            if self._pending_kind != "thinking":
                self._switch_kind("thinking")
            self._pending.append(piece)
        return piece

    def flush(self) -> None:
        """Pass collected pieces to the listener as one delta, however many the server sent."""
        if self._pending:
            joined, self._pending = "".join(self._pending), []
            self._on_delta(_DELTAS[self._pending_kind](joined))

    def _switch_kind(self, kind: str) -> None:
        """Flush before pieces of another kind are added, so that the order is kept."""
        self.flush()
        self._pending_kind = kind

    def start_tool_call(self, name: str, provider_id: str = "") -> PartialToolCall:
        call = PartialToolCall(name=name[:MAX_NAME_CHARS], id=provider_id, pieces=[], fields={})
        if len(self.tool_calls) < MAX_TOOL_CALLS:
            self.tool_calls.append(call)
        else:
            self._limit_reached = f"more than {MAX_TOOL_CALLS} calls in one reply; the rest was omitted"
        return call

    def check_block_limit(self, blocks: int) -> None:
        """Limit the number of blocks, so that a reply of empty blocks is bounded too."""
        if blocks > MAX_BLOCKS:
            self._limit_reached = f"more than {MAX_BLOCKS} blocks in one reply; the rest was omitted"

    def add_arguments(self, call: PartialToolCall, piece: str) -> None:
        if piece := self.truncate_to_limit(piece):
            call.size += len(piece)
            if call.size <= MAX_ARGUMENT_BYTES:
                call.pieces.append(piece)
            if self._pending_kind != "calling":
                self._switch_kind("calling")
            self._pending.append(piece)

    def build(self, stop: StopReason, usage: Usage) -> ModelReply:
        """Return the finished reply; a truncated tool call is marked so that it never runs."""
        if self._limit_reached:
            stop = StopReason.LENGTH
        tool_calls = (
            ()
            if stop is StopReason.REFUSED
            else self._finish_tool_calls(is_truncated=stop is StopReason.LENGTH)
        )
        if tool_calls and stop is StopReason.END:
            stop = StopReason.TOOLS
        if not tool_calls and stop is StopReason.TOOLS:
            stop = StopReason.END
        return ModelReply(
            text=self.text,
            tool_calls=tool_calls,
            model=_clean_model_name(self.model[: 4 * MAX_MESSAGE_CHARS]),
            usage=usage,
            stop_reason=stop,
            # A truncated thinking block no longer matches its signature.
            provider_data=() if self._limit_reached else encode_reply_data(self._origin, self.provider_data),
            truncation_notice=self._limit_reached,
        )

    def plausible_usage(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int,
        sent_bytes: int,
        cache_write_tokens: int = 0,
    ) -> Usage:
        """Return the provider's token counts where plausible, else an estimate from sizes."""
        input_tokens = _plausible_tokens(input_tokens, sent_bytes)
        cached = min(cached_tokens, input_tokens)
        return Usage(
            input=input_tokens,
            output=_plausible_tokens(output_tokens, self._size),
            cached=cached,
            cache_write=min(cache_write_tokens, input_tokens - cached),
        )

    def _finish_tool_calls(self, *, is_truncated: bool) -> tuple[UnsavedToolCall, ...]:
        last = len(self.tool_calls) - 1
        return tuple(
            replace(
                _finish_tool_call(call, is_truncated=is_truncated and index == last),
                vendor_id=make_vendor_id(self._origin.server, call.id),
            )
            for index, call in enumerate(self.tool_calls)
        )

    def truncate_to_limit(self, piece: str) -> str:
        """Return as much of a piece as the size limit allows."""
        if self._limit_reached:
            return ""
        size = len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self._size + size > MAX_REPLY_BYTES:
            self._limit_reached = f"the reply is longer than {MAX_REPLY_BYTES:,} bytes; the rest was omitted"
            size = MAX_REPLY_BYTES - self._size
            piece = piece.encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")
        self._size += size
        return piece


_DELTAS: Mapping[str, Callable[[str], ReplyDelta]] = {
    "text": lambda text: ReplyDelta(text=text),
    "thinking": lambda text: ReplyDelta(thinking=text),
    "calling": lambda text: ReplyDelta(tool_arguments=text),
}


@lru_cache(maxsize=64)
def _clean_model_name(model: str) -> str:
    """Return the model's name as reported by the provider, sanitized; cached, as it rarely changes."""
    return sanitize_server_text(model)[:MAX_NAME_CHARS]


def usage_mapping(usage: Any) -> Mapping[str, Any]:
    """Return the usage object a server sent, or an empty mapping if it is not an object."""
    return cast("Mapping[str, Any]", usage) if isinstance(usage, dict) else {}


def sum_counts(usage: Mapping[str, Any], *names: str) -> int:
    """Return the sum of these counts; anything that is not a number counts as 0."""
    total = 0
    for name in names:
        value = usage.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_COUNT:
            total += int(value)
    return total


def _plausible_tokens(tokens: int, size: int) -> int:
    if tokens <= 0 or tokens > size + MAX_HIDDEN_TOKENS:
        return -(-size // _CHARS_PER_TOKEN)
    return tokens


def _finish_tool_call(call: PartialToolCall, *, is_truncated: bool) -> UnsavedToolCall:
    if call.size > MAX_ARGUMENT_BYTES:
        head = "".join(call.pieces)[:_MAX_SHOWN_ARGUMENT_CHARS]
        return UnsavedToolCall(
            tool=call.name,
            arguments=head,
            invalid_reason=f"its arguments are longer than {MAX_ARGUMENT_BYTES:,} bytes",
        )
    args = "".join(call.pieces)
    if not args.strip():
        return UnsavedToolCall(
            tool=call.name,
            arguments="{}",
            invalid_reason="truncated at the output limit" if is_truncated else "",
        )
    # A server may close the braces of truncated arguments, so they are not trusted even if they are valid.
    return UnsavedToolCall(
        tool=call.name,
        arguments=args,
        invalid_reason="truncated at the output limit" if is_truncated else invalid_arguments_reason(args),
    )
