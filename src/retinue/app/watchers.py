"""Let an agent monitor a session and comment, and stop it again."""

from collections.abc import Collection

from retinue.app.context import AppContext
from retinue.app.references import find_session
from retinue.domain.agent import AGENT_NAME, Role
from retinue.domain.run import LIVE_STATUSES, Run
from retinue.domain.session import Session
from retinue.domain.watch import Watch
from retinue.errors import NotFound
from retinue.runtime import watchers

DEFAULT_WATCHER = "pair"
"""The default watcher."""


class WatcherService:
    """Agents that watch sessions."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def add(self, ref: str, *, agent: str = DEFAULT_WATCHER, trigger: str = "command") -> Watch:
        """Let an agent watch a session until `remove`, across restarts; a no-op if it watches already.

        Raises:
            NotFound: There is no such session or agent.
        """
        if not AGENT_NAME.fullmatch(agent):
            raise self._context.agents.not_found_error(agent)
        session = await find_session(ref, self._context)
        await self._context.ledger_check.run()
        return await watchers.start_watch(session, agent, self._context.runtime, trigger=trigger)

    async def remove(self, ref: str, *, agent: str | None = None) -> list[Watch]:
        """Stop one or all agents from watching a session.

        Raises:
            NotFound: No such agent watches it.
        """
        session = await find_session(ref, self._context)
        found = [each for each in await self._active_watches(session) if agent in (None, each.agent)]
        if not found:
            raise NotFound(
                f"Agent {agent!r} does not watch {session.slug}."
                if agent
                else f"No agent watches {session.slug}."
            )
        return [await watchers.stop_watch(each, self._context.runtime) for each in found]

    def eligible_agents(self, folder: str | None = None) -> list[str]:
        """Return the names of agents with the watcher role."""
        return [
            each.agent.name
            for each in self._context.agents.list_definitions(folder)
            if Role.WATCHER in each.agent.roles
        ]

    async def wait(self, session_id: str) -> None:
        """Wait until a session's watchers have received its latest entries and replied.

        Waits only for watchers that this process executes. Called before exit, so that none is interrupted.
        """
        for each in await self._context.ledger.read(lambda tx: tx.find_watches(session=session_id, on=True)):
            while (run := await self._live_watcher_run(each)) is not None:
                await self._context.worker.wait(run.id)

    async def _live_watcher_run(self, watch: Watch) -> Run | None:
        updated = await watchers.send_missed_updates(self._context.runtime, watch.session)
        live = await self._context.ledger.read(
            lambda tx: tx.find_runs(session=watch.watcher, status=LIVE_STATUSES)
        )
        return next((run for run in (*updated, *live) if run.owner_id == self._context.owner.id), None)

    async def remove_for_sessions(self, deleted_ids: Collection[str]) -> None:
        """Stop watches whose watched or watching session was deleted."""
        for each in await self._active_watches(None):
            if each.session in deleted_ids or each.watcher in deleted_ids:
                await watchers.stop_watch(each, self._context.runtime)

    async def _active_watches(self, session: Session | None) -> list[Watch]:
        session_id = None if session is None else session.id
        return await self._context.ledger.read(lambda tx: tx.find_watches(session=session_id, on=True))

    # Last, because further down in this class `list` would no longer be the type.
    async def list(self, ref: str | None = None) -> list[Watch]:
        """Return active watches of one session or of all, oldest first."""
        return await self._active_watches(None if ref is None else await find_session(ref, self._context))
