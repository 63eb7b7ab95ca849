"""Resume interrupted runs from their files."""

from retinue.app.context import AppContext
from retinue.app.run_queries import orphaned_runs
from retinue.domain.run import Run, Status, WaitReason
from retinue.errors import Conflict
from retinue.runtime import recovery, run_control
from retinue.runtime.crash_suspects import resume_orphaned_runs
from retinue.runtime.run_end import delete_temporary_sessions
from retinue.runtime.watchers import send_missed_updates


async def clean_up_before_resuming(context: AppContext) -> None:
    """Expire approvals, delete temporary sessions, and requeue runs of dead processes, before runs are resumed."""
    runtime = context.runtime
    await run_control.expire_approvals(runtime, is_alive=context.is_owner_alive, take_over=False)
    await delete_temporary_sessions(runtime)
    await recovery.requeue_runs_of_dead_processes(runtime, context.is_owner_alive)
    if context.daemon.link is not None:
        await context.daemon.link.wait_for_final_events(context.is_owner_alive)


async def resume_all_runs(context: AppContext) -> list[Run]:
    """Resume every interrupted run, and return the runs that were resumed."""
    resumed = await resume_orphaned_runs(await orphaned_runs(context), context.runtime)
    return [*resumed, *await send_missed_updates(context.runtime)]


async def resume_run(run: Run, context: AppContext) -> list[Run]:
    """Resume a run and its interrupted descendants, and return those that were resumed, the run first.

    The caller holds the lock of the run's session.

    Raises:
        Conflict: Another process is working on the run.
        NotFound: The run's session is gone.
    """
    runtime = context.runtime
    if run.status.is_live and context.has_live_owner(run):
        if run.owner_id == runtime.owners.id_for_new_run() != context.owner.id:
            return [run]  # the connected daemon is already working on it
        raise Conflict(f"Run {run.id} is executed by another process.")
    if run.waiting_for is WaitReason.PERSON and not run.waits_between_turns:
        return [run]  # waits for an answer to its question and continues with that
    if run.status.is_live:
        await context.store.find(run.session_id)  # raises NotFound: never restart a run without its session
    descendants = await context.ledger.read(lambda tx: recovery.live_descendants(run, tx))
    abandoned = [
        each for each in descendants if not context.has_live_owner(each) and each.status is not Status.WAITING
    ]
    resumed_children = await resume_orphaned_runs(abandoned, runtime)
    if run.status is Status.WAITING and resumed_children:
        return [run, *resumed_children]  # continues when the children it waits for have ended
    resumed = await recovery.resume_run(run.id, runtime, previous_owner=run.owner_id)
    if resumed.status.is_final:
        await run_control.close_abandoned_run(resumed, runtime)
    return [resumed, *resumed_children]
