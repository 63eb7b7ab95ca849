"""OpenAI's Responses API, used without its memory: each request holds the whole conversation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from retinue.domain.model_turn import ModelReply, ModelRequest, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import Message, ToolCall
from retinue.providers.call_ids import CallIds
from retinue.providers.errors import ProviderError, server_failure_message
from retinue.providers.json_decoding import decode_json
from retinue.providers.message_order import Exchange
from retinue.providers.openai_chat import EMPTY_MESSAGE, REASONING_EFFORTS, bearer_headers
from retinue.providers.reply_builder import PartialToolCall, ReplyBuilder, sum_counts, usage_mapping
from retinue.providers.reply_data import CALL, TEXT, Block, parse_reply_data
from retinue.providers.request_changes import REPLAY
from retinue.providers.request_encoding import (
    ExchangePosition,
    RequestFormat,
    encode_tool_list,
    invalid_arguments_reason,
)
from retinue.providers.retry_policy import INCOMPLETE, SERVER_ERROR, policy_for_stream_error, provider_error
from retinue.providers.structured_output import openai_schema_format
from retinue.providers.wire_format import ReaderInputs, RequestTarget, WireFormat

NAME = "openai-responses"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_REASONING = "reasoning"


def request_format(target: RequestTarget) -> RequestFormat:
    return RequestFormat(
        name=f"{NAME} {target.server} {target.model} {target.changes.key}",
        build_fields=partial(_build_fields, target),
        open_messages=lambda _: b'"input":[',
        build_messages=partial(_build_items, target),
    )


def _build_fields(target: RequestTarget, request: ModelRequest) -> dict[str, Any]:
    model = request.model
    effort = REASONING_EFFORTS.get(model.thinking or "")
    wants_summary = effort not in (None, "none")
    return target.finish_fields(
        {
            "model": model.name,
            "stream": True,
            "store": False,
            "include": [ENCRYPTED_REASONING],
            "instructions": request.system or None,
            "temperature": model.temperature,
            "max_output_tokens": model.max_tokens,
            "reasoning": {"effort": effort, **({"summary": "auto"} if wants_summary else {})}
            if effort
            else None,
            "tools": encode_tool_list(request.tools, _encode_tool),
            "text": {"format": {"type": "json_schema", **openai_schema_format(request.output_schema)}}
            if request.output_schema is not None
            else None,
        }
    )


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": api_tool_name(spec.name),
        "description": spec.description,
        "parameters": spec.schema,
        "strict": False,
    }


def _build_items(
    target: RequestTarget, exchange: Exchange, position: ExchangePosition
) -> Sequence[Mapping[str, Any]]:
    call_ids = CallIds(exchange.calls.values(), target)
    items: list[Any] = _reply_items(target, exchange, call_ids)
    items += [
        {
            "type": "function_call_output",
            "call_id": call_ids[call],
            "output": exchange.result_of(call)[0],
        }
        for call in exchange.calls.values()
    ]
    items += [_message("user", "input_text", text) for text in exchange.user_texts]
    if position.is_last and not items:
        items.append(_message("user", "input_text", EMPTY_MESSAGE))
    return items


def _reply_items(target: RequestTarget, exchange: Exchange, call_ids: CallIds) -> list[Any]:
    """Return the model's own items in their order, its reasoning before what it led to."""
    calls = [_function_call(call, call_ids[call]) for call in exchange.calls.values()]
    items: list[Any] = []
    for reply in exchange.replies:
        text = [_message("assistant", "output_text", reply.text)] if reply.text.strip() else []
        pending: list[Any] = []
        """Reasoning that still lacks the item it led to, without which the server refuses it."""
        for block in _own_blocks(target, reply):
            if block.kind == "text":
                following, text = text, []
            elif block.kind == "call":
                following, calls = calls[:1], calls[1:]
            else:
                pending.append(msgspec.Raw(block.raw.encode()))
                continue
            if following:
                items += [*pending, *following]
            pending = []
        items += text
    return items + calls


def _own_blocks(target: RequestTarget, reply: Message) -> Sequence[Block]:
    """Return the blocks of a reply, if this model made it: only it can read its reasoning."""
    data = parse_reply_data(reply)
    if data is None or target.changes.is_dropped(REPLAY) or not data.is_from(target.server, target.model):
        return ()
    return [block for block in data.blocks if block.kind in ("text", "call", _REASONING)]


def _message(role: str, content_type: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": content_type, "text": text}]}


def _function_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    args = "{}" if invalid_arguments_reason(call.args) else call.args
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": api_tool_name(call.tool),
        "arguments": args,
    }


NO_ITEM = msgspec.Raw()


