"""The Anthropic Messages API and compatible servers."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import Entry, Message, ToolCall
from retinue.providers.call_ids import CallIds
from retinue.providers.errors import ProviderError, server_failure_message
from retinue.providers.json_decoding import decode_json
from retinue.providers.message_order import Exchange
from retinue.providers.reply_builder import PartialToolCall, ReplyBuilder, sum_counts, usage_mapping
from retinue.providers.reply_data import CALL, TEXT, Block, parse_reply_data
from retinue.providers.request_changes import BINDING, DROP, REPLAY, THINKING, RequestChanges
from retinue.providers.request_encoding import (
    ExchangePosition,
    RequestFormat,
    encode_json,
    encode_tool_list,
    invalid_arguments_reason,
    replace_surrogates,
)
from retinue.providers.retry_policy import INCOMPLETE, policy_for_error_name, provider_error
from retinue.providers.wire_format import ReaderInputs, RequestTarget, WireFormat

NAME = "anthropic"
API_VERSION = "2023-06-01"
BINDING_HEADER = "thinking-binding-controls-2026-08-01"
DEFAULT_MAX_TOKENS = 8192
THINKING_BUDGETS: Mapping[str, int] = {"low": 2048, "medium": 8192, "high": 24576, "max": 49152}
"""Thinking tokens by level; where the model decides itself, room for as many in the reply."""
OLD_THINKING_MODELS = re.compile(r"claude-(?:[23]|instant|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8}|@|$))")
"""Models that know only thinking with a budget (November 2026). Only saves the first refusal."""
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
_THINKING_BLOCKS = ("thinking", "redacted_thinking")


def request_format(target: RequestTarget) -> RequestFormat:
    return RequestFormat(
        name=f"{NAME} {target.server} {target.model} {target.changes.key}",
        build_fields=partial(_build_fields, target),
        open_messages=lambda _: b'"messages":[',
        build_messages=partial(_build_messages, target),
        binds_prefix=True,
    )


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": api_tool_name(spec.name), "description": spec.description, "input_schema": spec.schema}


def _build_fields(target: RequestTarget, request: ModelRequest) -> dict[str, Any]:
    model = request.model
    budget = THINKING_BUDGETS.get(model.thinking or "", 0)
    style = _thinking_style(target)
    if not style:
        budget = 0
    fields: dict[str, Any] = {
        "model": model.name,
        "stream": True,
        "max_tokens": _max_tokens(model, budget),
        "temperature": None if budget else model.temperature,
        "cache_control": {"type": "ephemeral"},
        "tools": encode_tool_list(request.tools, _encode_tool),
        "system": [_text_block(request.system)] if request.system.strip() else None,
    }
    thinking: dict[str, Any] = {}
    output_config: dict[str, Any] = {}
    if budget and style == "enabled":
        thinking = {"type": "enabled", "budget_tokens": budget}
    elif budget:
        thinking = {"type": "adaptive"}
        output_config["effort"] = model.thinking
    elif model.thinking == "off" and style:
        thinking = {"type": "disabled"}
    if thinking and _uses_binding(target.changes):
        thinking["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    if request.output_schema is not None:
        output_config["format"] = {"type": "json_schema", "schema": request.output_schema}
    return target.finish_fields(
        fields | {"thinking": thinking or None, "output_config": output_config or None}
    )


def _thinking_style(target: RequestTarget) -> str:
    """Return how thinking is requested; empty if the server refused both ways."""
    treatment = target.changes.treatment_of(THINKING)
    if treatment:
        return "" if treatment == DROP else treatment
    return "enabled" if OLD_THINKING_MODELS.match(target.model) else "adaptive"


def prepare_request(request: ModelRequest, target: RequestTarget) -> ModelRequest:
    """Request no thinking with a budget in a tool loop whose thinking blocks are missing.

    Between tool calls and their results, the server requires the thinking blocks that led to the calls.
    """
    if request.model.thinking not in THINKING_BUDGETS or _thinking_style(target) != "enabled":
        return request
    if _has_thinking_of_open_calls(request.entries, target):
        return request
    return replace(request, model=replace(request.model, thinking=None))


def _has_thinking_of_open_calls(entries: Sequence[Entry], target: RequestTarget) -> bool:
    is_missing = False
    for entry in reversed(entries):
        if not isinstance(entry, Message):
            continue
        if entry.role == "user" or not entry.tool_call_count:
            break
        data = parse_reply_data(entry)
        if data is not None and data.is_from(target.server, target.model) and any(data.server_blocks):
            return True
        is_missing = True
    return not is_missing


def _uses_binding(changes: RequestChanges) -> bool:
    return changes.treatment_of(BINDING) == "drop_block"


def _max_tokens(model: Model, budget: int) -> int:
    """Return the output limit, which includes thinking and must exceed its budget.

    A configured limit at or below the budget is taken as the limit for the text alone.
    """
    limit = model.max_tokens
    if limit is not None and limit > budget:
        return limit
    return budget + (limit or DEFAULT_MAX_TOKENS)


def _build_messages(
    target: RequestTarget, exchange: Exchange, position: ExchangePosition
) -> Sequence[Mapping[str, Any]]:
    call_ids = CallIds(exchange.calls.values(), target)
    messages: list[dict[str, Any]] = []
    assistant_blocks = _assistant_blocks(target, exchange, call_ids, position.prefix)
    if assistant_blocks:
        if position.is_first:
            messages.append({"role": "user", "content": [_text_block(REMOVED_PLACEHOLDER)]})
        messages.append({"role": "assistant", "content": assistant_blocks})
    user_blocks = [_tool_result_block(exchange, call, call_ids[call]) for call in exchange.calls.values()] + [
        _text_block(text) for text in exchange.user_texts
    ]
    if user_blocks:
        messages.append({"role": "user", "content": user_blocks})
    elif position.is_last:
        messages.append({"role": "user", "content": [_text_block(CONTINUE_PROMPT)]})
    return messages


def _assistant_blocks(target: RequestTarget, exchange: Exchange, call_ids: CallIds, prefix: str) -> list[Any]:
    """Return the model's own blocks in their order, with the thinking blocks that are still valid."""
    calls = [_tool_use_block(call, call_ids[call]) for call in exchange.calls.values()]
    if not calls and not exchange.text:
        return []  # thinking blocks alone are not a message
    blocks: list[Any] = []
    for message in exchange.replies:
        text = [_text_block(message.text)] if message.text.strip() else []
        for block in _valid_blocks(target, message, prefix):
            if block.kind == "text":
                blocks += text
                text = []
            elif block.kind == "call":
                blocks += calls[:1]
                calls = calls[1:]
            else:
                blocks.append(msgspec.Raw(block.raw.encode()))
        blocks += text
    return blocks + calls


