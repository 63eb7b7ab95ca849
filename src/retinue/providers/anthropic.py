"""Provider for the Anthropic Messages API and compatible servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason
from retinue.domain.providers import MODEL_APIS
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import Entry, Message, ToolCall
from retinue.providers.errors import ProviderError, server_failure_message
from retinue.providers.http.stream_request import CONNECT_TIMEOUT_S, StreamingRequest
from retinue.providers.interface import ProviderServices, ProviderSettings, server_access
from retinue.providers.json_decoding import decode_json
from retinue.providers.message_order import Exchange
from retinue.providers.reply_builder import PartialToolCall, ReplyBuilder, sum_counts, usage_mapping
from retinue.providers.request_encoding import (
    ExchangePosition,
    RequestFormat,
    encode_json,
    encode_open_object,
    encode_request,
    encode_tool_list,
    invalid_arguments_reason,
    replace_surrogates,
)
from retinue.providers.retry_policy import INCOMPLETE, policy_for_error_name, provider_error

BASE_URL = MODEL_APIS["anthropic"].base_url
API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192
THINKING_BUDGETS: Mapping[str, int] = {"low": 2048, "medium": 8192, "high": 24576}
"""Thinking tokens by level."""
REMOVED_PLACEHOLDER = "[earlier conversation removed]"
CONTINUE_PROMPT = "[continue]"
"""Appended after a final message of the model, which it would otherwise continue."""

STOP_BY_REASON: Mapping[str, StopReason] = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_use": StopReason.TOOLS,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.REFUSED,
}
"""Any other stop reason is a normal end."""


def create_provider(
    model: Model, settings: ProviderSettings, _services: ProviderServices
) -> "AnthropicProvider":
    access = server_access(model, settings)
    return AnthropicProvider(access.base_url, access.api_key, key_variable=access.key_variable)


class AnthropicProvider:
    """Send requests to one base URL. The key is read for each request and not stored."""

    def __init__(
        self,
        base_url: str = BASE_URL,
        api_key: Callable[[], str] | str = "",
        *,
        key_variable: str = "ANTHROPIC_API_KEY",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        base = base_url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._connection = StreamingRequest(
            url=f"{base}/v1/messages", key_variable=key_variable, connect_timeout_s=connect_timeout_s
        )
        self._request_format = RequestFormat(
            name="anthropic", encode_head=_encode_head, build_messages=_build_messages
        )

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        key = self._connection.resolve_key(self._api_key)
        if request.model.thinking in THINKING_BUDGETS and not _can_use_thinking(request.entries):
            request = replace(request, model=replace(request.model, thinking=None))
        body = encode_request(request, self._request_format)
        reader = _MessageReader(on_delta, key)
        headers = {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {})}
        await self._connection.stream(headers, body, reader, on_delta, key)
        return reader.reply(sent_bytes=sum(map(len, body)))

    async def close(self) -> None:
        await self._connection.close()


def _can_use_thinking(entries: Sequence[Entry]) -> bool:
    """Return whether thinking may be enabled for this request.

    Between tool calls and their results the provider requires the thinking blocks that led to the calls. If
    they are missing, it rejects the request.
    """
    missing_thinking = False
    for entry in reversed(entries):
        if not isinstance(entry, Message):
            continue
        if entry.role == "user" or not entry.tool_call_count:
            break
        if any(_is_thinking_block(block) for block in entry.thoughts):
            return True
        missing_thinking = True
    return not missing_thinking


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": api_tool_name(spec.name), "description": spec.description, "input_schema": spec.schema}


def _encode_head(request: ModelRequest) -> bytes:
    model = request.model
    budget = THINKING_BUDGETS.get(model.thinking or "", 0)
    head = encode_open_object(
        model=model.name,
        stream=True,
        max_tokens=_max_tokens(model, budget),
        temperature=None if budget else model.temperature,
        thinking={"type": "enabled", "budget_tokens": budget} if budget else None,
        cache_control={"type": "ephemeral"},
        tools=encode_tool_list(request.tools, _encode_tool),
        system=[_text_block(request.system)] if request.system.strip() else None,
    )
    return head + b'"messages":['


def _max_tokens(model: Model, budget: int) -> int:
    """Return the output limit, which includes thinking and must exceed its budget.

    A configured limit at or below the budget is taken as the limit for the text alone.
    """
    limit = model.max_tokens
    if limit is not None and limit > budget:
        return limit
    return budget + (limit or DEFAULT_MAX_TOKENS)


def _build_messages(exchange: Exchange, position: ExchangePosition) -> Sequence[Mapping[str, Any]]:
    messages: list[dict[str, Any]] = []
    assistant_blocks = _assistant_blocks(exchange)
    if assistant_blocks:
        if position.is_first:
            messages.append({"role": "user", "content": [_text_block(REMOVED_PLACEHOLDER)]})
        messages.append({"role": "assistant", "content": assistant_blocks})
    user_blocks = [_tool_result_block(exchange, call) for call in exchange.calls.values()] + [
        _text_block(text) for text in exchange.user_texts
    ]
    if user_blocks:
        messages.append({"role": "user", "content": user_blocks})
    elif position.is_last:
        messages.append({"role": "user", "content": [_text_block(CONTINUE_PROMPT)]})
    return messages


def _assistant_blocks(exchange: Exchange) -> list[Any]:
    """Return the model's own blocks, unchanged thinking blocks first, as their signatures require."""
    blocks: list[Any] = []
    for message in exchange.replies:
        blocks += [msgspec.Raw(block.encode()) for block in message.thoughts if _is_thinking_block(block)]
        if message.text.strip():
            blocks.append(_text_block(message.text))
    calls = [_tool_use_block(call) for call in exchange.calls.values()]
    # Thinking blocks alone are not a message.
    return blocks + calls if calls or exchange.text else []


