"""Let an agent monitor a session and comment, and stop it again."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from retinue.agents.registry import FileAgentRegistry
from retinue.app.references import ReferenceResolver
from retinue.domain.agent import AGENT_NAME, Role
from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.watch import Watch
from retinue.errors import NotFound
from retinue.interfaces import RuntimeContext
from retinue.runtime import watchers
from retinue.runtime.run_creation import LIVE_STATUSES
from retinue.worker.worker import LocalWorker

DEFAULT_WATCHER = "pair"
"""The watcher if none is named."""


class WatcherService(ReferenceResolver, ABC):
    """Agents that watch sessions."""

    agents: FileAgentRegistry
    _context: RuntimeContext
    _local_worker: LocalWorker

    @abstractmethod
    async def _check_ledger_usable(self) -> None: ...

    async def watch(self, ref: str, *, agent: str = DEFAULT_WATCHER, trigger: str = "command") -> Watch:
        """Let an agent watch a session until `unwatch`, across restarts; a no-op if it watches already.

        Raises:
            NotFound: There is no such session or agent.
        """
        if not AGENT_NAME.fullmatch(agent):
            raise self.agents.not_found_error(agent)
        session = await self.find_session(ref)
        await self._check_ledger_usable()
        return await watchers.start_watch(session, agent, self._context, trigger=trigger)

    async def unwatch(self, ref: str, *, agent: str | None = None) -> list[Watch]:
        """Stop one or all agents from watching a session.

        Raises:
            NotFound: No such agent watches it.
        """
        session = await self.find_session(ref)
        found = [each for each in await self._active_watches(session) if agent in (None, each.agent)]
        if not found:
            raise NotFound(f"{agent or 'nobody'} {'does not watch' if agent else 'watches'} {session.slug}")
        return [await watchers.stop_watch(each, self._context) for each in found]

    async def list_watchers(self, ref: str | None = None) -> list[Watch]:
        """Return active watches of one session or of all, oldest first."""
        return await self._active_watches(None if ref is None else await self.find_session(ref))

    def watcher_agents(self, folder: str | None = None) -> list[str]:
        """Return the names of agents with the watcher role."""
        return [
            each.agent.name
            for each in self.agents.list_definitions(folder)
            if Role.WATCHER in each.agent.roles
        ]

    async def wait_for_watchers(self, session_id: str) -> None:
        """Wait until a session's watchers have seen its latest state and replied.

        Only watchers that this process works on count. Called before exit, so that none is cut off.
        """
        for each in await self._context.ledger.read(lambda tx: tx.find_watches(session=session_id, on=True)):
            while (run := await self._live_watcher_run(each)) is not None:
                await self._local_worker.wait(run.id)

    async def _live_watcher_run(self, watched: Watch) -> Run | None:
        caught_up = await watchers.send_missed_updates(self._context, watched.session)
        live = await self._context.ledger.read(
            lambda tx: tx.find_runs(session=watched.watcher, status=LIVE_STATUSES)
        )
        return next((run for run in (*caught_up, *live) if run.owner_id == self._context.owner_id), None)

    async def unwatch_deleted_sessions(self, deleted_ids: Collection[str]) -> None:
        """Stop watches whose watched or watching session was deleted."""
        for each in await self._active_watches(None):
            if each.session in deleted_ids or each.watcher in deleted_ids:
                await watchers.stop_watch(each, self._context)

    async def _active_watches(self, session: Session | None) -> list[Watch]:
        session_id = None if session is None else session.id
        return await self._context.ledger.read(lambda tx: tx.find_watches(session=session_id, on=True))
