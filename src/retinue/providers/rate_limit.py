"""The gate before a model that has too much to do: everyone waits, and one at a time tries."""

import asyncio


class Gate:
    """Open until the model says that it is asked too often. Then nobody asks before the time it named; after
    that a single visitor tries, and its success opens the gate for all."""

    __slots__ = ("_probe", "_waiting", "refusals", "shut", "until")

    def __init__(self) -> None:
        self.shut = False
        self.until = 0.0
        """The loop's time before which nobody may try."""
        self.refusals = 0
        """How often in a row the gate was shut: those who asked together are refused once."""
        self._probe: Visit | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def enter(self) -> "Visit | None":
        """A visit, or None while one has to wait for `changed`."""
        if not self.shut:
            return Visit(self)
        if self._probe is not None or asyncio.get_running_loop().time() < self.until:
            return None
        self._probe = Visit(self)
        return self._probe

    async def changed(self) -> None:
        """Until it is worth trying to enter again."""
        loop = asyncio.get_running_loop()
        seconds = self.until - loop.time()
        if seconds > 0:
            await asyncio.sleep(seconds)
        elif self._probe is not None:
            waiting = loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def close(self, visit: "Visit", seconds: float) -> None:
        """The visitor was refused. One that set out before the gate was last shut brings no news."""
        until = asyncio.get_running_loop().time() + seconds
        if visit.round == self.refusals:
            self.refusals += 1
            self.until = until
        else:
            self.until = max(self.until, until)
        self.shut = True

    def open(self, visit: "Visit") -> None:
        if self.shut and visit.round == self.refusals:
            self.shut = False
            # What becomes of this visit from here on is news again.
            self.refusals = visit.round = 0
            self._wake()

    def leave(self, visit: "Visit") -> None:
        """However a visit ends, cancelled included, the next may try."""
        if visit is self._probe:
            self._probe = None
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Visit:
    """One attempt's passage, which remembers how the gate stood when it set out."""

    __slots__ = ("_gate", "round")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.round = gate.refusals

    def opened(self) -> None:
        self._gate.open(self)

    def refused(self, seconds: float) -> None:
        self._gate.close(self, seconds)

    def left(self) -> None:
        self._gate.leave(self)