def _valid_blocks(target: RequestTarget, message: Message, prefix: str) -> Sequence[Block]:
    """Return the blocks of a reply, if it came from this model and nothing before it has changed.

    A thinking block is bound to what precedes it. After an edit, the blocks from there on are not sent any more.
    """
    data = parse_reply_data(message)
    if data is None or target.changes.is_dropped(REPLAY):
        return ()
    if not data.is_from(target.server, target.model) or data.origin.prefix != prefix:
        return ()
    return [block for block in data.blocks if block.kind in ("text", "call", *_THINKING_BLOCKS)]


def _tool_use_block(call: ToolCall, call_id: str) -> dict[str, Any]:
    args = "{}" if invalid_arguments_reason(call.args) else call.args
    return {
        "type": "tool_use",
        "id": call_id,
        "name": api_tool_name(call.tool),
        "input": msgspec.Raw(replace_surrogates(args).encode()),
    }


def _tool_result_block(exchange: Exchange, call: ToolCall, call_id: str) -> dict[str, Any]:
    text, ok = exchange.result_of(call)
    result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return result if ok else {**result, "is_error": True}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


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

    def __init__(self, inputs: ReaderInputs) -> None:
        self.has_stop_reason = False
        self.is_done = False
        self._key = inputs.key
        self._builder = ReplyBuilder(inputs.on_delta, inputs.origin)
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
        self._builder.provider_data += [
            text for block in self._blocks.values() if (text := _encode_block(block))
        ]
        usage = self._builder.plausible_usage(
            input_tokens=sum_counts(
                self._usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"
            ),
            output_tokens=sum_counts(self._usage, "output_tokens"),
            cached_tokens=sum_counts(self._usage, "cache_read_input_tokens"),
            cache_write_tokens=sum_counts(self._usage, "cache_creation_input_tokens"),
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


def _encode_block(block: _OpenBlock) -> str:
    """Return a thinking block as JSON, to be sent back unchanged, or what stands for a text or a call."""
    if block.call is not None:
        return CALL
    if block.part.type == "text":
        return TEXT
    if block.part.type == "redacted_thinking" and block.part.data:
        return encode_json({"type": "redacted_thinking", "data": block.part.data}).decode()
    if block.part.type == "thinking" and block.signature:
        thinking = "".join(block.pieces)
        return encode_json({"type": "thinking", "thinking": thinking, "signature": block.signature}).decode()
    return ""


def _endpoint(base_url: str) -> str:
    return f"{base_url.removesuffix('/v1')}/v1/messages"


def _headers(key: str, _: ModelRequest, changes: RequestChanges) -> dict[str, str]:
    headers = {"anthropic-version": API_VERSION}
    if _uses_binding(changes):
        headers["anthropic-beta"] = BINDING_HEADER
    return {**headers, "x-api-key": key} if key else headers


MESSAGES = WireFormat(
    name=NAME,
    endpoint=_endpoint,
    headers=_headers,
    request_format=request_format,
    reader=_MessageReader,
    prepare=prepare_request,
)
