"""Remove worktrees of deleted sessions if they are clean and unused."""

from collections.abc import Sequence

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.sandbox.git.worktrees import Worktrees


async def remove_worktrees_of_deleted_sessions(
    worktrees: Worktrees, *, before: Sequence[Session], after: Sequence[Session], live: Sequence[Run]
) -> None:
    """Remove the worktrees of sessions that are in `before` but not in `after`.

    A worktree stays if another session or an unfinished run works in it, or if it holds uncommitted work.
    """
    remaining_ids = {each.id for each in after}
    occupied = {worktrees.containing_worktree(root) for root in occupied_folders(after, live)}
    for session in before:
        workspace = session.workspace
        if (
            session.id not in remaining_ids
            and workspace.source_repository
            and worktrees.containing_worktree(workspace.root) not in occupied
        ):
            await worktrees.remove(workspace.root, workspace.source_repository)


def occupied_folders(sessions: Sequence[Session], live: Sequence[Run]) -> set[str]:
    """Return the workspace folders of all sessions and live runs."""
    roots = (*(each.workspace.root for each in sessions), *(run.workspace for run in live))
    return {root for root in roots if root}
