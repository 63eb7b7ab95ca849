"""Beside a daemon: a command hands its runs over, hears what becomes of them, and goes on by itself if the daemon dies."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Any

from retinue import daemon_client
from retinue.app.event_replay import Ear
from retinue.config.load import Config
from retinue.domain.event import Event

MOVES = frozenset(
    {"run.queued", "run.started", "run.state", "run.ended", "approval.asked", "approval.answered"}
)
"""What may change whether somebody who waits for a run still has to."""
FACTS = ("kind", "seq", "n", "at", "session", "run", "parent_run", "agent", "live")
PATIENCE_SECONDS = 2.0
"""How long what the ledger knows already may be on its way."""
AGAIN_SECONDS = 0.05


class Terms(StrEnum):
    """How a process stands to the daemon of its home."""

    ALONE = "alone"
    """There is none, or it is about to leave."""
    BESIDE = "beside"
    STRANGERS = "strangers"
    """There is one, with other settings: what is begun here is worked here."""


class Beside:
    """One process's link to a daemon."""

    def __init__(self, config: Config, owner: str, ear: Ear) -> None:
        self.owner = owner
        self.ear = ear
        self._config = config
        self._own: set[int] = set()
        self._poke = asyncio.Event()
        self._after = 0
        self._progress = asyncio.Event()
        self.linked = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when the daemon is, and all it said was heard."""

    def done(self, event: Event) -> bool:
        """This process has written an event: the daemon is told. False: it was heard from there already."""
        if event.kind == "run.queued":
            self.ear.born(event.run)
        elif event.kind == "run.started":
            self.ear.leave(event.run)  # this process has taken it up
        if event.seq <= self._after:
            return False
        self._own.add(event.seq)
        self.poke()
        return True

    def poke(self) -> None:
        """Something was left for the daemon."""
        self._poke.set()

    async def poking(self) -> None:
        while True:
            await self._poke.wait()
            await self.poked()

    async def poked(self) -> None:
        if self._poke.is_set():
            self._poke.clear()
            await daemon_client.hello(self._config.home)

    async def listening(self, after: int) -> None:
        """Until the daemon is gone for good: one that was only too busy to keep us is asked again."""
        self._after = after
        while not self.gone.is_set():
            async for told in daemon_client.events(self._config.home, after=self._after, deltas="all"):
                self.linked.set()
                if told:
                    await self._take(_event(told))
            await self.ear.cut_off()
            await asyncio.sleep(AGAIN_SECONDS)
            if await daemon_client.hello(self._config.home) is None:
                self.gone.set()
        self.linked.set()
        self._progress.set()

    async def _take(self, event: Event) -> None:
        if event.n or event.seq not in self._own:
            await self.ear.hear(event)
        if not event.n:
            self._own.discard(event.seq)
            self._after = event.seq
            self._progress.set()

    async def outlived(self, alive: Callable[[str], bool]) -> None:
        """Where the daemon is dead, until all it said was heard: then others may speak."""
        if not alive(self.owner):
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self.gone.wait()

    async def heard_up_to(self, seq: int) -> None:
        """Until all that was told up to a durable event has been heard here, or it is plain that it will not be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self._after < seq and not self.gone.is_set():
                    self._progress.clear()
                    await self._progress.wait()
        await self.ear.settle()


@asynccontextmanager
async def beside(config: Config, ear: Ear) -> AsyncGenerator[tuple[Terms, Beside | None]]:
    """The link to the daemon of this home, while this lasts; None where there is none to be had. One that cannot be
    heard in time counts as none."""
    facts = (
        await daemon_client.hello(config.home)
        if config.keeps and (config.home / daemon_client.SOCKET).exists()
        else None
    )
    if facts is None or not facts["looking"] or facts.get("settings") != config.fingerprint():
        yield (Terms.STRANGERS if facts and facts["looking"] else Terms.ALONE), None
        return
    link = Beside(config, facts["owner"], ear)
    tasks = [asyncio.ensure_future(link.listening(facts["seq"])), asyncio.ensure_future(link.poking())]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await link.linked.wait()
        near = link.linked.is_set() and not link.gone.is_set()
        yield (Terms.BESIDE, link) if near else (Terms.ALONE, None)
        await link.poked()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(told: dict[str, Any]) -> Event:
    data = {name: value for name, value in told.items() if name not in FACTS}
    return Event(
        kind=told["kind"],
        at=datetime.fromisoformat(told["at"]),
        session=told["session"],
        run=told["run"],
        parent_run=told["parent_run"],
        agent=told["agent"],
        seq=told["seq"],
        n=told.get("n", 0),
        data=data,
    )
