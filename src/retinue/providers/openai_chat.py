"""The Chat Completions API, of OpenAI and of every server that is compatible with it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import ModelReply, ModelRequest, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import ToolCall
from retinue.providers.call_ids import CallIds
from retinue.providers.errors import ProviderError, server_failure_message
from retinue.providers.json_decoding import decode_json
from retinue.providers.message_order import Exchange
from retinue.providers.reply_builder import (
    MAX_NAME_CHARS,
    PartialToolCall,
    ReplyBuilder,
    sum_counts,
    usage_mapping,
)
from retinue.providers.reply_data import CALL, ReplyData, call_fields, encode_call, parse_reply_data
from retinue.providers.request_changes import FOREIGN_CALLS, REPLAY, SIGNATURES
from retinue.providers.request_encoding import (
    ExchangePosition,
    RequestFormat,
    encode_json,
    encode_tool_list,
    invalid_arguments_reason,
)
from retinue.providers.retry_policy import INCOMPLETE, SERVER_ERROR, policy_for_stream_error, provider_error
from retinue.providers.structured_output import openai_schema_format
from retinue.providers.wire_format import ReaderInputs, RequestTarget, WireFormat

NAME = "openai-chat"
OPENAI_URL = "https://api.openai.com/"
REASONING_EFFORTS: Mapping[str, str] = {
    "off": "none",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "xhigh",
}
"""Effort by thinking level; without a level, the server decides."""
EMPTY_MESSAGE = "[empty message]"
PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""Google's own value for calls that none of its models made."""

STOP_BY_REASON: Mapping[str, StopReason] = {
    "stop": StopReason.END,
    "tool_calls": StopReason.TOOLS,
    "function_call": StopReason.END,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
    "refusal": StopReason.REFUSED,
}
"""Any other finish reason is a normal end, except `error`, which is a failure."""

_REASONING, _DETAILS, _MESSAGE_FIELDS = "chat.reasoning", "chat.reasoning_details", "chat.fields"
"""Types of stored blocks: reasoning text, OpenRouter's details of it, and other fields of the message."""


def request_format(target: RequestTarget) -> RequestFormat:
    return RequestFormat(
        name=f"{NAME} {target.server} {target.model} {target.changes.key}",
        build_fields=partial(_build_fields, target),
        open_messages=_open_messages,
        build_messages=partial(_build_messages, target),
    )


def _build_fields(target: RequestTarget, request: ModelRequest) -> dict[str, Any]:
    model = request.model
    effort = REASONING_EFFORTS.get(model.thinking or "")
    # Only OpenAI itself uses the new name of the output limit from the start.
    limit_field = "max_completion_tokens" if f"{target.base_url}/".startswith(OPENAI_URL) else "max_tokens"
    return target.finish_fields(
        {
            "model": model.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": model.temperature,
            limit_field: model.max_tokens,
            **_thinking_fields(target, effort),
            "tools": encode_tool_list(request.tools, _encode_tool),
            "response_format": {
                "type": "json_schema",
                "json_schema": openai_schema_format(request.output_schema),
            }
            if request.output_schema is not None
            else None,
        }
    )


def _thinking_fields(target: RequestTarget, effort: str | None) -> dict[str, Any]:
    """Return the field that requests thinking; every vendor has another one."""
    if target.thinking_field == "reasoning" and effort:
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}
    if target.thinking_field == "thinking" and effort:
        return {"thinking": {"type": "disabled" if effort == "none" else "enabled"}}
    is_off = target.changes.treatment_of("reasoning_effort") == "none"
    return {"reasoning_effort": "none" if is_off else effort}


def _open_messages(request: ModelRequest) -> bytes:
    if not request.system:
        return b'"messages":['
    return b'"messages":[' + encode_json({"role": "system", "content": request.system}) + b","


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": api_tool_name(spec.name), "description": spec.description, "parameters": spec.schema}
    return {"type": "function", "function": function}


