"""Worktrees whose sessions are gone: each goes too, if it is clean and nobody else is in it."""

from collections.abc import Sequence

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.sandbox.git.worktrees import Worktrees


async def vacate(
    worktrees: Worktrees, *, before: Sequence[Session], after: Sequence[Session], live: Sequence[Run]
) -> None:
    """Of the sessions that are there no more. A worktree in which another session or an unfinished run works stays, and
    so does one that holds work."""
    left = {each.id for each in after}
    inhabited = {worktrees.around(root) for root in workplaces(after, live)}
    for session in before:
        place = session.workspace
        if session.id not in left and place.source and worktrees.around(place.root) not in inhabited:
            await worktrees.remove(place.root, place.source)


def workplaces(sessions: Sequence[Session], live: Sequence[Run]) -> set[str]:
    """Where somebody works or may go on working."""
    roots = (*(each.workspace.root for each in sessions), *(run.workspace for run in live))
    return {root for root in roots if root}
