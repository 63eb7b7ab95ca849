"""The deadline of a run: a clock that nobody sets, and that stands while nothing of the run can go on."""

import asyncio
from datetime import timedelta
from math import inf
from types import TracebackType

from retinue.domain.change import replace
from retinue.errors import TimedOut
from retinue.runtime.alarm import Alarm
from retinue.runtime.approvals import Parked
from retinue.runtime.run_context import Desk


class Deadline:
    """Inside it the run is worked; TimedOut when its time is over."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._clock = Alarm()
        self._seconds = desk.run.ask.deadline_seconds

    def __enter__(self) -> None:
        self._clock.__enter__()
        self._wind()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clock.__exit__(kind, error, trace)
        except TimeoutError as late:
            raise self._passed() from late
        if isinstance(error, Parked) and self._left() <= 0:
            # Nothing on the way to it took a turn of the loop, in which the clock could have struck.
            raise self._passed() from error

    async def named(self, seconds: float | None) -> None:
        """A definition's own deadline, where the ask named none: counted from the first start like any other. It is found
        before the first turn, so no time that was waited is forgotten."""
        if self._seconds is not None or seconds is None:
            return
        self._seconds = seconds
        run, ports = self._desk.run, self._desk.ports
        if run.turns or run.started_at is None:
            return
        at = run.started_at + timedelta(seconds=ports.limits.deadline(seconds))
        if at != run.deadline_at:
            await ports.ledger.do(lambda tx: tx.set_run(replace(tx.run(run.id) or run, deadline_at=at)))
            self._desk.run = replace(run, deadline_at=at)
            self._wind()

    def stopped(self) -> None:
        """Nothing of the run can go on: the deadline waits with it."""
        self._clock.set(None)

    def went_on(self, waited: timedelta) -> None:
        run = self._desk.run
        if run.deadline_at is not None:
            self._desk.run = replace(run, deadline_at=run.deadline_at + waited)
        self._wind()

    def _wind(self) -> None:
        """The wall's clock is asked once, and from then on one that nobody sets. A clock that was set back meanwhile
        gives nobody more than the whole time anew."""
        if (left := self._left()) < inf:
            most = self._desk.ports.limits.deadline(self._seconds)
            self._clock.set(asyncio.get_running_loop().time() + min(max(0.0, left), most))

    def _left(self) -> float:
        at = self._desk.run.deadline_at
        return inf if at is None else (at - self._desk.ports.chance.now()).total_seconds()

    def _passed(self) -> TimedOut:
        seconds = self._desk.ports.limits.deadline(self._seconds)
        source = ", set by limits.deadline_seconds" if self._seconds is None else ""
        return TimedOut(f"the deadline passed: {seconds:g} s from the start{source}")