def _build_messages(
    target: RequestTarget, exchange: Exchange, position: ExchangePosition
) -> Sequence[Mapping[str, Any]]:
    call_ids = CallIds(exchange.calls.values(), target)
    data = _own_data(target, exchange)
    messages: list[dict[str, Any]] = []
    if exchange.calls and not data and target.changes.treatment_of(FOREIGN_CALLS):
        messages += _calls_as_text(exchange)
    else:
        if exchange.calls or exchange.text:
            messages.append(_assistant_message(target, exchange, call_ids, data))
        messages += [
            {"role": "tool", "tool_call_id": call_ids[call], "content": exchange.result_of(call)[0]}
            for call in exchange.calls.values()
        ]
    messages += [{"role": "user", "content": text_item} for text_item in exchange.user_texts]
    if position.is_last and not messages:
        messages.append({"role": "user", "content": EMPTY_MESSAGE})
    return messages


def _own_data(target: RequestTarget, exchange: Exchange) -> list[ReplyData]:
    """Return what this server wants back with the replies."""
    if target.changes.is_dropped(REPLAY):
        return []
    found = (parse_reply_data(reply) for reply in exchange.replies)
    return [each for each in found if each is not None and each.is_from(target.server)]


def _assistant_message(
    target: RequestTarget, exchange: Exchange, call_ids: CallIds, data: Sequence[ReplyData]
) -> dict[str, Any]:
    text = exchange.text
    message: dict[str, Any] = {"role": "assistant", "content": text or None if exchange.calls else text}
    for each in data:
        message |= _message_fields(each, has_calls=bool(exchange.calls))
    if exchange.calls:
        call_data = [block for each in data for block in each.blocks if block.kind == "call"]
        extras: list[dict[str, Any]] = [call_fields(block) for block in call_data]
        if not any(extras) and target.changes.treatment_of(SIGNATURES):
            extras = [{"extra_content": {"google": {"thought_signature": PLACEHOLDER_SIGNATURE}}}]
        extras += [{}] * (len(exchange.calls) - len(extras))
        message["tool_calls"] = [
            _tool_call_block(call, call_ids[call], extra)
            for call, extra in zip(exchange.calls.values(), extras, strict=False)
        ]
    return message


def _message_fields(data: ReplyData, *, has_calls: bool) -> dict[str, Any]:
    """Return the fields that the server wants back; reasoning only with the calls it led to."""
    found: dict[str, Any] = {}
    for block in data.server_blocks:
        stored = msgspec.json.decode(block.raw, type=dict[str, Any])
        if block.kind == _MESSAGE_FIELDS:
            found |= stored["fields"]
        elif has_calls and block.kind == _REASONING:
            found[stored["field"]] = found.get(stored["field"], "") + stored["thinking"]
        elif has_calls and block.kind == _DETAILS:
            found["reasoning_details"] = [*found.get("reasoning_details", []), *stored["items"]]
    return found


def _calls_as_text(exchange: Exchange) -> list[dict[str, Any]]:
    """Return tool calls and their results as text, for a server that accepts only calls of its own."""
    calls = [f"[called {call.tool} with {call.args}]" for call in exchange.calls.values()]
    results = [f"[result of {call.tool}]\n{exchange.result_of(call)[0]}" for call in exchange.calls.values()]
    text = "\n\n".join([*([exchange.text] if exchange.text else []), *calls])
    return [{"role": "assistant", "content": text}, {"role": "user", "content": "\n\n".join(results)}]


def _tool_call_block(call: ToolCall, call_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    # Servers parse the arguments of earlier calls again: invalid JSON would make every later request fail.
    args = "{}" if invalid_arguments_reason(call.args) else call.args
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": api_tool_name(call.tool), "arguments": args},
        **extra,
    }


