"""Suspend a run inside its tool calls, and save its counters."""

from contextlib import suppress

from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.run import CANCEL_REASONS, LIVE_STATUSES, Run, Status, WaitReason
from retinue.errors import Cancelled, RetinueError
from retinue.interfaces import RuntimeContext, Transaction
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
        suspended = _suspended_for(with_counters(current, run), tx, has_question=bool(question))
        if suspended is None:
            return False
        tx.update_run(suspended)
        details = {"question": question} if suspended.waiting_for is WaitReason.PERSON else {}
        tx.emit(make_event("run.state", suspended, context, phase=str(suspended.waiting_for), **details))
        return True

    return await context.ledger.write(step)


def _suspended_for(run: Run, tx: Transaction, *, has_question: bool) -> Run | None:
    """Return the run suspended for what it waits for, a person first; None if it waits for nothing."""
    if tx.find_approvals(run=run.id, state=[ApprovalState.PENDING]):
        return run.suspend(WaitReason.APPROVAL)
    if has_question:
        return run.suspend(WaitReason.PERSON)
    children = tx.find_runs(parent_run=run.id, awaited=True, status=LIVE_STATUSES)
    if not children:
        return None
    wake_times = [run.deadline_at, *(each.request.wait_until for each in children)]
    return run.suspend(
        WaitReason.CHILD, wake_at=min((time for time in wake_times if time is not None), default=None)
    )


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
        text=run.text,
        model=run.model or row.model,
        scope_hash=run.scope_hash,
    )
