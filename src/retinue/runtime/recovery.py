"""Recovery: resume interrupted runs, and rebuild their counters and open calls from the transcript."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from msgspec.structs import replace

from retinue.domain.run import NO_USAGE, PERSON_REASONS, Reason, Run, Status
from retinue.domain.side_effect import SideEffectState
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult, unanswered_calls
from retinue.errors import Conflict, NotFound, Refused
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.approvals import run_request_key
from retinue.runtime.run_clock import start_parent_clocks, with_wake_time
from retinue.runtime.run_end import finish_run
from retinue.runtime.run_events import make_event
from retinue.runtime.suspension import suspend_for_person

UNKNOWN_OUTCOME = "Outcome unknown: the call may or may not have taken effect, and it was not repeated. Check before you repeat it."
INTERRUPTED_RESULT = f"Interrupted: the process ended before this call finished. {UNKNOWN_OUTCOME}"
STALE_ERROR = (
    "interrupted longer ago than limits.resume_window_seconds. `retinue runs resume` continues it anyway"
)
CRASH_ERROR = (
    "the process ended {crashes} times while it worked on this run. Resume it with `retinue runs resume {run}`, "
    "or cancel it"
)
SUSPECT_TRIAL_SECONDS = 1.0
"""How long a suspected run is executed before the next one is resumed."""
UNANSWERED_RESULT = "Interrupted: this call did not finish. Its outcome is unknown."


def split_unanswered_calls(entries: Sequence[Entry], run: Run) -> tuple[list[ToolCall], list[ToolResult]]:
    """Split the unanswered calls: this run's calls to repeat, and failure results for those of other runs.

    The tool executor knows which of this run's calls were started and must not be repeated. A call whose
    result a person removed, and after which the model has replied, gets no new result.
    """
    to_repeat: list[ToolCall] = []
    results: list[ToolResult] = []
    for tool_call in unanswered_calls(_entries_since_last_reply(entries)):
        if tool_call.run == run.id:
            to_repeat.append(tool_call)
        else:
            results.append(ToolResult(call_id=tool_call.id, text=UNANSWERED_RESULT, ok=False, run=run.id))
    return to_repeat, results


def calls_of_last_reply(entries: Sequence[Entry], run: Run) -> list[ToolCall]:
    """Return the calls of the run's last reply, with and without a result."""
    since = _entries_since_last_reply(entries)
    return [entry for entry in since if isinstance(entry, ToolCall) and entry.run == run.id]


async def find_delegated_calls(calls: Sequence[ToolCall], run: Run, context: RuntimeContext) -> set[str]:
    """Return the ids of the calls that have started a sub-agent."""
    keys = {call.id: run_request_key(run.id, call.id) for call in calls}
    return await context.ledger.read(
        lambda tx: {each for each, key in keys.items() if tx.get_run_by_key(key) is not None}
    )


def _entries_since_last_reply(entries: Sequence[Entry]) -> Sequence[Entry]:
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if isinstance(entry, Message) and entry.role == "agent":
            return entries[index:]
    return entries


def recount_run(run: Run, entries: Sequence[Entry], is_long_prompt: Callable[[str, int], bool]) -> Run:
    """Restore a resumed run's counters from its replies in the transcript."""
    replies = [
        entry
        for entry in entries
        if isinstance(entry, Message) and entry.role == "agent" and entry.run == run.id
    ]
    usage = long_prompt_usage = NO_USAGE
    for reply in replies:
        usage = usage + reply.usage
        if is_long_prompt(run.model, reply.usage.input):
            long_prompt_usage = long_prompt_usage + reply.usage
    texts = [reply.text for reply in replies if reply.text]
    return replace(
        run,
        turns=len(replies),
        tool_calls=sum(reply.tool_call_count for reply in replies),
        usage=usage,
        long_prompt_usage=long_prompt_usage,
        text=texts[-1] if texts else "",
    )


def has_completed_call(run: Run, entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, ToolResult) and entry.run == run.id and entry.ok for entry in entries)


def final_reply(run: Run, entries: Sequence[Entry]) -> Message | None:
    """Return the run's last reply if the run may have ended with it.

    That is the case if it called tools (perhaps one turn too many), or if nothing of the run follows it
    because the process died first.
    """
    run_entries = (entry for entry in reversed(entries) if entry.run == run.id)
    has_later_entry = False
    for entry in run_entries:
        if isinstance(entry, Message) and entry.role == "agent":
            return None if has_later_entry and not entry.tool_call_count else entry
        has_later_entry = True
    return None


