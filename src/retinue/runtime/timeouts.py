"""Timeouts of a run: its deadline, the time of a reply without tool calls, and interrupts."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from math import inf
from types import TracebackType

from msgspec.structs import replace

from retinue.domain.model_turn import ModelReply, ReplyDelta
from retinue.errors import ModelFailed, TimedOut
from retinue.runtime.run_attempt import RunAttempt

STUCK_ERROR = "Agent stuck: no tool calls for {n} seconds (timeout: {limit}s)"


class Deadline:
    """Context manager around the work on a run; raises TimedOut when the deadline passes.

    Measured on the event loop's clock, and paused while the run cannot make progress.
    """

    def __init__(self, attempt: RunAttempt) -> None:
        self._attempt = attempt
        self._timeout: asyncio.Timeout | None = None
        self._requested_s = attempt.run.request.deadline_seconds
        self._paused_at: float | None = None
        """Event-loop time since which the run cannot make progress."""

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self._reschedule()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is None:
            return
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError as timeout_error:
            raise self._timed_out_error() from timeout_error

    def raise_if_passed(self) -> None:
        """Raise TimedOut if the deadline has passed before the event loop could raise it."""
        if self._paused_at is None and self._remaining_s() <= 0:
            raise self._timed_out_error()

    async def apply_definition_deadline(self, seconds: float | None) -> None:
        """Apply the definition's own deadline before the first turn, if the request named none."""
        if self._requested_s is not None or seconds is None:
            return
        self._requested_s = seconds
        run, context = self._attempt.run, self._attempt.context
        if run.turns or run.started_at is None or run.deadline_at is None:
            return
        default, own = (timedelta(seconds=context.limits.run_timeout_s(each)) for each in (None, seconds))
        if run.deadline_at - run.started_at == default:
            deadline_at = run.started_at + own
        else:  # the clock was stopped since the first start
            deadline_at = min(run.deadline_at, context.clock.now() + own)
        if deadline_at != run.deadline_at:
            await context.ledger.write(
                lambda tx: tx.update_run(replace(tx.get_run(run.id) or run, deadline_at=deadline_at))
            )
            self._attempt.run = replace(run, deadline_at=deadline_at)
            self._reschedule()

    def pause(self) -> None:
        """Pause the deadline while the run cannot make progress."""
        if self._paused_at is None:
            self._paused_at = asyncio.get_running_loop().time()
            _reschedule_timeout(self._timeout, None)

    def resume(self) -> None:
        """Let the deadline count again; the pause is added to it."""
        if self._paused_at is None:
            return
        waited = timedelta(seconds=asyncio.get_running_loop().time() - self._paused_at)
        self._paused_at = None
        run = self._attempt.run
        if run.deadline_at is not None:
            self._attempt.run = replace(run, deadline_at=run.deadline_at + waited)
        self._reschedule()

    def _reschedule(self) -> None:
        """Read the wall clock once, and from then on use the loop's clock.

        If the wall clock was set back meanwhile, the run gets at most its whole time again.
        """
        if self._paused_at is None and (remaining_s := self._remaining_s()) < inf:
            max_s = self._attempt.context.limits.run_timeout_s(self._requested_s)
            when = asyncio.get_running_loop().time() + min(max(0.0, remaining_s), max_s)
            _reschedule_timeout(self._timeout, when)

    def _remaining_s(self) -> float:
        deadline_at = self._attempt.run.deadline_at
        return (
            inf if deadline_at is None else (deadline_at - self._attempt.context.clock.now()).total_seconds()
        )

    def _timed_out_error(self) -> TimedOut:
        seconds = self._attempt.context.limits.run_timeout_s(self._requested_s)
        source = ", set by limits.deadline_seconds" if self._requested_s is None else ""
        return TimedOut(f"deadline exceeded: {seconds:g} s of work{source}")


class TurnInterrupted(Exception):
    """Raised when a person interrupts the reply in progress."""


class TurnTimer:
    """Applies time limits to a reply, from its first output to its end, and stops it on an interrupt.

    The timer is stopped while the run waits for the model, tools, children or people.
    """

    def __init__(self) -> None:
        self.idle_timeout_s = 0.0
        """Longest time between two outputs; 0: no limit."""
        self.reply_timeout_s = 0.0
        """Longest time from the first output to a tool call or the end; 0: no limit."""
        self._timeout: asyncio.Timeout | None = None
        self._first_output_at: float | None = None
        self._latest_output_at = 0.0
        self.interrupted = False

    async def run_turn(self, turn: Awaitable[ModelReply]) -> ModelReply:
        """Await one turn.

        Raises:
            ModelFailed: the reply exceeded a time limit.
            TurnInterrupted: a person interrupted.
        """
        timeout = self._timeout = asyncio.timeout(None)
        self._first_output_at = None
        try:
            async with timeout:
                return await turn
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if self.interrupted:
                raise TurnInterrupted from None
            raise ModelFailed(self._stuck_error(), reason="idle") from error
        finally:
            self._timeout = None

    def on_delta(self, delta: ReplyDelta) -> None:
        """Start the timer at the first output; stop it while the reply is retried or a CLI agent acts."""
        if self.interrupted or not (self.idle_timeout_s or self.reply_timeout_s):
            return
        if delta.is_discarded or delta.wait_reason or delta.provider_tool_call is not None:
            self._first_output_at = None
            _reschedule_timeout(self._timeout, None)
        elif delta.text or delta.thinking or delta.tool_arguments:
            self._latest_output_at = asyncio.get_running_loop().time()
            if self._first_output_at is None:
                self._first_output_at = self._latest_output_at
            _reschedule_timeout(self._timeout, self._next_limit_at(self._first_output_at))

    def interrupt_turn(self) -> None:
        """Stop the reply in progress; running tools are allowed to finish."""
        if not self.interrupted:
            self.interrupted = True
            _reschedule_timeout(self._timeout, asyncio.get_running_loop().time())

    def _next_limit_at(self, first_output_at: float) -> float:
        return min(
            self._latest_output_at + (self.idle_timeout_s or inf),
            first_output_at + (self.reply_timeout_s or inf),
        )

    def _stuck_error(self) -> str:
        now = asyncio.get_running_loop().time()
        first_output_at = now if self._first_output_at is None else self._first_output_at
        is_idle = self._latest_output_at + (self.idle_timeout_s or inf) <= now
        limit_s = self.idle_timeout_s if is_idle else self.reply_timeout_s
        return STUCK_ERROR.format(n=round(now - first_output_at), limit=f"{limit_s:g}")


def _reschedule_timeout(timeout: asyncio.Timeout | None, when: float | None) -> None:
    """Reschedule a timeout; no effect if it is not running or has expired."""
    if timeout is not None and not timeout.expired():
        timeout.reschedule(when)
