"""Create and delete sessions, besides listing, reading and changing them."""

from retinue.app.context import AppContext
from retinue.app.permissions import check_agent_allowed
from retinue.app.runs import RunService
from retinue.app.session_events import emit_session_changed
from retinue.app.stored_sessions import StoredSessions
from retinue.app.watchers import WatcherService
from retinue.app.workspace_folder import check_home_allowed, resolve_workspace
from retinue.app.worktree_cleanup import remove_worktrees_of_deleted_sessions
from retinue.domain.agent import AGENT_NAME
from retinue.domain.session import Session
from retinue.runtime.spawn import create_session


class SessionService(StoredSessions):
    """Sessions of an open application, with access to their agents, worktrees and watchers."""

    def __init__(self, context: AppContext, runs: RunService, watchers: WatcherService) -> None:
        super().__init__(context)
        self._context = context
        self._runs = runs
        self._watchers = watchers

    async def create(
        self, agent: str, *, name: str | None = None, workspace: str | None = None, allow_home: bool = False
    ) -> Session:
        """Create a session that is idle until a message is sent to it.

        Args:
            agent: The session's agent.
            name: Its name.
            workspace: Its folder; default is the current one, or the user's home if that is `/`.
            allow_home: Allow the user's home folder as its folder.

        Raises:
            NotFound: There is no such agent.
            Refused: The configuration denies the agent, or the folder is the user's home.
        """
        context = self._context
        context.agents.ensure_general_agent()
        if not AGENT_NAME.fullmatch(agent):
            raise context.agents.not_found_error(agent)
        check_agent_allowed(agent, context.runtime)
        root = resolve_workspace(workspace)
        policy = context.agents.get(agent, root).agent.workspace
        check_home_allowed(root, policy, is_named=workspace is not None, allow_home=allow_home)
        await context.ledger_check.run()
        session = await create_session(
            agent, root, context.runtime, name=None if name is None else context.redact(name)
        )
        return await emit_session_changed(session, "created", context.ledger, context.clock)

    async def _move_to_trash(self, ref: str) -> Session:
        """Move a session to the trash and remove its clean worktrees and those of its children."""
        before = await self.list()
        session = await super()._move_to_trash(ref)
        live_runs, after = await self._runs.list(live=True), await self.list()
        await remove_worktrees_of_deleted_sessions(
            self._context.worktrees, before=before, after=after, live=live_runs
        )
        await self._watchers.remove_for_sessions({each.id for each in before} - {each.id for each in after})
        return session
