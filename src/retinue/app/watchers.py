"""Watchers: a person sets an agent beside a conversation, and sends it away again."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from retinue.agents.registry import DefinitionCatalogue
from retinue.app.references import Naming
from retinue.domain.agent import NAME, Role
from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.watch import Watch
from retinue.errors import NotFound
from retinue.interfaces import Ports
from retinue.runtime import watchers
from retinue.runtime.run_creation import LIVE
from retinue.worker.worker import LocalEngine

PAIR = "pair"
"""Who watches when nobody is named."""


class Watchers(Naming, ABC):
    """The part of the application that knows who watches whom."""

    agents: DefinitionCatalogue
    _ports: Ports
    _engine: LocalEngine

    @abstractmethod
    async def _ledger_opens(self) -> None: ...

    async def watch(self, ref: str, *, agent: str = PAIR, trigger: str = "command") -> Watch:
        """From now on, until `unwatch`, through every restart. Who watches already goes on."""
        if not NAME.fullmatch(agent):
            raise self.agents.missing(agent)
        session = await self.session(ref)
        await self._ledger_opens()
        return await watchers.watch(session, agent, self._ports, trigger=trigger)

    async def unwatch(self, ref: str, *, agent: str | None = None) -> list[Watch]:
        """All who watch a session, or one; NotFound: nobody does."""
        session = await self.session(ref)
        found = [each for each in await self._on(session) if agent in (None, each.agent)]
        if not found:
            raise NotFound(f"{agent or 'nobody'} {'does not watch' if agent else 'watches'} {session.slug}")
        return [await watchers.unwatch(each, self._ports) for each in found]

    async def watchers(self, ref: str | None = None) -> list[Watch]:
        """Who watches, everywhere or in one session: the oldest first."""
        return await self._on(None if ref is None else await self.session(ref))

    def can_watch(self, at: str | None = None) -> list[str]:
        """The agents that may be set beside a conversation."""
        return [each.agent.name for each in self.agents.all(at) if Role.WATCHER in each.agent.roles]

    async def heard_out(self, session: str) -> None:
        """Until those who watch a session have heard how it stands and have said their word, where they are worked by this
        process: who is about to leave leaves nothing half heard."""
        for each in await self._ports.ledger.look(lambda tx: tx.watches(session=session, on=True)):
            while (run := await self._hearing(each)) is not None:
                await self._engine.wait(run.id)

    async def _hearing(self, each: Watch) -> Run | None:
        told = await watchers.catch_up(self._ports, each.session)
        live = await self._ports.ledger.look(lambda tx: tx.runs(session=each.watcher, status=LIVE))
        return next((run for run in (*told, *live) if run.owner == self._ports.owner), None)

    async def sent_away(self, gone: Collection[str]) -> None:
        """Nobody watches sessions that are gone, or sits in one."""
        for each in await self._on(None):
            if each.session in gone or each.watcher in gone:
                await watchers.unwatch(each, self._ports)

    async def _on(self, session: Session | None) -> list[Watch]:
        of = None if session is None else session.id
        return await self._ports.ledger.look(lambda tx: tx.watches(session=of, on=True))
