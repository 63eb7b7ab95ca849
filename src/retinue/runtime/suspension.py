"""Suspend a run: inside its tool calls, or until a person resumes it; and save its counters."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.run import CANCEL_REASONS, Reason, Run, Status, WaitReason
from retinue.errors import Cancelled, RetinueError
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.run_clock import stop_idle_parent_clocks, suspended_for_children
from retinue.runtime.run_events import make_event
from retinue.runtime.run_outcome import Suspension


async def suspend_run(run: Run, context: RuntimeContext, suspend: Callable[[Run, Transaction], bool]) -> bool:
    """Suspend a run that is running; False if it must continue.

    `suspend` gets the run with its latest counters, and returns False if there is nothing to wait for. The same
    transaction checks that and whether another process has asked to cancel the run, because a suspended run would
    not notice either.

    Raises:
        Cancelled: another process asked the run to stop.
    """

    def step(tx: Transaction) -> bool:
        current = tx.get_run(run.id)
        if current is None or current.status is not Status.RUNNING:
            return True
        if current.reason in CANCEL_REASONS:
            raise Cancelled("cancelled")
        return suspend(with_counters(current, run), tx)

    return await context.ledger.write(step)


def suspend_for_person(run: Run, reason: Reason, error: str, tx: Transaction, context: RuntimeContext) -> Run:
    """Suspend a run until a person resumes or cancels it."""
    at = context.clock.now()
    suspended = replace(
        run.suspend(WaitReason.PERSON, at=at, between_turns=True), reason=reason, error=context.redact(error)
    )
    save_suspended(suspended, tx, context, at, reason=str(reason), error=suspended.error)
    return suspended


def save_suspended(
    suspended: Run, tx: Transaction, context: RuntimeContext, at: datetime, **event_data: str
) -> None:
    """Save a run that was suspended now, and stop the clocks of parents that wait only for stopped runs."""
    tx.update_run(suspended)
    if suspended.deadline_at is None:
        stop_idle_parent_clocks(suspended, tx, at)
    tx.emit(make_event("run.state", suspended, context, phase=str(suspended.waiting_for), **event_data))


async def suspend_in_tool_call(run: Run, context: RuntimeContext, suspension: Suspension) -> bool:
    """Suspend a run inside its tool calls; False if what it would wait for has already arrived."""

    def suspend(current: Run, tx: Transaction) -> bool:
        at = context.clock.now()
        suspended = _suspended_for(current, suspension, tx, at)
        if suspended is None:
            return False
        details = {"question": suspension.question} if suspended.waiting_for is WaitReason.PERSON else {}
        save_suspended(suspended, tx, context, at, **details)
        return True

    return await suspend_run(run, context, suspend)


def _suspended_for(run: Run, suspension: Suspension, tx: Transaction, at: datetime) -> Run | None:
    """Return the run suspended for what it waits for, a person first; None if a call can continue.

    Approvals of later calls of the reply do not count: the run does not wait for them yet.
    """
    if suspension.calls_to_approve:
        pending = {each.call for each in tx.find_approvals(run=run.id, state=[ApprovalState.PENDING])}
        is_pending = pending.issuperset(suspension.calls_to_approve)
        return run.suspend(WaitReason.APPROVAL, at=at) if is_pending else None
    if suspension.question:
        return run.suspend(WaitReason.PERSON, at=at)
    if not tx.has_live_children(run.id, awaited=True):
        return None
    return suspended_for_children(run, tx, at)


async def save_counters(run: Run, context: RuntimeContext) -> None:
    """Save the counters of a run that is being stopped; the code that stopped it sets the status.

    The transcript has the counts too, so a failed write to the ledger is ignored.
    """
    with suppress(RetinueError):
        await context.ledger.write(lambda tx: tx.update_run(with_counters(tx.get_run(run.id) or run, run)))


def with_counters(row: Run, run: Run) -> Run:
    return replace(
        row,
        turns=run.turns,
        tool_calls=run.tool_calls,
        effective_calls=run.effective_calls,
        usage=run.usage,
        long_prompt_usage=run.long_prompt_usage,
        text=run.text,
        model=run.model or row.model,
        scope_hash=run.scope_hash,
        report=run.report,
        deadline_at=run.deadline_at if row.status is Status.RUNNING else row.deadline_at,
        recovery=run.recovery if row.status is Status.RUNNING else row.recovery,
    )
