"""Provider for the OpenAI Chat Completions API and compatible servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason
from retinue.domain.providers import MODEL_APIS
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import ToolCall
from retinue.providers.errors import ProviderError, server_failure_message
from retinue.providers.http.stream_request import CONNECT_TIMEOUT_S, StreamingRequest
from retinue.providers.interface import ProviderServices, ProviderSettings, server_access
from retinue.providers.json_decoding import decode_json
from retinue.providers.message_order import Exchange
from retinue.providers.reply_builder import (
    MAX_NAME_CHARS,
    PartialToolCall,
    ReplyBuilder,
    sum_counts,
    usage_mapping,
)
from retinue.providers.request_encoding import (
    ExchangePosition,
    RequestFormat,
    encode_json,
    encode_open_object,
    encode_request,
    encode_tool_list,
    invalid_arguments_reason,
)
from retinue.providers.retry_policy import INCOMPLETE, SERVER_ERROR, policy_for_stream_error, provider_error

BASE_URL = MODEL_APIS["openai"].base_url
REASONING_EFFORTS = frozenset({"low", "medium", "high"})
EMPTY_MESSAGE = "[empty message]"

STOP_BY_REASON: Mapping[str, StopReason] = {
    "stop": StopReason.END,
    "tool_calls": StopReason.TOOLS,
    "function_call": StopReason.END,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
    "refusal": StopReason.REFUSED,
}
"""Any other finish reason is a normal end, except `error`, which is a failure."""


def create_provider(
    model: Model, settings: ProviderSettings, _services: ProviderServices
) -> "OpenAIChatProvider":
    access = server_access(model, settings)
    return OpenAIChatProvider(access.base_url, access.api_key, key_variable=access.key_variable)


class OpenAIChatProvider:
    """Send requests to one base URL. The key is read for each request and not stored."""

    def __init__(
        self,
        base_url: str = BASE_URL,
        api_key: Callable[[], str] | str = "",
        *,
        key_variable: str = "OPENAI_API_KEY",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        base = base_url.rstrip("/")
        self._api_key = api_key
        self._connection = StreamingRequest(
            url=f"{base}/chat/completions", key_variable=key_variable, connect_timeout_s=connect_timeout_s
        )
        self._request_format = request_format(base)

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        key = self._connection.resolve_key(self._api_key)
        body = encode_request(request, self._request_format)
        reader = _CompletionReader(on_delta, key)
        # A local server may need no key: an empty one is not sent.
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        await self._connection.stream(headers, body, reader, on_delta, key)
        return reader.reply(sent_bytes=sum(map(len, body)))

    async def close(self) -> None:
        await self._connection.close()


def request_format(base_url: str) -> RequestFormat:
    """Return the request format for a server.

    Only OpenAI itself uses the new name of the output limit.
    """
    limit_field = "max_completion_tokens" if base_url.startswith("https://api.openai.com/") else "max_tokens"
    return RequestFormat(
        name="openai",
        encode_head=lambda request: _encode_head(request, limit_field),
        build_messages=_build_messages,
    )


def _encode_head(request: ModelRequest, limit_field: str) -> bytes:
    model = request.model
    head = encode_open_object(
        model=model.name,
        stream=True,
        stream_options={"include_usage": True},
        temperature=model.temperature,
        **{limit_field: model.max_tokens},
        reasoning_effort=model.thinking if model.thinking in REASONING_EFFORTS else None,
        tools=encode_tool_list(request.tools, _encode_tool),
    )
    head += b'"messages":['
    if request.system:
        head += encode_json({"role": "system", "content": request.system}) + b","
    return head


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": api_tool_name(spec.name), "description": spec.description, "parameters": spec.schema}
    return {"type": "function", "function": function}


def _build_messages(exchange: Exchange, position: ExchangePosition) -> Sequence[Mapping[str, Any]]:
    messages: list[dict[str, Any]] = []
    text = exchange.text
    if exchange.calls:
        calls = [_tool_call_block(call) for call in exchange.calls.values()]
        messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
    elif text:
        messages.append({"role": "assistant", "content": text})
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": exchange.result_of(call)[0]}
        for call in exchange.calls.values()
    ]
    messages += [{"role": "user", "content": text_item} for text_item in exchange.user_texts]
    if position.is_last and not messages:
        messages.append({"role": "user", "content": EMPTY_MESSAGE})
    return messages


def _tool_call_block(call: ToolCall) -> dict[str, Any]:
    # Servers parse the arguments of earlier calls again: invalid JSON would make every later request fail.
    args = "{}" if invalid_arguments_reason(call.args) else call.args
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": api_tool_name(call.tool), "arguments": args},
    }


class _FunctionPart(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCallPart(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _FunctionPart | None = None


class _MessagePart(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
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

    def __init__(self, on_delta: Callable[[ReplyDelta], None], key: str) -> None:
        self.has_stop_reason = False
        self.is_done = False
        self._key = key
        self._builder = ReplyBuilder(on_delta)
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
        usage = self._builder.plausible_usage(
            input_tokens=sum_counts(self._usage, "prompt_tokens"),
            output_tokens=sum_counts(self._usage, "completion_tokens"),
            cached_tokens=sum_counts(
                usage_mapping(self._usage.get("prompt_tokens_details")), "cached_tokens"
            ),
            sent_bytes=sent_bytes,
        )
        return self._builder.build(self._stop, usage)

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
            self._builder.add_thinking(thinking)
        if delta.refusal:
            self._refusals.append(delta.refusal)
            self._builder.add_text(delta.refusal)
        for fragment in delta.tool_calls or ():
            self._add_call_fragment(fragment)

    def _add_call_fragment(self, fragment: _ToolCallPart) -> None:
        function = fragment.function or _FunctionPart()
        name = function.name or ""
        call = (
            self._find_or_start_call(fragment, name)
            if self._is_streamed
            else self._builder.start_tool_call(name)
        )
        if name and name != call.name and not call.pieces:
            call.name = (call.name + name)[:MAX_NAME_CHARS]
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
