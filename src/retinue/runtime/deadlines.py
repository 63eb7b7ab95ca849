"""Deadline of a run, measured on the monotonic clock and paused while the run cannot make progress."""

import asyncio
from datetime import timedelta
from math import inf
from types import TracebackType

from msgspec.structs import replace

from retinue.errors import TimedOut
from retinue.runtime.alarm import Timeout
from retinue.runtime.approvals import RunSuspended
from retinue.runtime.run_context import RunContext


class Deadline:
    """Context manager around the work on a run; raises TimedOut when the deadline passes."""

    def __init__(self, run_context: RunContext) -> None:
        self._run_context = run_context
        self._timeout = Timeout()
        self._requested_s = run_context.run.request.deadline_seconds

    def __enter__(self) -> None:
        self._timeout.__enter__()
        self._reschedule()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._timeout.__exit__(kind, error, trace)
        except TimeoutError as timeout_error:
            raise self._timed_out_error() from timeout_error
        if isinstance(error, RunSuspended) and self._remaining_s() <= 0:
            # Nothing on the way here yielded to the event loop, so the timeout could not fire.
            raise self._timed_out_error() from error

    async def apply_definition_deadline(self, seconds: float | None) -> None:
        """Apply the definition's own deadline if the request named none.

        It counts from the first start, like any other. It is applied before the first turn, so no waiting
        time is lost.
        """
        if self._requested_s is not None or seconds is None:
            return
        self._requested_s = seconds
        run, context = self._run_context.run, self._run_context.context
        if run.turns or run.started_at is None:
            return
        deadline_at = run.started_at + timedelta(seconds=context.limits.run_timeout_s(seconds))
        if deadline_at != run.deadline_at:
            await context.ledger.write(
                lambda tx: tx.update_run(replace(tx.get_run(run.id) or run, deadline_at=deadline_at))
            )
            self._run_context.run = replace(run, deadline_at=deadline_at)
            self._reschedule()

    def pause(self) -> None:
        """Pause the deadline while nothing of the run can make progress."""
        self._timeout.reschedule(None)

    def resume(self, waited: timedelta) -> None:
        run = self._run_context.run
        if run.deadline_at is not None:
            self._run_context.run = replace(run, deadline_at=run.deadline_at + waited)
        self._reschedule()

    def _reschedule(self) -> None:
        """Read the wall clock once, and from then on use the loop's clock.

        If the wall clock was set back meanwhile, the run gets at most its whole time again.
        """
        if (remaining_s := self._remaining_s()) < inf:
            max_s = self._run_context.context.limits.run_timeout_s(self._requested_s)
            self._timeout.reschedule(asyncio.get_running_loop().time() + min(max(0.0, remaining_s), max_s))

    def _remaining_s(self) -> float:
        deadline_at = self._run_context.run.deadline_at
        return (
            inf
            if deadline_at is None
            else (deadline_at - self._run_context.context.clock.now()).total_seconds()
        )

    def _timed_out_error(self) -> TimedOut:
        seconds = self._run_context.context.limits.run_timeout_s(self._requested_s)
        source = ", set by limits.deadline_seconds" if self._requested_s is None else ""
        return TimedOut(f"the deadline passed: {seconds:g} s from the start{source}")
