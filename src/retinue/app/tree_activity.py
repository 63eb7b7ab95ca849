"""Decide which runs can continue by themselves, and which need a person first."""

from collections.abc import Iterable

from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.interfaces import Transaction


def runs_ahead_of(run: Run, tx: Transaction) -> list[Run]:
    """Return the runs ahead of a queued run, oldest first.

    They wait inside a tool call in the same conversation.
    """
    if run.status is not Status.QUEUED:
        return []
    waiting = tx.find_runs(status=[Status.WAITING], session=run.session_id)
    return [each for each in reversed(waiting) if not each.waits_between_turns and each.id != run.id]


def is_tree_active(root_id: str, tx: Transaction) -> bool:
    """Return whether any run of a tree can continue by itself."""
    return _can_tree_proceed(root_id, tx, frozenset())


def has_dependent_runs(root_id: str, tx: Transaction) -> bool:
    """Return whether a live run of the tree is neither independent nor below an independent one."""
    live = tx.find_runs(status=LIVE_STATUSES, root=root_id)
    return any(not _is_below_independent(run, tx) for run in live)


def _is_below_independent(run: Run, tx: Transaction) -> bool:
    current: Run | None = run
    while current is not None:
        if current.request.is_independent:
            return True
        parent = current.request.parent_run
        current = tx.get_run(parent) if parent else None
    return False


def is_any_run_active(tx: Transaction) -> bool:
    """Return whether any run, in any process, can continue by itself."""
    return bool(tx.count_runs(Status.RUNNING)) or _can_any_proceed(
        tx.find_runs(status=_WAITING_STATUSES), tx, frozenset()
    )


_WAITING_STATUSES = (Status.QUEUED, Status.WAITING)


def _can_tree_proceed(root_id: str, tx: Transaction, visited: frozenset[str]) -> bool:
    if not tx.find_runs(status=LIVE_STATUSES, root=root_id, limit=1):
        return False  # every finished tree
    if tx.count_runs(Status.RUNNING, root=root_id):
        return True
    return _can_any_proceed(tx.find_runs(status=_WAITING_STATUSES, root=root_id), tx, visited | {root_id})


def _can_any_proceed(runs: Iterable[Run], tx: Transaction, visited: frozenset[str]) -> bool:
    """Return whether any of these waiting or queued runs can continue by itself.

    A run that waits for disk space or for its model's server continues once it is there. A queued run continues when those ahead of
    it do; a tree that was visited already cannot change the answer.
    """
    for run in runs:
        if run.status is Status.WAITING:
            if run.waiting_for in (WaitReason.DISK, WaitReason.MODEL):
                return True
        elif all(
            each.root_id not in visited and _can_tree_proceed(each.root_id, tx, visited)
            for each in runs_ahead_of(run, tx)
        ):
            return True
    return False