def ends_with_final_reply(entries: Sequence[Entry]) -> bool:
    """Return True if the last entry is a final reply, after which no request is due."""
    last = entries[-1] if entries else None
    return isinstance(last, Message) and last.role == "agent" and not last.tool_call_count


async def requeue_runs_of_dead_processes(context: RuntimeContext, is_alive: Callable[[str], bool]) -> None:
    """Queue the running runs of dead processes again, so that they hold neither a slot nor their session.

    The time since the process died does not count against a deadline. A run that waits for a person keeps
    waiting: it needs no process.
    """
    owners = await context.ledger.read(lambda tx: tx.find_owner_ids([Status.RUNNING, Status.WAITING]))
    dead = {owner for owner in owners if owner != context.owners.own_id and not is_alive(owner)}

    def abandoned_waiting_runs(tx: Transaction) -> list[Run]:
        waiting = tx.find_runs(status=[Status.WAITING]) if dead else []
        return [run for run in waiting if run.owner_id in dead and run.deadline_at is not None]

    def step(tx: Transaction) -> None:
        for run in abandoned_waiting_runs(tx):
            _adopt_waiting_run(run, tx, context)
        running = tx.find_runs(status=[Status.RUNNING])
        for owner in dead:
            owned = [run for run in running if run.owner_id == owner]
            culprit_ids = _possible_culprits(owned, tx, context)
            for run in owned:
                is_bystander = run.id not in culprit_ids
                died_at = time_of_death(run, context)
                _save_requeued(
                    run.requeue_same_attempt(at=died_at)
                    if is_bystander
                    else run.requeue_after_crash(died_at=died_at),
                    tx,
                    context,
                )

    if dead and await context.ledger.read(
        lambda tx: bool(dead & tx.find_owner_ids([Status.RUNNING]) or abandoned_waiting_runs(tx))
    ):
        await context.ledger.write(step)


def time_of_death(run: Run, context: RuntimeContext) -> datetime:
    """Return when the run's process died: when it was last known to be alive.

    If that is unknown, nothing of the time since the run was last started counts.
    """
    now = context.clock.now()
    died_at = context.owners.last_alive_at(run.owner_id)
    if died_at is not None:
        return min(now, died_at)
    if run.deadline_at is None:
        return now
    timeout = timedelta(seconds=context.limits.run_timeout_s(run.request.deadline_seconds))
    return min(now, run.deadline_at - timeout)


def _adopt_waiting_run(run: Run, tx: Transaction, context: RuntimeContext) -> None:
    """Take over a run that waits for children, without the time in which no process worked on them."""
    resumed = run.stop_clock(time_of_death(run, context)).start_clock(context.clock.now())
    tx.update_run(with_wake_time(replace(resumed, owner_id=context.owners.id_for_new_run()), tx))


def _possible_culprits(runs: Sequence[Run], tx: Transaction, context: RuntimeContext) -> set[str]:
    """Return which runs of a dead process may have crashed it; for the others, the crash is not counted.

    A run in the middle of a side effect is more likely than one that only waited for its model, and one that waited
    for its next attempt to reach a model that is down cannot have. Suspected runs are
    resumed one after the other: if the process died in that time, the last one is the culprit.
    """
    suspects = [run for run in runs if run.recovery.is_suspect and run.recovery.resumed_at is not None]
    if suspects:
        last = max(suspects, key=lambda run: (run.recovery.resumed_at, run.id))
        trial_end = (last.recovery.resumed_at or last.created_at) + timedelta(seconds=SUSPECT_TRIAL_SECONDS)
        if time_of_death(last, context) <= trial_end:
            return {last.id}
    acting = {run.id for run in runs if _has_running_side_effect(run, tx)}
    return acting or {run.id for run in runs if run.time_left is None or run.recovery.outage_server}


def _has_running_side_effect(run: Run, tx: Transaction) -> bool:
    return any(
        side_effect.progress is SideEffectState.STARTED for side_effect in tx.find_side_effects(run.id)
    )


def _save_requeued(queued: Run, tx: Transaction, context: RuntimeContext) -> Run:
    """Save a requeued run, and notify listeners to discard its partial reply: it will be requested again."""
    tx.update_run(queued)
    tx.emit(make_event("text.discarded", queued, context))
    return queued


async def requeue_own_runs(context: RuntimeContext) -> None:
    """Queue this process's running runs again on shutdown, without counting an attempt."""

    def own_running_runs(tx: Transaction) -> list[Run]:
        return [run for run in tx.find_runs(status=[Status.RUNNING]) if run.owner_id == context.owners.own_id]

    def step(tx: Transaction) -> None:
        for run in own_running_runs(tx):
            _save_requeued(run.requeue_same_attempt(at=context.clock.now()), tx, context)

    if await context.ledger.read(own_running_runs):
        await context.ledger.write(step)


