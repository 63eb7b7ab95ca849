"""A reply put together from the pieces of a stream, within its bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_REPLY_BYTES
from retinue.domain.model_turn import Delta, Reply, Stop, Wish
from retinue.domain.run import Usage
from retinue.providers.errors import MAX_MESSAGE, quoted
from retinue.providers.request_encoding import not_an_object

MAX_CALLS = 4096
"""Calls of one reply that are kept; the runtime's own limit lies far below."""
HIDDEN_TOKENS = 1_000_000
"""What a provider may count beyond the bytes that were sent or heard, hidden thinking above all; a count
further above is a mistake."""
MAX_BLOCKS = 2 * MAX_CALLS
MAX_NAME = 256
"""Characters of a tool's or a model's name: a longer one names nothing."""
_KEPT_OF_TOO_LONG = 2_000
_CHARS_PER_TOKEN = 4
_ABSURD = 1 << 53


@dataclass(slots=True, kw_only=True)
class Slot:
    """A call being heard."""

    name: str = ""
    id: str = ""
    """The provider's: it tells fragments apart and is then dropped."""
    pieces: list[str]
    size: int = 0


class Assembly:
    """Collects what one stream says. Once `full`, the rest of the stream is not worth reading."""

    __slots__ = ("_fresh", "_heard", "_kind", "_over", "_size", "_texts", "model", "slots", "thoughts")

    def __init__(self, heard: Callable[[Delta], None]) -> None:
        self._heard = heard
        self._texts: list[str] = []
        self._fresh: list[str] = []
        """Pieces of one kind that nobody was told of yet."""
        self._kind = ""
        self._size = 0
        self._over = ""
        self.slots: list[Slot] = []
        self.thoughts: list[str] = []
        self.model = ""

    @property
    def full(self) -> bool:
        return bool(self._over)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def say(self, piece: str) -> None:
        if piece := self.keep(piece):
            if self._kind != "text":
                self._turn("text")
            self._texts.append(piece)
            self._fresh.append(piece)

    def think(self, piece: str) -> str:
        if piece := self.keep(piece):
            if self._kind != "thinking":
                self._turn("thinking")
            self._fresh.append(piece)
        return piece

    def tell(self) -> None:
        """What came together is told together, however many pieces the model's server made of it."""
        if self._fresh:
            together, self._fresh = "".join(self._fresh), []
            self._heard(_DELTAS[self._kind](together))

    def _turn(self, kind: str) -> None:
        """What is said after another kind of words is told after them."""
        self.tell()
        self._kind = kind

    def call(self, name: str, provider_id: str = "") -> Slot:
        slot = Slot(name=name[:MAX_NAME], id=provider_id, pieces=[])
        if len(self.slots) < MAX_CALLS:
            self.slots.append(slot)
        else:
            self._over = f"more than {MAX_CALLS} calls in one reply; the rest was left out"
        return slot

    def stop_after(self, blocks: int) -> None:
        """A reply of blocks without content is bounded too."""
        if blocks > MAX_BLOCKS:
            self._over = f"more than {MAX_BLOCKS} blocks in one reply; the rest was left out"

    def argue(self, slot: Slot, piece: str) -> None:
        if piece := self.keep(piece):
            slot.size += len(piece)
            if slot.size <= MAX_ARGUMENT_BYTES:
                slot.pieces.append(piece)
            if self._kind != "calling":
                self._turn("calling")
            self._fresh.append(piece)

    def reply(self, stop: Stop, usage: Usage) -> Reply:
        """The finished reply; what was cut can never run."""
        if self._over:
            stop = Stop.LENGTH
        wishes = () if stop is Stop.REFUSED else self._wishes(cut=stop is Stop.LENGTH)
        if wishes and stop is Stop.END:
            stop = Stop.TOOLS
        if not wishes and stop is Stop.TOOLS:
            stop = Stop.END
        return Reply(
            text=self.text,
            wishes=wishes,
            model=_named(self.model[: 4 * MAX_MESSAGE]),
            usage=usage,
            stop=stop,
            # A thought that was cut is not the one that was signed.
            thoughts=() if self._over else tuple(self.thoughts),
            cut=self._over,
        )

    def used(self, *, read: int, written: int, cached: int, sent: int) -> Usage:
        """The provider's counts where they can be true, else our own estimate."""
        read = _plausible(read, sent)
        return Usage(input=read, output=_plausible(written, self._size), cached=min(cached, read))

    def _wishes(self, *, cut: bool) -> tuple[Wish, ...]:
        last = len(self.slots) - 1
        return tuple(_wish(slot, cut=cut and at == last) for at, slot in enumerate(self.slots))

    def keep(self, piece: str) -> str:
        """As much of a piece as there is room for."""
        if self._over:
            return ""
        size = len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self._size + size > MAX_REPLY_BYTES:
            self._over = f"the reply is longer than {MAX_REPLY_BYTES:,} bytes; the rest was left out"
            size = MAX_REPLY_BYTES - self._size
            piece = piece.encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")
        self._size += size
        return piece


_DELTAS: Mapping[str, Callable[[str], Delta]] = {
    "text": lambda words: Delta(text=words),
    "thinking": lambda words: Delta(thinking=words),
    "calling": lambda words: Delta(calling=words),
}


@lru_cache(maxsize=64)
def _named(model: str) -> str:
    """A model's own name for itself, as a person may read it: it is the same in nearly every reply."""
    return quoted(model)[:MAX_NAME]


def counts(usage: Any) -> Mapping[str, Any]:
    """Counts as a server sent them; anything that holds none is as good as nothing."""
    return cast("Mapping[str, Any]", usage) if isinstance(usage, dict) else {}


def count(usage: Mapping[str, Any], *names: str) -> int:
    """The sum of these counts; anything that is no number counts as none."""
    total = 0
    for name in names:
        value = usage.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _ABSURD:
            total += int(value)
    return total


def _plausible(tokens: int, size: int) -> int:
    if tokens <= 0 or tokens > size + HIDDEN_TOKENS:
        return -(-size // _CHARS_PER_TOKEN)
    return tokens


def _wish(slot: Slot, *, cut: bool) -> Wish:
    if slot.size > MAX_ARGUMENT_BYTES:
        head = "".join(slot.pieces)[:_KEPT_OF_TOO_LONG]
        return Wish(
            tool=slot.name, args=head, broken=f"its arguments are longer than {MAX_ARGUMENT_BYTES:,} bytes"
        )
    args = "".join(slot.pieces)
    if not args.strip():
        return Wish(tool=slot.name, args="{}", broken="cut at the output limit" if cut else "")
    broken = not_an_object(args)
    return Wish(tool=slot.name, args=args, broken="cut at the output limit" if cut and broken else broken)
