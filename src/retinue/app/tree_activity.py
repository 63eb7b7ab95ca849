"""What goes on by itself, and what stands until a person has said something."""

from collections.abc import Iterable

from retinue.domain.run import Run, Status, Waiting
from retinue.interfaces import Tx


def ahead(run: Run, tx: Tx) -> list[Run]:
    """Those that wait inside a call in its conversation while it stands in the queue, the oldest first."""
    if run.status is not Status.QUEUED:
        return []
    waiting = tx.runs(status=[Status.WAITING], session=run.session_id)
    return [each for each in reversed(waiting) if not each.aside and each.id != run.id]


def moving_in(root: str, tx: Tx) -> bool:
    """Whether anything of a tree goes on by itself."""
    return _moves(root, tx, frozenset())


def moving(tx: Tx) -> bool:
    """Whether anything at all does, here or elsewhere."""
    return bool(tx.count(Status.RUNNING)) or _any_moves(tx.runs(status=_STANDING), tx, frozenset())


_STANDING = (Status.QUEUED, Status.WAITING)
_LIVE = (Status.RUNNING, *_STANDING)


def _moves(root: str, tx: Tx, seen: frozenset[str]) -> bool:
    if not tx.runs(status=_LIVE, root=root, limit=1):
        return False  # as of every tree that has ended
    if tx.count(Status.RUNNING, root=root):
        return True
    return _any_moves(tx.runs(status=_STANDING, root=root), tx, seen | {root})


def _any_moves(runs: Iterable[Run], tx: Tx, seen: frozenset[str]) -> bool:
    """What waits for room on the disk goes on once there is some. What waits its turn goes on when those before it do,
    and of a tree that was looked at already nothing more is to be learned."""
    for run in runs:
        if run.status is Status.WAITING:
            if run.waiting_for is Waiting.DISK:
                return True
        elif all(each.root not in seen and _moves(each.root, tx, seen) for each in ahead(run, tx)):
            return True
    return False
