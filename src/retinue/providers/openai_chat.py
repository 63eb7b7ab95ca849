"""Chat Completions: OpenAI, and every server that speaks as it does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Delta, Reply, Request, Stop
from retinue.domain.tool import ToolSpec, spelled
from retinue.domain.transcript import Called
from retinue.providers.errors import INCOMPLETE, PASSING, Trouble, by_code, failure, trouble
from retinue.providers.http.stream_request import CONNECT_SECONDS, Post
from retinue.providers.message_order import Unit
from retinue.providers.reply_builder import MAX_NAME, Assembly, Slot, count, counts
from retinue.providers.request_encoding import Place, Shape, Tools, body, encode, fields, not_an_object

OPENAI = "https://api.openai.com/v1"
EFFORTS = frozenset({"low", "medium", "high"})
NOTHING_SAID = "[empty message]"

STOPS: Mapping[str, Stop] = {
    "stop": Stop.END,
    "tool_calls": Stop.TOOLS,
    "function_call": Stop.END,
    "length": Stop.LENGTH,
    "content_filter": Stop.REFUSED,
    "refusal": Stop.REFUSED,
}
"""Any other finish reason is an ordinary end, except `error`, which is none."""


class OpenAIChat:
    """Takes turns at one base URL. The key is asked for at each turn and kept nowhere."""

    def __init__(
        self,
        base_url: str = OPENAI,
        api_key: Callable[[], str] | str = "",
        *,
        key_variable: str = "OPENAI_API_KEY",
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        base = base_url.rstrip("/")
        self._key = api_key
        self._post = Post(
            server=f"{base}/chat/completions", variable=key_variable, connect_seconds=connect_seconds
        )
        self._shape = shape(base)

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        key = self._post.key(self._key)
        parts = body(request, self._shape)
        reading = _Reading(heard, key)
        # A server on this machine may want no key: an empty one is not sent.
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        await self._post.stream(headers, parts, reading, heard, key)
        return reading.reply(sent=sum(map(len, parts)))

    async def close(self) -> None:
        await self._post.close()


def shape(base_url: str) -> Shape:
    """How requests to this server look: only OpenAI itself has a new name for the output limit."""
    limit = "max_completion_tokens" if base_url.startswith("https://api.openai.com/") else "max_tokens"
    return Shape(name="openai", head=lambda request: _head(request, limit), unit=_unit)


def _head(request: Request, limit: str) -> bytes:
    model = request.model
    head = fields(
        model=model.name,
        stream=True,
        stream_options={"include_usage": True},
        temperature=model.temperature,
        **{limit: model.max_tokens},
        reasoning_effort=model.thinking if model.thinking in EFFORTS else None,
        tools=_TOOLS(request.tools),
    )
    head += b'"messages":['
    if request.system:
        head += encode({"role": "system", "content": request.system}) + b","
    return head


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spelled(spec.name), "description": spec.description, "parameters": spec.schema}
    return {"type": "function", "function": function}


_TOOLS = Tools(_tool)


def _unit(unit: Unit, place: Place) -> Sequence[Mapping[str, Any]]:
    messages: list[dict[str, Any]] = []
    text = unit.text
    if unit.calls:
        calls = [_call(call) for call in unit.calls.values()]
        messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
    elif text:
        messages.append({"role": "assistant", "content": text})
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": unit.result(call)[0]}
        for call in unit.calls.values()
    ]
    messages += [{"role": "user", "content": words} for words in unit.words]
    if place.last and not messages:
        messages.append({"role": "user", "content": NOTHING_SAID})
    return messages


def _call(call: Called) -> dict[str, Any]:
    # Servers parse the arguments of old calls again: what is no JSON would make every later request invalid.
    args = "{}" if not_an_object(call.args) else call.args
    return {"id": call.id, "type": "function", "function": {"name": spelled(call.tool), "arguments": args}}


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Error(msgspec.Struct, gc=False):
    message: str | None = None
    type: Any = None
    code: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    model: str | None = None
    error: _Error | str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Reading:
    """A stream of completion chunks becoming a reply."""

    def __init__(self, heard: Callable[[Delta], None], key: str) -> None:
        self.finished = False
        self.over = False
        self._key = key
        self._into = Assembly(heard)
        self._by_index: dict[int, Slot] = {}
        self._by_id: dict[str, Slot] = {}
        self._in_pieces = True
        self._usage: Mapping[str, Any] = {}
        self._stop = Stop.END
        self._refusals: list[str] = []

    def take(self, events: Sequence[bytes]) -> None:
        try:
            for data in events:
                if data[:1] != b"{" and data.strip() == b"[DONE]":
                    self.over = True
                    continue
                try:
                    self._chunk(self._decoded(data))
                except Trouble:
                    # What follows a reply that was whole before cannot spoil it.
                    if not self.finished:
                        raise
        finally:
            self._into.tell()
        if self._into.full:
            self.finished = self.over = True

    def whole(self, data: bytes) -> None:
        self._in_pieces = False
        self.take([data])

    def _chunk(self, chunk: _Chunk) -> None:
        if chunk.model and not self._into.model:
            self._into.model = chunk.model
        if chunk.usage:
            self._usage = counts(chunk.usage) or self._usage
        for choice in chunk.choices or ():
            if choice.index:
                continue
            delta = choice.delta or choice.message
            if delta is not None:
                self._delta(delta)
            if choice.finish_reason:
                self._ended(choice.finish_reason)

    def reply(self, *, sent: int) -> Reply:
        if not self.finished:
            raise trouble("the model's answer broke off before its end", INCOMPLETE)
        if self._refusals and self._stop is not Stop.LENGTH:
            self._stop = Stop.REFUSED
        usage = self._into.used(
            read=count(self._usage, "prompt_tokens"),
            written=count(self._usage, "completion_tokens"),
            cached=count(counts(self._usage.get("prompt_tokens_details")), "cached_tokens"),
            sent=sent,
        )
        return self._into.reply(self._stop, usage)

    def _decoded(self, data: bytes) -> _Chunk:
        try:
            chunk = _CHUNK.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise trouble("the model's server sent a piece that is no completion", INCOMPLETE) from error
        if chunk.error is None:
            return chunk
        if isinstance(chunk.error, str):
            raise trouble(failure(chunk.error, self._key), PASSING)
        said = failure(chunk.error.message or "", self._key)
        raise trouble(said, by_code(chunk.error.code, chunk.error.type))

    def _ended(self, reason: str) -> None:
        if reason == "error":
            raise trouble("the model's server ended its answer with an error", PASSING)
        self.finished = True
        self._stop = STOPS.get(reason, Stop.END)

    def _delta(self, delta: _Delta) -> None:
        if delta.content:
            self._into.say(delta.content if isinstance(delta.content, str) else _joined(delta.content))
        thinking = delta.reasoning_content or delta.reasoning
        if thinking and isinstance(thinking, str):
            self._into.think(thinking)
        if delta.refusal:
            self._refusals.append(delta.refusal)
            self._into.say(delta.refusal)
        for call in delta.tool_calls or ():
            self._fragment(call)

    def _fragment(self, call: _Call) -> None:
        function = call.function or _Function()
        name = function.name or ""
        slot = self._slot(call, name) if self._in_pieces else self._into.call(name)
        if name and name != slot.name and not slot.pieces:
            slot.name = (slot.name + name)[:MAX_NAME]
        args = function.arguments
        if args:
            self._into.argue(slot, args if isinstance(args, str) else encode(args).decode())

    def _slot(self, call: _Call, name: str) -> Slot:
        """Which call a fragment belongs to. An index decides, or else an id; without them, or with one used twice, a
        name that comes after arguments have begun opens the next call."""
        slots = self._into.slots
        last = slots[-1] if slots else None
        slot = self._by_id.get(call.id or "", last) if call.index is None else self._by_index.get(call.index)
        if slot is None or not _continues(slot, call, name):
            slot = self._into.call(name, call.id or "")
            if call.index is not None:
                self._by_index[call.index] = slot
            if call.id:
                self._by_id[call.id] = slot
        return slot


def _continues(slot: Slot, call: _Call, name: str) -> bool:
    if not name:
        return True
    if call.id and slot.id and call.id != slot.id:
        return False
    if call.index is not None:
        return not slot.pieces or name == slot.name
    if not call.id:
        return not slot.pieces
    if not slot.pieces:
        return call.id == slot.id and name == slot.name
    return bool(not_an_object("".join(slot.pieces)))


def _joined(parts: list[Any]) -> str:
    """Content in parts, as some servers send it: only its texts are words."""
    found: list[str] = []
    for part in parts:
        text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            found.append(text)
    return "".join(found)
