"""Runs whose model server is down: they wait without a slot, and one of them at a time retries."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

from msgspec.structs import replace

from retinue.domain.run import ClaimResult, Reason, Run, Status, WaitReason
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.run_end import RunsToSubmit, requeue_waiting_run
from retinue.runtime.run_outcome import RunOutcome
from retinue.runtime.suspension import save_suspended, suspend_for_person, suspend_run

MIN_PROBE_INTERVAL_S = 1.0
MAX_PROBE_INTERVAL_S = 60.0
PROBE_INTERVAL_SHARE = 0.1
"""Delay until the next attempt, as a share of the length of the outage."""
MAX_PAID_PROBE_INTERVAL_S = 3600.0
"""The same for a server that begins replies and does not complete them.

Each attempt is paid for, so the delay is as long as the outage.
"""
PROBE_TIMEOUT_S = 900.0
"""Time after which another run tries, if the current attempt has neither succeeded nor failed."""
MAX_CANDIDATES = 8
"""Number of waiting runs of a server that have a wake time; the others are woken when the server answers."""
LIMIT_ERROR = (
    "{error}. The model was not available for {duration} (limits.model_wait_seconds). "
    "Continue with `retinue runs resume {run}`, or with another model: `--model M`"
)


async def suspend_for_model(run: Run, outcome: RunOutcome, context: RuntimeContext) -> bool:
    """Suspend a run until its model's server answers again, which frees its slot; False if it must continue.

    One of the waiting runs sends a request again, at growing intervals.
    """

    def suspend(current: Run, tx: Transaction) -> bool:
        if current.reason is Reason.INTERRUPTED:
            return False
        at = context.clock.now()
        since = current.recovery.outage_since or at
        recovery = replace(current.recovery, outage_server=outcome.outage_server, outage_since=since)
        updated = replace(current, recovery=recovery, error=context.redact(outcome.error))
        if _has_waited_too_long(updated, at, context):
            _suspend_for_person(updated, at, tx, context)
            return True
        next_probe_at = at + _probe_interval(at - since, context, is_paid=outcome.breaks_off)
        suspended = updated.suspend(WaitReason.MODEL, at=at, between_turns=True, wake_at=next_probe_at)
        save_suspended(suspended, tx, context, at, error=suspended.error)
        for other in _runs_waiting_for(outcome.outage_server, tx)[:MAX_CANDIDATES]:
            tx.update_run(other.wake(at=next_probe_at))
        return True

    return await suspend_run(run, context, suspend)


async def resume_after_outage(run: Run, context: RuntimeContext) -> None:
    """Resume all runs that wait for the server that has just answered this run."""
    server = run.recovery.outage_server
    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> None:
        to_submit.runs.clear()
        for waiting in _runs_waiting_for(server, tx):
            _requeue(waiting, tx, context, to_submit)

    await context.ledger.write(step, lambda _: to_submit.submit(context))


def without_outage(run: Run) -> Run:
    """Return the run after a complete reply; one that only began does not end an outage."""
    return replace(run, recovery=replace(run.recovery, outage_server="", outage_since=None), error="")


def probe_servers(
    due: Sequence[Run], tx: Transaction, context: RuntimeContext, to_submit: RunsToSubmit
) -> None:
    """Let the oldest due run of each server try again; runs that have waited too long wait for a person."""
    at = context.clock.now()
    by_server = sorted(due, key=lambda run: (run.recovery.outage_server, run.id))
    for _, group in groupby(by_server, key=lambda run: run.recovery.outage_server):
        runs = list(group)
        waiting = [run for run in runs if not _has_waited_too_long(run, at, context)]
        for run in runs:
            if run not in waiting:
                _suspend_for_person(run, at, tx, context)
        if waiting:
            _requeue(waiting[0], tx, context, to_submit, makes_progress=False)
        for run in waiting[1:]:
            tx.update_run(run.wake(at=at + timedelta(seconds=PROBE_TIMEOUT_S)))


def _requeue(
    run: Run,
    tx: Transaction,
    context: RuntimeContext,
    to_submit: RunsToSubmit,
    *,
    makes_progress: bool = True,
) -> None:
    requeued = requeue_waiting_run(run, tx, context, makes_progress=makes_progress)
    to_submit.runs.append((requeued, ClaimResult.NO_FREE_SLOT))


def _runs_waiting_for(server: str, tx: Transaction) -> list[Run]:
    """Return the runs that wait for a model's server, oldest first."""
    return [
        run
        for run in reversed(tx.find_runs(status=[Status.WAITING]))
        if run.waiting_for is WaitReason.MODEL and run.recovery.outage_server == server
    ]


def _probe_interval(outage: timedelta, context: RuntimeContext, *, is_paid: bool) -> timedelta:
    share, max_s = (
        (1.0, MAX_PAID_PROBE_INTERVAL_S) if is_paid else (PROBE_INTERVAL_SHARE, MAX_PROBE_INTERVAL_S)
    )
    seconds = min(max(outage.total_seconds() * share, MIN_PROBE_INTERVAL_S), max_s)
    return timedelta(seconds=context.clock.uniform(seconds / 2, seconds))


def _has_waited_too_long(run: Run, at: datetime, context: RuntimeContext) -> bool:
    since = run.recovery.outage_since
    return since is not None and (at - since).total_seconds() >= context.limits.model_wait_seconds


def _suspend_for_person(run: Run, at: datetime, tx: Transaction, context: RuntimeContext) -> None:
    seconds = (at - (run.recovery.outage_since or at)).total_seconds()
    duration = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"  # noqa: PLR2004  (an hour)
    error = LIMIT_ERROR.format(error=run.error, duration=duration, run=run.id)
    suspend_for_person(run, Reason.MODEL, error, tx, context)
