"""Beside a daemon: a command hands its runs over, hears what becomes of them, and goes on by itself if the daemon dies."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Any

from retinue import remote
from retinue.config import Config
from retinue.domain.event import Event

MOVES = frozenset(
    {"run.queued", "run.started", "run.state", "run.ended", "approval.asked", "approval.answered"}
)
"""What may change whether somebody who waits for a run still has to."""
WORDS = "text.delta"
FACTS = ("kind", "seq", "n", "at", "session", "run", "parent_run", "agent", "live")
PATIENCE_SECONDS = 2.0
"""How long what the ledger knows already may be on its way."""
AGAIN_SECONDS = 0.05


class Terms(StrEnum):
    """How a process stands to the daemon of its home."""

    ALONE = "alone"
    """There is none."""
    BESIDE = "beside"
    STRANGERS = "strangers"
    """There is one, with other settings: what is begun here is worked here."""


class Beside:
    """One process's link to a daemon."""

    def __init__(self, config: Config, owner: str, heard: Callable[[Event], None]) -> None:
        self.owner = owner
        self._config = config
        self._heard = heard
        self._own: set[int] = set()
        self._poke = asyncio.Event()
        self._after = 0
        self._progress = asyncio.Event()
        self._speaking: dict[str, Event] = {}
        self.linked = asyncio.Event()
        self.gone = False

    def done(self, seq: int) -> None:
        """This process has written an event: the daemon is told, and it is not heard a second time."""
        self._own.add(seq)
        self._poke.set()

    async def poking(self) -> None:
        while True:
            await self._poke.wait()
            self._poke.clear()
            await remote.look(self._config.home)

    async def listening(self, after: int) -> None:
        """Until the daemon is gone for good: one that was only too busy to keep us is asked again."""
        self._after = after
        while not self.gone:
            async for told in remote.events(self._config.home, after=self._after, deltas="all"):
                self.linked.set()
                if told:
                    self._take(_event(told), live=told["live"])
            self._cut_short()
            await asyncio.sleep(AGAIN_SECONDS)
            self.gone = await remote.hello(self._config.home) is None
        self.linked.set()
        self._progress.set()

    def _take(self, event: Event, *, live: bool) -> None:
        if not live:
            self._after = event.seq
            self._progress.set()
        if live or event.seq not in self._own:
            self._pass(event)
        self._own.discard(0 if live else event.seq)

    async def heard_up_to(self, seq: int) -> None:
        """Until all that was told up to a durable event has been heard here, or it is plain that it will not be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while self._after < seq and not self.gone:
                    self._progress.clear()
                    await self._progress.wait()

    def _pass(self, event: Event) -> None:
        if event.kind == WORDS:
            self._speaking[event.run] = event
        elif event.kind in ("entry.saved", "text.discarded", "run.ended"):
            self._speaking.pop(event.run, None)
        self._heard(event)

    def _cut_short(self) -> None:
        """What was being said is not heard to its end: it is said again, by whoever goes on."""
        for event in self._speaking.values():
            self._heard(
                Event(
                    kind="text.discarded",
                    at=event.at,
                    session=event.session,
                    run=event.run,
                    parent_run=event.parent_run,
                    agent=event.agent,
                    seq=event.seq,
                )
            )
        self._speaking.clear()


@asynccontextmanager
async def beside(
    config: Config, heard: Callable[[Event], None]
) -> AsyncGenerator[tuple[Terms, Beside | None]]:
    """The link to the daemon of this home, while this lasts; None where there is none to be had."""
    facts = (
        await remote.hello(config.home) if config.keeps and (config.home / remote.SOCKET).exists() else None
    )
    if facts is None or facts.get("settings") != config.fingerprint():
        yield (Terms.ALONE if facts is None else Terms.STRANGERS), None
        return
    link = Beside(config, facts["owner"], heard)
    tasks = [asyncio.ensure_future(link.listening(facts["seq"])), asyncio.ensure_future(link.poking())]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await link.linked.wait()
        yield Terms.BESIDE, link
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
        data=data,
    )