class _ContentPart(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[_ContentPart] | None = None
    encrypted_content: str | None = None


class _ErrorDetails(msgspec.Struct, gc=False):
    message: str | None = None
    code: Any = None
    type: Any = None


class _IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: Any = None
    error: _ErrorDetails | None = None
    incomplete_details: _IncompleteDetails | None = None


class _Event(msgspec.Struct, gc=False):
    """Any event of a stream."""

    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    item: msgspec.Raw = NO_ITEM
    delta: Any = None
    arguments: str | None = None
    response: _Response | None = None
    error: _ErrorDetails | None = None
    message: str | None = None
    code: Any = None


_EVENT_DECODER = msgspec.json.Decoder(_Event)
_ITEM_DECODER = msgspec.json.Decoder(_Item)
_RESPONSE_DECODER = msgspec.json.Decoder(_Response)


class _OpenItem:
    """An output item that is being received."""

    __slots__ = ("call", "has_text", "is_done", "item", "raw")

    def __init__(self, item: _Item, call: PartialToolCall | None) -> None:
        self.item = item
        self.call = call
        self.raw = b""
        """The whole item, once it is there."""
        self.has_text = False
        self.is_done = False


class _ResponseReader:
    """Read a stream of response events into a reply."""

    def __init__(self, inputs: ReaderInputs) -> None:
        self.has_stop_reason = False
        self.is_done = False
        self._key = inputs.key
        self._builder = ReplyBuilder(inputs.on_delta, inputs.origin)
        self._items: dict[int | str, _OpenItem] = {}
        self._items_by_id: dict[str, _OpenItem] = {}
        self._usage: Mapping[str, Any] = {}
        self._stop = StopReason.END
        self._is_refused = False
        self._has_summary = False

    def read_events(self, events: Sequence[bytes]) -> None:
        try:
            for data in events:
                if data[:1] != b"{" and data.strip() == b"[DONE]":
                    self.is_done = True
                    continue
                try:
                    event = _decode(_EVENT_DECODER, data)
                    method = _EVENT_METHODS.get(event.type)
                    if method is not None:
                        method(self, event)
                    elif event.error is not None:
                        self.fail(event)
                except ProviderError:
                    # Errors after a complete reply are ignored.
                    if not self.has_stop_reason:
                        raise
        finally:
            self._builder.flush()
        if self._builder.is_full:
            self.has_stop_reason = self.is_done = True

    def read_document(self, data: bytes) -> None:
        try:
            response = _decode(_RESPONSE_DECODER, data)
            if response.error is not None and response.status != "completed":
                self._raise_error(response.error)
            if response.output is None:
                raise provider_error("the model's server sent a document that is not a response", INCOMPLETE)
            self._finish(response)
        finally:
            self._builder.flush()

    def reply(self, *, sent_bytes: int) -> ModelReply:
        if not self.has_stop_reason:
            raise provider_error("the model's reply ended before it was complete", INCOMPLETE)
        if self._is_refused and self._stop is not StopReason.LENGTH:
            self._stop = StopReason.REFUSED
        self._builder.provider_data += [
            text for open_item in self._items.values() if (text := _encode_item(open_item))
        ]
        details = usage_mapping(self._usage.get("input_tokens_details"))
        usage = self._builder.plausible_usage(
            input_tokens=sum_counts(self._usage, "input_tokens"),
            output_tokens=sum_counts(self._usage, "output_tokens"),
            cached_tokens=sum_counts(details, "cached_tokens"),
            cache_write_tokens=sum_counts(details, "cache_write_tokens"),
            sent_bytes=sent_bytes,
        )
        return self._builder.build(self._stop, usage)

    def start_response(self, event: _Event) -> None:
        if event.response is not None and event.response.model:
            self._builder.model = event.response.model

    def start_item(self, event: _Event) -> None:
        if event.item:
            self._open_item(event, _decode(_ITEM_DECODER, bytes(event.item)))

    def _open_item(self, event: _Event, item: _Item) -> _OpenItem:
        self._builder.check_block_limit(len(self._items))
        is_call = item.type == "function_call"
        call = self._builder.start_tool_call(item.name or "", item.call_id or "") if is_call else None
        open_item = _OpenItem(item, call)
        key = event.output_index if event.output_index is not None else item.id or len(self._items)
        self._items[key] = open_item
        if item.id:
            self._items_by_id[item.id] = open_item
        return open_item

    def end_item(self, event: _Event) -> None:
        """Take what was not streamed from the whole item."""
        if not event.item:
            return
        item = _decode(_ITEM_DECODER, bytes(event.item))
        open_item = self._find_item(event, item.id) or self._open_item(event, item)
        if open_item.is_done:
            return
        open_item.is_done = True
        if item.type == _REASONING:
            open_item.item = item
            open_item.raw = self._builder.truncate_to_limit(bytes(event.item).decode()).encode()
        elif open_item.call is not None:
            if item.call_id and not open_item.call.id:
                open_item.call.id = item.call_id
            if not open_item.call.pieces and item.arguments:
                self._builder.add_arguments(open_item.call, item.arguments)
        elif not open_item.has_text:
            for part in item.content or ():
                self._is_refused = self._is_refused or bool(part.refusal)
                self._builder.add_text(part.text or part.refusal or "")

    def add_text(self, event: _Event) -> None:
        open_item = self._find_item(event)
        if open_item is not None:
            open_item.has_text = True
        if isinstance(event.delta, str):
            self._builder.add_text(event.delta)

    def add_refusal(self, event: _Event) -> None:
        self._is_refused = True
        self.add_text(event)

    def add_thinking(self, event: _Event) -> None:
        if isinstance(event.delta, str):
            self._builder.add_thinking(event.delta)

    def separate_thinking(self, _: _Event) -> None:
        """Put an empty line between two parts of a summary."""
        if self._has_summary:
            self._builder.add_thinking("\n\n")
        self._has_summary = True

    def add_arguments(self, event: _Event) -> None:
        open_item = self._find_item(event)
        if open_item is not None and open_item.call is not None and isinstance(event.delta, str):
            self._builder.add_arguments(open_item.call, event.delta)

    def end_arguments(self, event: _Event) -> None:
        open_item = self._find_item(event)
        if open_item is None or open_item.call is None or open_item.call.pieces:
            return
        self._builder.add_arguments(open_item.call, event.arguments or "")

    def end_response(self, event: _Event) -> None:
        if event.response is not None:
            self._finish(event.response)

    def fail(self, event: _Event) -> None:
        details = event.error or (event.response.error if event.response is not None else None)
        self._raise_error(details or _ErrorDetails(message=event.message, code=event.code))

    def _raise_error(self, details: _ErrorDetails) -> None:
        message = server_failure_message(details.message or "", self._key)
        raise provider_error(message, policy_for_stream_error(details.code, details.type))

    def _finish(self, response: _Response) -> None:
        if response.model and not self._builder.model:
            self._builder.model = response.model
        self._usage = usage_mapping(response.usage) or self._usage
        # A server may send the items only at the end.
        for index, raw in enumerate(response.output or ()):
            self.end_item(_Event(output_index=index, item=raw))
        status = response.status or "completed"
        if status in ("failed", "cancelled"):
            raise provider_error("the model's server ended its reply with an error", SERVER_ERROR)
        self.has_stop_reason = self.is_done = True
        if status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details is not None else ""
            self._stop = StopReason.REFUSED if reason == "content_filter" else StopReason.LENGTH

    def _find_item(self, event: _Event, item_id: str | None = None) -> _OpenItem | None:
        if event.output_index is not None and event.output_index in self._items:
            return self._items[event.output_index]
        return self._items_by_id.get(item_id or event.item_id or "")


_EVENT_METHODS: Mapping[str, Callable[[_ResponseReader, _Event], None]] = {
    "response.created": _ResponseReader.start_response,
    "response.output_item.added": _ResponseReader.start_item,
    "response.output_item.done": _ResponseReader.end_item,
    "response.output_text.delta": _ResponseReader.add_text,
    "response.refusal.delta": _ResponseReader.add_refusal,
    "response.reasoning_summary_part.added": _ResponseReader.separate_thinking,
    "response.reasoning_summary_text.delta": _ResponseReader.add_thinking,
    "response.reasoning_text.delta": _ResponseReader.add_thinking,
    "response.function_call_arguments.delta": _ResponseReader.add_arguments,
    "response.function_call_arguments.done": _ResponseReader.end_arguments,
    "response.completed": _ResponseReader.end_response,
    "response.incomplete": _ResponseReader.end_response,
    "response.failed": _ResponseReader.fail,
    "error": _ResponseReader.fail,
}
"""Other events are ignored."""


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decode_json(decoder, data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise provider_error("the model's server sent an event that is not a response", INCOMPLETE) from error


def _encode_item(open_item: _OpenItem) -> str:
    """Return a reasoning item unchanged, or what stands for a text or a call."""
    if open_item.call is not None:
        return CALL
    if open_item.item.type == "message":
        return TEXT
    if open_item.raw and open_item.item.encrypted_content:
        return open_item.raw.decode()
    return ""


def _endpoint(base_url: str) -> str:
    return f"{base_url}/responses"


RESPONSES = WireFormat(
    name=NAME,
    endpoint=_endpoint,
    headers=bearer_headers,
    request_format=request_format,
    reader=_ResponseReader,
)
