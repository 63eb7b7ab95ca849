"""The clock of a waiting parent run: stopped while none of the children it waits for can make progress."""

from datetime import datetime

from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.interfaces import Transaction


def stop_idle_parent_clocks(run: Run, tx: Transaction, at: datetime) -> None:
    """Stop the clocks of the run's ancestors that wait for nothing but stopped runs.

    Called in the transaction that stopped the run's clock or ended the run. Otherwise an outage of the model's
    server, or an approval that nobody answers, would end the parent by its deadline and cancel its children.
    """
    parent = _waiting_parent(run, tx)
    while parent is not None and parent.deadline_at is not None:
        awaited = None if parent.waits_between_turns else True
        if tx.has_live_children(parent.id, awaited=awaited, with_running_clock=True):
            return
        tx.update_run(with_wake_time(parent.stop_clock(at), tx))
        parent = _waiting_parent(parent, tx)


def start_parent_clocks(run: Run, tx: Transaction, at: datetime) -> None:
    """Start the clocks of the run's ancestors again, because the run can make progress."""
    parent = _waiting_parent(run, tx)
    while parent is not None and parent.deadline_at is None:
        tx.update_run(with_wake_time(parent.start_clock(at), tx))
        parent = _waiting_parent(parent, tx)


def stop_running_clock(run_id: str, tx: Transaction, at: datetime) -> None:
    """Stop the clock of a running run that cannot make progress, and of the parents that wait only for it."""
    run = tx.get_run(run_id)
    if run is not None and run.status is Status.RUNNING:
        stopped = run.stop_clock(at)
        tx.update_run(stopped)
        stop_idle_parent_clocks(stopped, tx, at)


def restart_running_clock(run_id: str, tx: Transaction, at: datetime) -> None:
    """Start the clock of a running run again, and those of its parents."""
    run = tx.get_run(run_id)
    if run is not None and run.status is Status.RUNNING:
        tx.update_run(run.start_clock(at))
        start_parent_clocks(run, tx, at)


def suspended_for_children(run: Run, tx: Transaction, at: datetime, *, between_turns: bool = False) -> Run:
    """Return the run suspended until its children have ended; its clock runs only if one of them can proceed."""
    suspended = run.suspend(WaitReason.CHILD, at=at, between_turns=between_turns)
    awaited = None if between_turns else True
    if not tx.has_live_children(run.id, awaited=awaited, with_running_clock=True):
        suspended = suspended.stop_clock(at)
    return with_wake_time(suspended, tx)


def with_wake_time(run: Run, tx: Transaction) -> Run:
    """Return a run that waits for children, to be woken at its deadline or at the time limit of a call."""
    times = [run.deadline_at]
    if not run.waits_between_turns:
        children = tx.find_runs(parent_run=run.id, awaited=True, status=LIVE_STATUSES)
        times += [child.request.wait_until for child in children]
    return run.wake(at=min((time for time in times if time is not None), default=None))


def _waiting_parent(run: Run, tx: Transaction) -> Run | None:
    """Return the parent run if it waits for its children."""
    parent = None if run.request.parent_run is None else tx.get_run(run.request.parent_run)
    waits = parent is not None and parent.status is Status.WAITING and parent.waiting_for is WaitReason.CHILD
    return parent if waits else None
