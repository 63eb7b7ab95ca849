"""The bytes of a request: what was encoded for one turn is not encoded again for the next."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Model, Request
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry
from retinue.domain.value import value
from retinue.providers.message_order import Unit, units

_ENCODER = msgspec.json.Encoder()
_CHUNK = 256 * 1024
"""Sealed bytes are kept in pieces of about this size, so that growing never copies the whole history."""

_HEADS = 8
_END = b"]}"
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

MadeFor = tuple[Model, str, tuple[ToolSpec, ...]]


@value
class Place:
    """Where in its conversation a unit stands: some providers want the first or the last to be special."""

    first: bool
    last: bool


_FIRST, _AMID = Place(first=True, last=False), Place(first=False, last=False)
_ONLY, _LAST = Place(first=True, last=True), Place(first=False, last=True)


@value
class Shape:
    """How one provider writes a request: all that stands before the messages, with their bracket opened, and
    the messages of one unit, at least one for the last."""

    name: str
    head: Callable[[Request], bytes]
    unit: Callable[[Unit, Place], Sequence[Mapping[str, Any]]]
    heads: list[tuple[MadeFor, bytes]] = field(default_factory=list["tuple[MadeFor, bytes]"])
    """The latest, for conversations of the same agent to share."""

    def headed(self, request: Request, made_for: MadeFor) -> bytes:
        for known, head in self.heads:
            if known == made_for:
                return head
        head = self.head(request)
        self.heads[:] = [(made_for, head), *self.heads[: _HEADS - 1]]
        return head


class Tools:
    """How one provider writes a list of tools, with the latest that were written: agents that are told different things
    may have the same tools."""

    def __init__(self, tool: Callable[[ToolSpec], Mapping[str, Any]]) -> None:
        self._tool = tool
        self._known: deque[tuple[tuple[ToolSpec, ...], msgspec.Raw]] = deque(maxlen=_HEADS)

    def __call__(self, specs: tuple[ToolSpec, ...]) -> msgspec.Raw | None:
        """None where there are none."""
        if not specs:
            return None
        for known, written in tuple(self._known):
            if known == specs:
                return written
        written = msgspec.Raw(encode([self._tool(spec) for spec in specs]))
        self._known.appendleft((specs, written))
        return written


class Sealed:
    """The part of a conversation that no later entry can change, as bytes, each message followed by a comma."""

    __slots__ = ("_open", "_pieces", "count", "head", "last", "made_for")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._open = bytearray()
        self.count = 0
        """How many entries are in it."""
        self.last: Entry | None = None
        self.head = b""
        self.made_for: MadeFor | None = None

    def add(self, encoded: bytes) -> None:
        self._open += encoded
        if len(self._open) > _CHUNK:
            self._pieces.append(bytes(self._open))
            self._open = bytearray()

    def parts(self) -> list[bytes | bytearray]:
        """The last of them still grows: whoever keeps it makes a copy."""
        return [*self._pieces, self._open]

    def covers(self, entries: Sequence[Entry]) -> bool:
        """Entries only grow at their end while a conversation is resident; anything else begins anew."""
        if self.count == 0:
            return True
        return self.count <= len(entries) and entries[self.count - 1] is self.last


def body(request: Request, shape: Shape) -> list[bytes]:
    """The request's bytes in pieces. All units but the last are sealed: only the last can still grow."""
    sealed = cast("Sealed | None", request.memo.get(shape.name))
    if sealed is None or not sealed.covers(request.entries):
        sealed = request.memo[shape.name] = Sealed()
    made_for = (request.model, request.system, request.tools)
    if sealed.made_for != made_for:
        sealed.head = shape.headed(request, made_for)
        sealed.made_for = made_for
    tail = _seal(sealed, request.entries, shape)
    return _packed([sealed.head, *sealed.parts(), tail, _END])


def _seal(sealed: Sealed, entries: Sequence[Entry], shape: Shape) -> bytes:
    """Adds what can be added and gives back the last unit's messages."""
    first = sealed.count == 0
    following = units(entries, sealed.count)
    unit = next(following)
    for later in following:
        sealed.add(_messages(shape, unit, _FIRST if first else _AMID, b","))
        sealed.count = later.start
        sealed.last = entries[later.start - 1]
        first = False
        unit = later
    return _messages(shape, unit, _ONLY if first else _LAST, b"")


def encode(value: Any) -> bytes:
    """JSON as providers take it: a lone surrogate, which no UTF-8 can hold, becomes U+FFFD."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_mended(value))


def plain(text: str) -> str:
    """The text with every lone surrogate replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two halves that stand together are the character they mean; a half alone is none.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def fields(**values: Any) -> bytes:
    """The opening of an object with these fields, left open for more; what is None is left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return encode(given)[:-1] + b","


def not_an_object(args: str) -> str:
    """Why these arguments are not one JSON object; empty when they are."""
    try:
        _OBJECT.decode(plain(args))
    except msgspec.MsgspecError:
        return "its arguments are not a JSON object"
    except RecursionError:
        return "its arguments are nested too deeply"
    return ""


def _messages(shape: Shape, unit: Unit, place: Place, end: bytes) -> bytes:
    found = shape.unit(unit, place)
    return encode(found)[1:-1] + end if found else b""


def _packed(parts: list[bytes | bytearray]) -> list[bytes]:
    """A small request is one piece, so that it leaves in one write."""
    return [b"".join(parts)] if sum(map(len, parts)) <= _CHUNK else [bytes(part) for part in parts if part]


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {_mended(key): _mended(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in cast("Sequence[Any]", value)]
    return value
