"""Suspend a run inside its tool calls, and save its counters."""

from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.run import CANCEL_REASONS, Run, Status, WaitReason
from retinue.errors import Cancelled, RetinueError
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_clock import stop_idle_parent_clocks, suspended_for_children
from retinue.runtime.run_events import make_event


async def suspend_in_tool_call(run: Run, context: RuntimeContext, question: str = "") -> bool:
    """Suspend a run inside its tool calls; False if there is nothing to wait for any more.

    The same transaction checks for answers that have already arrived, so none is missed, and for another
    process's request to cancel, which a suspended run would not notice.

    Raises:
        Cancelled: another process asked the run to stop.
    """

    def step(tx: Transaction) -> bool:
        current = tx.get_run(run.id)
        if current is None or current.status is not Status.RUNNING:
            return True
        if current.reason in CANCEL_REASONS:
            raise Cancelled("cancelled")
        at = context.clock.now()
        suspended = _suspended_for(with_counters(current, run), tx, at, has_question=bool(question))
        if suspended is None:
            return False
        tx.update_run(suspended)
        if suspended.deadline_at is None:
            stop_idle_parent_clocks(suspended, tx, at)
        details = {"question": question} if suspended.waiting_for is WaitReason.PERSON else {}
        tx.emit(make_event("run.state", suspended, context, phase=str(suspended.waiting_for), **details))
        return True

    return await context.ledger.write(step)


def _suspended_for(run: Run, tx: Transaction, at: datetime, *, has_question: bool) -> Run | None:
    """Return the run suspended for what it waits for, a person first; None if it waits for nothing."""
    if tx.find_approvals(run=run.id, state=[ApprovalState.PENDING]):
        return run.suspend(WaitReason.APPROVAL, at=at)
    if has_question:
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


async def record_progress(attempt: RunAttempt) -> None:
    """Record that the run made progress since its process last died, so that this crash is not counted again."""
    recovery = attempt.run.recovery.record_progress()

    def step(tx: Transaction) -> None:
        current = tx.get_run(attempt.run.id)
        if current is not None and current.status is Status.RUNNING:
            tx.update_run(replace(current, recovery=recovery))

    attempt.run = replace(attempt.run, recovery=recovery)
    await attempt.context.ledger.write(step)


def with_counters(row: Run, run: Run) -> Run:
    return replace(
        row,
        turns=run.turns,
        tool_calls=run.tool_calls,
        effective_calls=run.effective_calls,
        usage=run.usage,
        text=run.text,
        model=run.model or row.model,
        scope_hash=run.scope_hash,
        deadline_at=run.deadline_at if row.status is Status.RUNNING else row.deadline_at,
        recovery=run.recovery if row.status is Status.RUNNING else row.recovery,
    )
