"""Messages: Anthropic, and every server that speaks as it does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from retinue.domain.model_turn import Delta, Model, Reply, Request, Stop
from retinue.domain.tool import ToolSpec, spelled
from retinue.domain.transcript import Called, Entry, Said
from retinue.providers.errors import INCOMPLETE, Trouble, by_name, failure, trouble
from retinue.providers.http.stream_request import CONNECT_SECONDS, Post
from retinue.providers.message_order import Unit
from retinue.providers.reply_builder import Assembly, Slot, count, counts
from retinue.providers.request_encoding import Place, Shape, Tools, body, encode, fields, not_an_object, plain

ANTHROPIC = "https://api.anthropic.com"
VERSION = "2023-06-01"
MAX_TOKENS = 8192
BUDGETS: Mapping[str, int] = {"low": 2048, "medium": 8192, "high": 24576}
"""Tokens of thinking, by level."""
REMOVED = "[earlier conversation removed]"
CONTINUE = "[continue]"
"""Said to a model whose own words stand last: it would otherwise be made to continue them."""

STOPS: Mapping[str, Stop] = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "tool_use": Stop.TOOLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.REFUSED,
}
"""Any other stop reason is an ordinary end."""


class Anthropic:
    """Takes turns at one base URL. The key is asked for at each turn and kept nowhere."""

    def __init__(
        self,
        base_url: str = ANTHROPIC,
        api_key: Callable[[], str] | str = "",
        *,
        key_variable: str = "ANTHROPIC_API_KEY",
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        base = base_url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self._post = Post(
            server=f"{base}/v1/messages", variable=key_variable, connect_seconds=connect_seconds
        )
        self._shape = Shape(name="anthropic", head=_head, unit=_unit)

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        key = self._post.key(self._key)
        if request.model.thinking in BUDGETS and not _may_think(request.entries):
            request = replace(request, model=replace(request.model, thinking=None))
        parts = body(request, self._shape)
        reading = _Reading(heard, key)
        headers = {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}
        await self._post.stream(headers, parts, reading, heard, key)
        return reading.reply(sent=sum(map(len, parts)))

    async def close(self) -> None:
        await self._post.close()


def _may_think(entries: Sequence[Entry]) -> bool:
    """Between calls and their results the provider wants the thoughts that led to the calls: where they are
    missing, it would refuse the request rather than go without."""
    thoughtless = False
    for entry in reversed(entries):
        if not isinstance(entry, Said):
            continue
        if entry.by == "user" or not entry.calls:
            break
        if any(_is_thought(thought) for thought in entry.thoughts):
            return True
        thoughtless = True
    return not thoughtless


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spelled(spec.name), "description": spec.description, "input_schema": spec.schema}


_TOOLS = Tools(_tool)


def _head(request: Request) -> bytes:
    model = request.model
    budget = BUDGETS.get(model.thinking or "", 0)
    head = fields(
        model=model.name,
        stream=True,
        max_tokens=_max_tokens(model, budget),
        temperature=None if budget else model.temperature,
        thinking={"type": "enabled", "budget_tokens": budget} if budget else None,
        cache_control={"type": "ephemeral"},
        tools=_TOOLS(request.tools),
        system=[_text(request.system)] if request.system.strip() else None,
    )
    return head + b'"messages":['


def _max_tokens(model: Model, budget: int) -> int:
    """The limit covers thinking too and must exceed its budget: a smaller one is meant for the words alone."""
    limit = model.max_tokens
    if limit is not None and limit > budget:
        return limit
    return budget + (limit or MAX_TOKENS)


def _unit(unit: Unit, place: Place) -> Sequence[Mapping[str, Any]]:
    messages: list[dict[str, Any]] = []
    spoken = _spoken(unit)
    if spoken:
        if place.first:
            messages.append({"role": "user", "content": [_text(REMOVED)]})
        messages.append({"role": "assistant", "content": spoken})
    answers = [_result(unit, call) for call in unit.calls.values()] + [_text(words) for words in unit.words]
    if answers:
        messages.append({"role": "user", "content": answers})
    elif place.last:
        messages.append({"role": "user", "content": [_text(CONTINUE)]})
    return messages


def _spoken(unit: Unit) -> list[Any]:
    """The model's own blocks: its thoughts first and unchanged, as their signatures demand."""
    blocks: list[Any] = []
    for said in unit.replies:
        blocks += [msgspec.Raw(thought.encode()) for thought in said.thoughts if _is_thought(thought)]
        if said.text.strip():
            blocks.append(_text(said.text))
    calls = [_use(call) for call in unit.calls.values()]
    # Thoughts alone are no message.
    return blocks + calls if calls or unit.text else []


def _use(call: Called) -> dict[str, Any]:
    args = "{}" if not_an_object(call.args) else call.args
    return {
        "type": "tool_use",
        "id": call.id,
        "name": spelled(call.tool),
        "input": msgspec.Raw(plain(args).encode()),
    }


def _result(unit: Unit, call: Called) -> dict[str, Any]:
    text, ok = unit.result(call)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": text}
    return result if ok else {**result, "is_error": True}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


class _Thought(msgspec.Struct, gc=False):
    type: str = ""
    signature: str = ""
    data: str = ""


_THOUGHT = msgspec.json.Decoder(_Thought)


def _is_thought(text: str) -> bool:
    """Whether this is one of this provider's blocks: another's thoughts in the same session are not sent here."""
    try:
        thought = _THOUGHT.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    signed = thought.type == "thinking" and bool(thought.signature)
    return signed or (thought.type == "redacted_thinking" and bool(thought.data))


class _Part(msgspec.Struct, gc=False):
    """A content block, or a piece of one."""

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