def _tool_use_block(call: ToolCall) -> dict[str, Any]:
    args = "{}" if invalid_arguments_reason(call.args) else call.args
    return {
        "type": "tool_use",
        "id": call.id,
        "name": api_tool_name(call.tool),
        "input": msgspec.Raw(replace_surrogates(args).encode()),
    }


def _tool_result_block(exchange: Exchange, call: ToolCall) -> dict[str, Any]:
    text, ok = exchange.result_of(call)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": text}
    return result if ok else {**result, "is_error": True}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


class _ThinkingBlock(msgspec.Struct, gc=False):
    type: str = ""
    signature: str = ""
    data: str = ""


_THINKING_DECODER = msgspec.json.Decoder(_ThinkingBlock)


def _is_thinking_block(text: str) -> bool:
    """Return whether this is a thinking block of this provider.

    Thinking blocks of other providers in the same session are not sent.
    """
    try:
        block = _THINKING_DECODER.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    is_signed = block.type == "thinking" and bool(block.signature)
    return is_signed or (block.type == "redacted_thinking" and bool(block.data))


class _ContentPart(msgspec.Struct, gc=False):
    """A content block, or a delta of one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    model: str | None = None
    usage: Any = None


class _ErrorDetails(msgspec.Struct, gc=False):
    type: Any = None
    message: str | None = None


class _StreamEvent(msgspec.Struct, gc=False):
    """Any event of a stream, or the whole message of a server that does not stream."""

    type: str = ""
    index: int | None = None
    message: _Message | None = None
    content_block: _ContentPart | None = None
    delta: _ContentPart | None = None
    usage: Any = None
    error: _ErrorDetails | None = None
    content: list[_ContentPart] | None = None
    model: str | None = None
    stop_reason: str | None = None


_EVENT_DECODER = msgspec.json.Decoder(_StreamEvent)


class _OpenBlock:
    """A content block that is being received."""

    __slots__ = ("call", "part", "pieces", "signature")

    def __init__(self, part: _ContentPart, call: PartialToolCall | None) -> None:
        self.part = part
        self.call = call
        self.pieces: list[str] = []
        self.signature = part.signature or ""
        """Sent whole with the block, or in pieces after it."""


class _MessageReader:
    """Read a stream of message events into a reply."""

    def __init__(self, on_delta: Callable[[ReplyDelta], None], key: str) -> None:
        self.has_stop_reason = False
        self.is_done = False
        self._key = key
        self._builder = ReplyBuilder(on_delta)
        self._blocks: dict[int, _OpenBlock] = {}
        self._current_block: _OpenBlock | None = None
        self._usage: dict[str, Any] = {}
        self._stop = StopReason.END

    def read_events(self, events: Sequence[bytes]) -> None:
        try:
            for data in events:
                try:
                    event = self._decode_event(data)
                except ProviderError:
                    # Errors after a complete reply are ignored.
                    if not self.has_stop_reason:
                        raise
                    continue
                method = _EVENT_METHODS.get(event.type)
                if method is not None:
                    method(self, event)
        finally:
            self._builder.flush()
        if self._builder.is_full:
            self.has_stop_reason = self.is_done = True

    def read_document(self, data: bytes) -> None:
        try:
            self._read_message(data)
        finally:
            self._builder.flush()

    def _read_message(self, data: bytes) -> None:
        event = self._decode_event(data)
        if event.type != "message" or event.content is None:
            raise provider_error("the model's server sent a document that is not a message", INCOMPLETE)
        self._builder.model = event.model or ""
        self._merge_usage(event.usage)
        for index, part in enumerate(event.content):
            self.start_block(_StreamEvent(index=index, content_block=part))
        self._set_stop_reason(event.stop_reason)

    def reply(self, *, sent_bytes: int) -> ModelReply:
        if not self.has_stop_reason:
            raise provider_error("the model's reply ended before it was complete", INCOMPLETE)
        self._builder.thinking_blocks += [
            text for block in self._blocks.values() if (text := _encode_thinking_block(block))
        ]
        usage = self._builder.plausible_usage(
            input_tokens=sum_counts(
                self._usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"
            ),
            output_tokens=sum_counts(self._usage, "output_tokens"),
            cached_tokens=sum_counts(self._usage, "cache_read_input_tokens"),
            sent_bytes=sent_bytes,
        )
        return self._builder.build(self._stop, usage)

    def _decode_event(self, data: bytes) -> _StreamEvent:
        try:
            event = decode_json(_EVENT_DECODER, data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise provider_error(
                "the model's server sent an event that is not a message", INCOMPLETE
            ) from error
        if event.error is not None:
            raise provider_error(
                server_failure_message(event.error.message or "", self._key),
                policy_for_error_name(event.error.type),
            )
        return event

    def start_message(self, event: _StreamEvent) -> None:
        if event.message is not None:
            self._builder.model = event.message.model or ""
            self._merge_usage(event.message.usage)
            # The count at the start is a placeholder; only the final one counts.
            self._usage.pop("output_tokens", None)

    def start_block(self, event: _StreamEvent) -> None:
        part = event.content_block
        if part is None:
            return
        self._builder.check_block_limit(len(self._blocks))
        call = (
            self._builder.start_tool_call(part.name or "", part.id or "") if part.type == "tool_use" else None
        )
        self._current_block = block = _OpenBlock(part, call)
        self._blocks[len(self._blocks) if event.index is None else event.index] = block
        if call is not None and part.input:
            self._builder.add_arguments(call, encode_json(part.input).decode())
        if part.text:
            self._builder.add_text(part.text)
        if part.data:
            self._builder.truncate_to_limit(part.data)
        if part.thinking:
            block.pieces.append(self._builder.add_thinking(part.thinking))

    def extend_block(self, event: _StreamEvent) -> None:
        block = self._current_block if event.index is None else self._blocks.get(event.index)
        delta = event.delta
        if delta is None:
            return
        if delta.text:
            self._builder.add_text(delta.text)
        elif block is None:
            return
        elif delta.partial_json and block.call is not None:
            self._builder.add_arguments(block.call, delta.partial_json)
        elif delta.thinking:
            block.pieces.append(self._builder.add_thinking(delta.thinking))
        elif delta.signature:
            block.signature += self._builder.truncate_to_limit(delta.signature)

    def update_message(self, event: _StreamEvent) -> None:
        self._merge_usage(event.usage)
        if event.delta is not None:
            self._set_stop_reason(event.delta.stop_reason)

    def stop_message(self, _: _StreamEvent) -> None:
        self.is_done = True

    def _set_stop_reason(self, reason: str | None) -> None:
        if reason:
            self.has_stop_reason = True
            self._stop = STOP_BY_REASON.get(reason, StopReason.END)

    def _merge_usage(self, usage: Any) -> None:
        """Merge token counts; later ones replace earlier ones, as the last are totals."""
        self._usage.update({name: value for name, value in usage_mapping(usage).items() if value is not None})


_EVENT_METHODS: Mapping[str, Callable[[_MessageReader, _StreamEvent], None]] = {
    "message_start": _MessageReader.start_message,
    "content_block_start": _MessageReader.start_block,
    "content_block_delta": _MessageReader.extend_block,
    "message_delta": _MessageReader.update_message,
    "message_stop": _MessageReader.stop_message,
}
"""Pings, block ends and unknown events are ignored."""


def _encode_thinking_block(block: _OpenBlock) -> str:
    """Return a thinking block as JSON, to be sent back unchanged, or "" if it is not one."""
    if block.part.type == "redacted_thinking" and block.part.data:
        return encode_json({"type": "redacted_thinking", "data": block.part.data}).decode()
    if block.part.type == "thinking" and block.signature:
        thinking = "".join(block.pieces)
        return encode_json({"type": "thinking", "thinking": thinking, "signature": block.signature}).decode()
    return ""