def live_descendants(run: Run, tx: Transaction, *, with_independent: bool = True) -> list[Run]:
    """Return the run's live children, their live children, and so on."""
    statuses = (Status.QUEUED, Status.RUNNING, Status.WAITING)
    children = tx.find_runs(parent_run=run.id, status=statuses, with_independent=with_independent)
    below = [live_descendants(each, tx, with_independent=with_independent) for each in children]
    return [*children, *(descendant for descendants in below for descendant in descendants)]


async def resume_run(
    run_id: str,
    context: RuntimeContext,
    *,
    previous_owner: str,
    by_person: bool = False,
    model: str | None = None,
) -> Run:
    """Resume a run whose owner is dead; one that crashes repeatedly waits for a person instead.

    Args:
        run_id: The run.
        context: The runtime context.
        previous_owner: The dead owner: if several processes try to resume the run, only the first succeeds.
        by_person: A person requested it, which also resumes a run that waits for a person's decision.
        model: Overrides the run's model.
    """

    def step(tx: Transaction) -> Run:
        run = tx.get_run(run_id)
        if run is None:
            raise NotFound(f"Run {run_id} not found.")
        if run.status.is_final:
            raise Conflict(f"Run {run_id} has ended ({run.status}). Send its session a new message instead.")
        if run.owner_id != previous_owner and run.owner_id:
            raise Conflict(f"Run {run_id} is executed by another process.")
        requeued = _requeue(run, context)
        if by_person:
            requeued = overrule_interruption(requeued, context.redact(model) if model else None)
        if requeued.recovery.crashes_too_often:
            return _suspend_after_crashes(requeued, tx, context)
        requeued = replace(requeued, owner_id=context.owners.id_for_new_run())
        start_parent_clocks(requeued, tx, context.clock.now())
        if run.status is not Status.RUNNING:
            tx.update_run(requeued)
            return requeued
        return _save_requeued(requeued, tx, context)

    run = await context.ledger.write(step)
    if run.status is Status.QUEUED and run.owner_id == context.owners.own_id:
        context.worker.submit(run.id, at_front=run.started_at is not None)
    return run


def _requeue(run: Run, context: RuntimeContext) -> Run:
    if run.status is Status.QUEUED:
        return run
    if run.status is Status.WAITING:
        at = context.clock.now()
        idle_since = context.owners.last_alive_at(run.owner_id) or at
        shifted = replace(run, recovery=run.recovery.extend_outage(at - idle_since))
        return shifted.requeue_after_wait(at=at)
    return run.requeue_after_crash(died_at=time_of_death(run, context))


def overrule_interruption(run: Run, model: str | None = None) -> Run:
    """Return the queued run as if it had never crashed, because a person resumed it."""
    was_suspended = run.reason in PERSON_REASONS
    turns_at_grant = run.turns if run.reason is Reason.TURN_LIMIT else run.recovery.turns_at_grant
    return replace(
        run,
        recovery=replace(
            run.recovery,
            crash_streak=0,
            crash_marks=(),
            outage_since=None,
            turns_at_grant=turns_at_grant,
        ),
        reason=None if was_suspended else run.reason,
        error="" if was_suspended else run.error,
        request=replace(run.request, model=model) if model else run.request,
    )


def _suspend_after_crashes(run: Run, tx: Transaction, context: RuntimeContext) -> Run:
    crashes = max(run.recovery.crash_streak, len(run.recovery.crash_marks))
    error = CRASH_ERROR.format(crashes=crashes, run=run.id)
    return suspend_for_person(run, Reason.RECOVERY_LIMIT, error, tx, context)


async def resume_available_runs(runs: Sequence[Run], context: RuntimeContext) -> list[Run]:
    """Resume the interrupted runs that no other process has resumed.

    A run interrupted longer ago than the resume window is not resumed: it is marked as lost, and its requester
    is notified.
    """
    resumed: list[Run] = []
    for run in runs:
        if _is_stale(run, context):
            resumed.append(
                await finish_run(run, Status.LOST, context, reason=Reason.STALE, error=STALE_ERROR)
            )
            continue
        with suppress(Refused):
            resumed.append(await resume_run(run.id, context, previous_owner=run.owner_id))
    return resumed


def _is_stale(run: Run, context: RuntimeContext) -> bool:
    """Return True if no process has worked on the run for longer than the resume window."""
    interrupted_at = (
        run.recovery.interrupted_at
        or context.owners.last_alive_at(run.owner_id)
        or run.started_at
        or run.created_at
    )
    return (context.clock.now() - interrupted_at).total_seconds() > context.limits.resume_window_seconds
