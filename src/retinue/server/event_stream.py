"""A stream: what one client wants to hear, and what it has not taken yet."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from retinue.domain.event import Event
from retinue.domain.value import value

ALL = "all"
NONE = "none"
STILL = "still"
"""In the state of a request's scope: what says whether the key that it came with is one still."""
DELTAS = frozenset({"text.delta", "thinking.delta", "text.discarded"})

MOST = 1024
"""Events that may wait for a client."""
MOST_BYTES = 8 << 20
"""And what they may weigh together."""
GRACE_SECONDS = 2.0
"""How long one that was cut off may take to go by itself."""


@value
class Wanted:
    """Which events a stream carries. Those who want the same share the work of it."""

    session: str = ""
    """Only of this session, and of the runs below it."""
    deltas: str = ALL
    """Whose words as they come: `all`, `none`, or a session's id."""

    def takes(self, event: Event, heard_in: Collection[str]) -> bool:
        """`heard_in`: the sessions of the event's run, and of those that asked for it."""
        if self.session and self.session not in heard_in:
            return False
        return event.kind not in DELTAS or self.deltas in (ALL, event.session)

    @property
    def looks_at(self) -> str:
        """The session whose conversation is looked at; empty where none is."""
        return self.session or ("" if self.deltas in (ALL, NONE) else self.deltas)


def _still() -> bool:
    return True


class Stream:
    """One client. Who does not keep up is cut off: it comes back and says where it was."""

    def __init__(self, wanted: Wanted, *, after: int, until: int) -> None:
        self.wanted = wanted
        self.after = after
        self.until = until
        """What lies between the two stands in the ledger; later events are put here as they come."""
        self.ended = False
        self.cut = False
        self.abort: Callable[[], None] | None = None
        """Takes the connection away without waiting for the other side."""
        self.still: Callable[[], bool] = _still
        """Whether whoever listens may: a key can be taken back meanwhile."""
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._count = 0
        self._bytes = 0
        self._more = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many events it has not taken."""
        return self._count

    def put(self, raw: bytes, count: int) -> None:
        """One event, or several in one piece."""
        if self.ended:
            return
        full = self._count + count > MOST or self._bytes + len(raw) > MOST_BYTES
        if full and self._pieces:
            self.cut_off()
            return
        self._pieces.append((raw, count))
        self._count += count
        self._bytes += len(raw)
        self._more.set()

    async def take(self) -> bytes:
        """All that waits; nothing: it is over."""
        while not self._pieces and not self.ended:
            self._more.clear()
            await self._more.wait()
        raw = self._pieces[0][0] if len(self._pieces) == 1 else b"".join(each for each, _ in self._pieces)
        self._forget()
        return raw

    def end(self) -> None:
        """What waits is still sent."""
        self.ended = True
        self._more.set()

    def cut_off(self) -> None:
        """What waits is forgotten at once, and soon the connection is gone."""
        if self.cut:
            return
        self.cut = True
        self.leave()
        if self.abort is not None:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self.abort)

    def leave(self) -> None:
        """The other side is gone: nothing waits for it any more."""
        self._forget()
        self.end()

    def _forget(self) -> None:
        self._pieces.clear()
        self._count = self._bytes = 0
