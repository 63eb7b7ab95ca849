"""Resume interrupted runs from their files."""

from retinue.app.composition import check_model
from retinue.app.context import AppContext
from retinue.app.run_options import COMMAND_TRIGGER
from retinue.app.run_queries import orphaned_runs
from retinue.domain.run import (
    CONTINUABLE_STATUSES,
    SUCCESSOR_KEY,
    Reason,
    Run,
    RunRequest,
    Status,
    WaitReason,
)
from retinue.errors import Conflict
from retinue.interfaces import Transaction
from retinue.runtime import recovery, run_control
from retinue.runtime.crash_suspects import resume_orphaned_runs
from retinue.runtime.idle_announcements import write_idle_announcements
from retinue.runtime.run_creation import create_run
from retinue.runtime.run_end import announce_discarded_results, delete_temporary_sessions
from retinue.runtime.session_scope import load_definition
from retinue.runtime.watchers import send_missed_updates

CONTINUE_PROMPT = (
    "The run above ended before its task was done, and a person wants it continued. Continue from where the "
    "conversation stopped. The task was:\n\n{task}"
)


async def clean_up_before_resuming(context: AppContext) -> None:
    """Finish what dead processes left: approvals, temporary sessions, results not written yet, and claimed runs."""
    runtime = context.runtime
    await run_control.expire_approvals(runtime, is_alive=context.is_owner_alive, take_over=False)
    await delete_temporary_sessions(runtime)
    await recovery.requeue_runs_of_dead_processes(runtime, context.is_owner_alive)
    await write_idle_announcements(runtime)
    if context.daemon.link is not None:
        await context.daemon.link.wait_for_final_events(context.is_owner_alive)


async def resume_all_runs(context: AppContext) -> list[Run]:
    """Resume every interrupted run, and return the runs that were resumed."""
    resumed = await resume_orphaned_runs(await orphaned_runs(context), context.runtime)
    return [*resumed, *await send_missed_updates(context.runtime)]


async def resume_for_person(run: Run, context: AppContext, model: str | None) -> list[Run]:
    """Resume a run because a person asked for it, and return the runs that were resumed, this one first.

    A run that waits for its model's server or for a person's decision is resumed too. A run that failed, was lost or timed
    out is continued by a new run. The caller holds the lock of the run's session.

    Raises:
        Conflict: Another process is working on the run, or it is done or cancelled.
        NotFound: The run's session is gone.
    """
    if run.is_pruned:
        raise Conflict(
            f"Run {run.id} cannot be continued: its task was removed from the ledger. Send its session a new message instead."
        )
    if model is not None:
        definition = await load_definition(await context.store.find(run.session_id), context.runtime)
        check_model(context.runtime.select_model(definition, model), context.config)
    if run.status in CONTINUABLE_STATUSES:
        return [await _continue_ended_run(run, context, model)]
    if run.waiting_for is WaitReason.MODEL or run.is_suspended_for_person:
        await context.store.find(run.session_id)
        return [await run_control.resume_waiting_run(run.id, context.runtime, model=model)]
    return await resume_run(run, context, by_person=True, model=model)


async def resume_run(
    run: Run, context: AppContext, *, by_person: bool = False, model: str | None = None
) -> list[Run]:
    """Resume a run and its interrupted descendants, and return those that were resumed, the run first.

    The caller holds the lock of the run's session.

    Raises:
        Conflict: Another process is working on the run.
        NotFound: The run's session is gone.
    """
    runtime = context.runtime
    is_adopted = run.owner_id == context.owner.id and run.status is Status.WAITING
    if run.status.is_live and context.has_live_owner(run) and not is_adopted:
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
    if is_adopted and not abandoned:
        raise Conflict(f"Run {run.id} is executed by this process. Wait until it has ended, or cancel it.")
    resumed_children = await resume_orphaned_runs(abandoned, runtime)
    if run.status is Status.WAITING and resumed_children:
        return [run, *resumed_children]  # continues when the children it waits for have ended
    resumed = await recovery.resume_run(
        run.id, runtime, previous_owner=run.owner_id, by_person=by_person, model=model
    )
    if resumed.status.is_final:
        await run_control.close_abandoned_run(resumed, runtime)
    elif resumed.reason is Reason.RECOVERY_LIMIT:
        await run_control.close_transcript(resumed, runtime)
    return [resumed, *resumed_children]


async def _continue_ended_run(run: Run, context: AppContext, model: str | None) -> Run:
    """Continue a run that failed, was lost or timed out, from its transcript, by a new run of its session.

    The ended run has delivered its result, so it stays as it is. Results of sub-agents that its calls did not receive
    are announced to the new run. A repeated request returns the run that already continues it.
    """
    session = await context.store.find(run.session_id)

    def find_latest_successor(tx: Transaction) -> tuple[int, Run | None]:
        number, latest = 0, None
        while successor := tx.get_run_by_key(SUCCESSOR_KEY.format(run=run.id, number=number + 1)):
            number, latest = number + 1, successor
        return number, latest

    number, latest = await context.ledger.read(find_latest_successor)
    if latest is not None and latest.status.is_live:
        return latest
    request = RunRequest(
        key=SUCCESSOR_KEY.format(run=run.id, number=number + 1),
        agent=run.agent,
        task=CONTINUE_PROMPT.format(task=run.request.task or ""),
        session=session.id,
        entry_point=run.request.entry_point,
        label=run.request.label,
        model=model or run.request.model,
        thinking=run.request.thinking,
        output_schema=run.request.output_schema,
        deadline_seconds=run.request.deadline_seconds,
        role=run.request.role,
        trigger=COMMAND_TRIGGER,
        inbox=await _parent_session_id(run, context),
        announce_to=run.request.announce_to,
    )
    return await create_run(
        request,
        session,
        context.runtime,
        exclusive=True,
        before_insert=lambda tx: announce_discarded_results(run, tx, context.runtime),
    )


async def _parent_session_id(run: Run, context: AppContext) -> str:
    """Return the session whose inbox receives the result of a continued sub-agent."""
    parent = await context.ledger.read(lambda tx: tx.get_run(run.request.parent_run or ""))
    return run.request.inbox if parent is None else parent.session_id
