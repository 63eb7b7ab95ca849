"""What stops a turn before its reply is whole: an agent that only talks, or a person who interrupts."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from retinue.domain.model_turn import Delta, Reply
from retinue.errors import ModelFailed
from retinue.runtime.alarm import Alarm

STUCK = "Agent stuck: no tool calls for {n} seconds (timeout: {most}s)"


class Struck(Exception):
    """A person interrupts, and the reply that was on its way is given up."""


class Stopwatch:
    """Runs from the first piece of a reply to its end: not while the model is waited for, and not while tools, children
    or people are. It costs no task, and nothing at all while nobody speaks."""

    def __init__(self) -> None:
        self.idle_seconds: float | None = None
        """None: it may talk as long as it likes."""
        self._turn = Alarm()
        self._since: float | None = None
        self.struck = False

    async def over(self, turn: Awaitable[Reply]) -> Reply:
        """One turn. ModelFailed: it came to nothing in its time. Struck: a person interrupted."""
        alarm = self._turn = Alarm()
        self._since = None
        try:
            with alarm:
                return await turn
        except TimeoutError as error:
            if not alarm.rang:
                raise
            if self.struck:
                raise Struck from None
            raise ModelFailed(self._stuck(), reason="idle") from error

    def heard(self, delta: Delta) -> None:
        """The first piece sets it going; a reply that is asked for anew is waited for again, and whoever acts does not
        only talk."""
        if self.idle_seconds is None or self.struck:
            return
        if delta.discarded or delta.waiting or delta.act is not None:
            self._since = None
            self._turn.set(None)
        elif self._since is None and (delta.text or delta.thinking or delta.calling):
            self._since = asyncio.get_running_loop().time()
            self._turn.set(self._since + self.idle_seconds)

    def strike(self) -> None:
        """A person interrupts: a reply on its way ends now, and what is done meanwhile is let finish."""
        if not self.struck:
            self.struck = True
            self._turn.set(asyncio.get_running_loop().time())

    def _stuck(self) -> str:
        now = asyncio.get_running_loop().time()
        return STUCK.format(n=round(now - (self._since or now)), most=f"{self.idle_seconds:g}")


class Interruptions:
    """Who of those at work in this process is to be told that a person interrupts."""

    def __init__(self) -> None:
        self._at_work: dict[str, Callable[[], None]] = {}

    @contextmanager
    def reaching(self, run_id: str, strike: Callable[[], None]) -> Generator[None]:
        self._at_work[run_id] = strike
        try:
            yield
        finally:
            self._at_work.pop(run_id, None)

    def strike(self, run_id: str) -> None:
        if (strike := self._at_work.get(run_id)) is not None:
            strike()
