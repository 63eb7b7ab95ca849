"""Worktrees whose sessions are gone: each goes too, if it is clean and nobody else is in it."""

from collections.abc import Sequence

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.sandbox.worktree import Worktrees


async def vacate(
    worktrees: Worktrees, *, before: Sequence[Session], after: Sequence[Session], live: Sequence[Run]
) -> None:
    """Of the sessions that are there no more. A worktree in which another session or an unfinished run works stays, and
    so does one that holds work."""
    left = {each.id for each in after}
    inhabited = {
        worktrees.around(root)
        for root in (*(each.workspace.root for each in after), *(run.workspace for run in live))
        if root
    }
    for session in before:
        place = session.workspace
        if session.id not in left and place.source and worktrees.around(place.root) not in inhabited:
            await worktrees.remove(place.root, place.source)
