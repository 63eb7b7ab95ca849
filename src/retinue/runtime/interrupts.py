"""Interrupt a run: the run and its children end with a summary."""

from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.run import CANCEL_REASONS, LIVE_STATUSES, ClaimResult, Reason, Run, Status, WaitReason
from retinue.errors import NotFound
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.interrupt_registry import InterruptRegistry
from retinue.runtime.recovery import time_of_death
from retinue.runtime.run_clock import start_parent_clocks
from retinue.runtime.run_end import RunsToSubmit, mark_finished

NOT_STARTED_MESSAGE = "interrupted before it started"


async def interrupt_run(run_id: str, context: RuntimeContext) -> Run:
    """Interrupt a run and its children.

    The request stays in the run's row until the run has ended, so that its process, or one that resumes it
    after a crash, sees it. A run that waits for children continues when they have summarised; any other waiting
    run continues now; a run that never started is cancelled.
    """
    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> Run:
        to_submit.runs.clear()
        run = tx.get_run(run_id)
        if run is None:
            raise NotFound(f"Run {run_id} not found.")
        if run.status.is_final or run.reason in CANCEL_REASONS:
            return run
        if run.status is Status.QUEUED and run.started_at is None:
            return mark_finished(
                run,
                Status.CANCELLED,
                tx,
                context,
                to_submit,
                reason=Reason.INTERRUPTED,
                error=NOT_STARTED_MESSAGE,
            )
        return _mark_interrupted(run, tx, context, to_submit)

    def on_committed(_run: Run) -> None:
        to_submit.submit(context)
        context.worker.check_requests()

    run = await context.ledger.write(step, on_committed)
    for child in await context.ledger.read(lambda tx: tx.find_runs(parent_run=run_id, status=LIVE_STATUSES)):
        if child.reason is not Reason.INTERRUPTED:
            await interrupt_run(child.id, context)
    return run


def _mark_interrupted(run: Run, tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit) -> Run:
    """Mark the run as interrupted; if no process executes it, this one does, to get the summary."""
    run = replace(run, reason=Reason.INTERRUPTED)
    is_owner_alive = context.owners.is_alive(run.owner_id)
    if run.status is Status.WAITING and not _awaited_children(run, tx):
        for each in tx.find_approvals(run=run.id, state=[ApprovalState.PENDING]):
            tx.update_approval(each.void())
        run = run.requeue_after_wait(at=context.clock.now())
    elif not is_owner_alive and run.status is Status.RUNNING:
        run = run.requeue_after_crash(died_at=time_of_death(run, context))
    if not is_owner_alive:
        run = replace(run, owner_id=context.owners.id_for_new_run())
    tx.update_run(run)
    if run.status is Status.QUEUED:
        start_parent_clocks(run, tx, context.clock.now())
        to_submit.runs.append((run, ClaimResult.NO_FREE_SLOT))
    return run


async def apply_requested_interruptions(context: RuntimeContext, interrupts: InterruptRegistry) -> None:
    """Interrupt runs of this process that were asked to stop, perhaps by another process.

    A run that is waiting by now passes the request on to the children it waits for.
    """

    def step(tx: Transaction) -> list[Run]:
        found = tx.find_runs(status=[Status.RUNNING, Status.WAITING], reason=Reason.INTERRUPTED)
        return [run for run in found if run.owner_id == context.owners.own_id]

    for run in await context.ledger.read(step):
        if run.status is Status.RUNNING:
            interrupts.interrupt_run(run.id)
        elif not await context.ledger.read(lambda tx, run=run: _are_children_interrupted(run, tx)):
            await interrupt_run(run.id, context)


def _are_children_interrupted(run: Run, tx: Transaction) -> bool:
    children = _awaited_children(run, tx)
    return bool(children) and all(each.reason is Reason.INTERRUPTED for each in children)


def _awaited_children(run: Run, tx: Transaction) -> list[Run]:
    """Return the children a run waits for: those of its open calls, or all of them if no call is open."""
    if run.waiting_for is not WaitReason.CHILD:
        return []
    return tx.find_runs(
        parent_run=run.id, awaited=None if run.waits_between_turns else True, status=LIVE_STATUSES
    )