class _Error(msgspec.Struct, gc=False):
    type: Any = None
    message: str | None = None


class _Event(msgspec.Struct, gc=False):
    """Any event of a stream, or the whole message of a server that does not stream."""

    type: str = ""
    index: int | None = None
    message: _Message | None = None
    content_block: _Part | None = None
    delta: _Part | None = None
    usage: Any = None
    error: _Error | None = None
    content: list[_Part] | None = None
    model: str | None = None
    stop_reason: str | None = None


_EVENT = msgspec.json.Decoder(_Event)


class _Block:
    """A content block being heard."""

    __slots__ = ("part", "pieces", "signature", "slot")

    def __init__(self, part: _Part, slot: Slot | None) -> None:
        self.part = part
        self.slot = slot
        self.pieces: list[str] = []
        self.signature = part.signature or ""
        """Comes whole with the block, or in pieces after it."""


class _Reading:
    """A stream of message events becoming a reply."""

    def __init__(self, heard: Callable[[Delta], None], key: str) -> None:
        self.finished = False
        self.over = False
        self._key = key
        self._into = Assembly(heard)
        self._blocks: dict[int, _Block] = {}
        self._open: _Block | None = None
        self._usage: dict[str, Any] = {}
        self._stop = Stop.END

    def take(self, events: Sequence[bytes]) -> None:
        try:
            for data in events:
                try:
                    event = self._decoded(data)
                except Trouble:
                    # What follows a reply that was whole before cannot spoil it.
                    if not self.finished:
                        raise
                    continue
                known = _EVENTS.get(event.type)
                if known is not None:
                    known(self, event)
        finally:
            self._into.tell()
        if self._into.full:
            self.finished = self.over = True

    def whole(self, data: bytes) -> None:
        try:
            self._message(data)
        finally:
            self._into.tell()

    def _message(self, data: bytes) -> None:
        event = self._decoded(data)
        if event.type != "message" or event.content is None:
            raise trouble("the model's server sent a document that is no message", INCOMPLETE)
        self._into.model = event.model or ""
        self._count(event.usage)
        for at, part in enumerate(event.content):
            self.begun(_Event(index=at, content_block=part))
        self._ended(event.stop_reason)

    def reply(self, *, sent: int) -> Reply:
        if not self.finished:
            raise trouble("the model's answer broke off before its end", INCOMPLETE)
        self._into.thoughts += [text for block in self._blocks.values() if (text := _thought(block))]
        usage = self._into.used(
            read=count(self._usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
            written=count(self._usage, "output_tokens"),
            cached=count(self._usage, "cache_read_input_tokens"),
            sent=sent,
        )
        return self._into.reply(self._stop, usage)

    def _decoded(self, data: bytes) -> _Event:
        try:
            event = _EVENT.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise trouble("the model's server sent a piece that is no message", INCOMPLETE) from error
        if event.error is not None:
            raise trouble(failure(event.error.message or "", self._key), by_name(event.error.type))
        return event

    def started(self, event: _Event) -> None:
        if event.message is not None:
            self._into.model = event.message.model or ""
            self._count(event.message.usage)
            # At the start it is a placeholder: only the end's count is one.
            self._usage.pop("output_tokens", None)

    def begun(self, event: _Event) -> None:
        part = event.content_block
        if part is None:
            return
        self._into.stop_after(len(self._blocks))
        slot = self._into.call(part.name or "", part.id or "") if part.type == "tool_use" else None
        self._open = block = _Block(part, slot)
        self._blocks[len(self._blocks) if event.index is None else event.index] = block
        if slot is not None and part.input:
            self._into.argue(slot, encode(part.input).decode())
        if part.text:
            self._into.say(part.text)
        if part.data:
            self._into.keep(part.data)
        if part.thinking:
            block.pieces.append(self._into.think(part.thinking))

    def continued(self, event: _Event) -> None:
        block = self._open if event.index is None else self._blocks.get(event.index)
        delta = event.delta
        if delta is None:
            return
        if delta.text:
            self._into.say(delta.text)
        elif block is None:
            return
        elif delta.partial_json and block.slot is not None:
            self._into.argue(block.slot, delta.partial_json)
        elif delta.thinking:
            block.pieces.append(self._into.think(delta.thinking))
        elif delta.signature:
            block.signature += self._into.keep(delta.signature)

    def told(self, event: _Event) -> None:
        self._count(event.usage)
        if event.delta is not None:
            self._ended(event.delta.stop_reason)

    def stopped(self, _: _Event) -> None:
        self.over = True

    def _ended(self, reason: str | None) -> None:
        if reason:
            self.finished = True
            self._stop = STOPS.get(reason, Stop.END)

    def _count(self, usage: Any) -> None:
        """Later counts replace earlier ones: those of the end are totals."""
        self._usage.update({name: value for name, value in counts(usage).items() if value is not None})


_EVENTS: Mapping[str, Callable[[_Reading, _Event], None]] = {
    "message_start": _Reading.started,
    "content_block_start": _Reading.begun,
    "content_block_delta": _Reading.continued,
    "message_delta": _Reading.told,
    "message_stop": _Reading.stopped,
}
"""Pings, ends of blocks and events of a later day say nothing that matters here."""


def _thought(block: _Block) -> str:
    """A block the provider wants back unchanged, as JSON; empty when it is none."""
    if block.part.type == "redacted_thinking" and block.part.data:
        return encode({"type": "redacted_thinking", "data": block.part.data}).decode()
    if block.part.type == "thinking" and block.signature:
        thinking = "".join(block.pieces)
        return encode({"type": "thinking", "thinking": thinking, "signature": block.signature}).decode()
    return ""