class _FunctionPart(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCallPart(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _FunctionPart | None = None
    extra_content: dict[str, Any] | None = None


class _MessagePart(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: Any = None
    extra_content: dict[str, Any] | None = None
    tool_calls: list[_ToolCallPart] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _MessagePart | None = None
    message: _MessagePart | None = None
    finish_reason: str | None = None


class _ErrorDetails(msgspec.Struct, gc=False):
    message: str | None = None
    type: Any = None
    code: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    model: str | None = None
    error: _ErrorDetails | str | None = None


_CHUNK_DECODER = msgspec.json.Decoder(_Chunk)


class _CompletionReader:
    """Read a stream of completion chunks into a reply."""

    def __init__(self, inputs: ReaderInputs) -> None:
        self.has_stop_reason = False
        self.is_done = False
        self._key = inputs.key
        self._builder = ReplyBuilder(inputs.on_delta, inputs.origin)
        self._reasoning: dict[str, list[str]] = {}
        """Pieces of reasoning text, by the field they came in."""
        self._reasoning_details: list[dict[str, Any]] = []
        self._message_fields: dict[str, Any] = {}
        self._call_by_index: dict[int, PartialToolCall] = {}
        self._call_by_id: dict[str, PartialToolCall] = {}
        self._is_streamed = True
        self._usage: Mapping[str, Any] = {}
        self._stop = StopReason.END
        self._refusals: list[str] = []

    def read_events(self, events: Sequence[bytes]) -> None:
        try:
            for data in events:
                if data[:1] != b"{" and data.strip() == b"[DONE]":
                    self.is_done = True
                    continue
                try:
                    self._read_chunk(self._decode_chunk(data))
                except ProviderError:
                    # Errors after a complete reply are ignored.
                    if not self.has_stop_reason:
                        raise
        finally:
            self._builder.flush()
        if self._builder.is_full:
            self.has_stop_reason = self.is_done = True

    def read_document(self, data: bytes) -> None:
        self._is_streamed = False
        self.read_events([data])

    def _read_chunk(self, chunk: _Chunk) -> None:
        if chunk.model and not self._builder.model:
            self._builder.model = chunk.model
        if chunk.usage:
            self._usage = usage_mapping(chunk.usage) or self._usage
        for choice in chunk.choices or ():
            if choice.index:
                continue
            delta = choice.delta or choice.message
            if delta is not None:
                self._read_delta(delta)
            if choice.finish_reason:
                self._set_stop_reason(choice.finish_reason)

    def reply(self, *, sent_bytes: int) -> ModelReply:
        if not self.has_stop_reason:
            raise provider_error("the model's reply ended before it was complete", INCOMPLETE)
        if self._refusals and self._stop is not StopReason.LENGTH:
            self._stop = StopReason.REFUSED
        input_tokens = sum_counts(self._usage, "prompt_tokens")
        details = usage_mapping(self._usage.get("prompt_tokens_details"))
        usage = self._builder.plausible_usage(
            input_tokens=input_tokens,
            # Some servers count reasoning in the total only, but charge it as output.
            output_tokens=max(
                sum_counts(self._usage, "completion_tokens"),
                sum_counts(self._usage, "total_tokens") - input_tokens,
            ),
            cached_tokens=sum_counts(details, "cached_tokens")
            or sum_counts(self._usage, "prompt_cache_hit_tokens"),
            cache_write_tokens=sum_counts(details, "cache_write_tokens"),
            sent_bytes=sent_bytes,
        )
        self._builder.provider_data += self._blocks_to_return()
        return self._builder.build(self._stop, usage)

    def _blocks_to_return(self) -> list[str]:
        """Return what the server may want back: reasoning that led to calls, signatures, and fields of calls."""
        calls = self._builder.tool_calls
        blocks: list[dict[str, Any]] = []
        if calls:
            blocks += [
                {"type": _REASONING, "field": name, "thinking": "".join(pieces)}
                for name, pieces in self._reasoning.items()
            ]
            if self._reasoning_details:
                blocks.append({"type": _DETAILS, "items": self._reasoning_details})
        if self._message_fields:
            blocks.append({"type": _MESSAGE_FIELDS, "fields": self._message_fields})
        return [
            *(encode_json(block).decode() for block in blocks),
            *(encode_call(call.fields) if call.fields else CALL for call in calls),
        ]

    def _decode_chunk(self, data: bytes) -> _Chunk:
        try:
            chunk = decode_json(_CHUNK_DECODER, data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise provider_error(
                "the model's server sent an event that is not a completion", INCOMPLETE
            ) from error
        if chunk.error is None:
            return chunk
        if isinstance(chunk.error, str):
            raise provider_error(server_failure_message(chunk.error, self._key), SERVER_ERROR)
        message = server_failure_message(chunk.error.message or "", self._key)
        raise provider_error(message, policy_for_stream_error(chunk.error.code, chunk.error.type))

    def _set_stop_reason(self, reason: str) -> None:
        if reason == "error":
            raise provider_error("the model's server ended its reply with an error", SERVER_ERROR)
        self.has_stop_reason = True
        self._stop = STOP_BY_REASON.get(reason, StopReason.END)

    def _read_delta(self, delta: _MessagePart) -> None:
        if delta.content:
            self._builder.add_text(
                delta.content if isinstance(delta.content, str) else _join_text_parts(delta.content)
            )
        thinking = delta.reasoning_content or delta.reasoning
        if thinking and isinstance(thinking, str):
            name = "reasoning_content" if delta.reasoning_content else "reasoning"
            self._reasoning.setdefault(name, []).append(self._builder.add_thinking(thinking))
        if delta.reasoning_details:
            self._add_reasoning_details(delta.reasoning_details)
        if delta.extra_content:
            self._builder.truncate_to_limit(encode_json(delta.extra_content).decode())
            self._message_fields["extra_content"] = delta.extra_content
        if delta.refusal:
            self._refusals.append(delta.refusal)
            self._builder.add_text(delta.refusal)
        for fragment in delta.tool_calls or ():
            self._add_call_fragment(fragment)

    def _add_reasoning_details(self, details: Any) -> None:
        """Join the pieces of each detail: their texts are streamed, their other fields come whole."""
        for piece in cast("list[Any]", details) if isinstance(details, list) else []:
            if not isinstance(piece, dict):
                continue
            fields = cast("dict[str, Any]", piece)
            self._builder.truncate_to_limit(encode_json(fields).decode())
            last: dict[str, Any] = self._reasoning_details[-1] if self._reasoning_details else {}
            if any(last.get(name) != fields.get(name) for name in ("type", "index")):
                last = {}
                self._reasoning_details.append(last)
            for name, value in fields.items():
                if name in ("text", "summary", "data") and isinstance(value, str):
                    last[name] = f"{last.get(name) or ''}{value}"
                elif value is not None or name not in last:
                    last[name] = value

    def _add_call_fragment(self, fragment: _ToolCallPart) -> None:
        function = fragment.function or _FunctionPart()
        name = function.name or ""
        call = (
            self._find_or_start_call(fragment, name)
            if self._is_streamed
            else self._builder.start_tool_call(name, fragment.id or "")
        )
        if name and name != call.name and not call.pieces:
            call.name = (call.name + name)[:MAX_NAME_CHARS]
        if fragment.extra_content:
            self._builder.truncate_to_limit(encode_json(fragment.extra_content).decode())
            call.fields["extra_content"] = fragment.extra_content
        args = function.arguments
        if args:
            self._builder.add_arguments(call, args if isinstance(args, str) else encode_json(args).decode())

    def _find_or_start_call(self, fragment: _ToolCallPart, name: str) -> PartialToolCall:
        """Return the tool call that a fragment belongs to, starting a new one if needed.

        Match by index, then by id. If both are missing or an id is reused, a name that arrives after arguments
        starts the next call.
        """
        calls = self._builder.tool_calls
        last = calls[-1] if calls else None
        call = (
            self._call_by_id.get(fragment.id or "", last)
            if fragment.index is None
            else self._call_by_index.get(fragment.index)
        )
        if call is None or not _continues_call(call, fragment, name):
            call = self._builder.start_tool_call(name, fragment.id or "")
            if fragment.index is not None:
                self._call_by_index[fragment.index] = call
            if fragment.id:
                self._call_by_id[fragment.id] = call
        return call


def _continues_call(call: PartialToolCall, fragment: _ToolCallPart, name: str) -> bool:
    if not name:
        return True
    if fragment.id and call.id and fragment.id != call.id:
        return False
    if fragment.index is not None:
        return not call.pieces or name == call.name
    if not fragment.id:
        return not call.pieces
    if not call.pieces:
        return fragment.id == call.id and name == call.name
    return bool(invalid_arguments_reason("".join(call.pieces)))


def _join_text_parts(parts: list[Any]) -> str:
    """Join the texts of content sent in parts, as some servers do."""
    texts: list[str] = []
    for part in parts:
        text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            texts.append(text)
    return "".join(texts)


def _endpoint(base_url: str) -> str:
    return f"{base_url}/chat/completions"


def bearer_headers(key: str, *_: object) -> dict[str, str]:
    """Return the header with the key; a local server may need none."""
    return {"Authorization": f"Bearer {key}"} if key else {}


CHAT_COMPLETIONS = WireFormat(
    name=NAME,
    endpoint=_endpoint,
    headers=bearer_headers,
    request_format=request_format,
    reader=_CompletionReader,
)
