"""Retinue's own part in the benchmark: the same work as everybody's, by the application that every program uses."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from retinue.app import App
from retinue.app import open as open_app
from retinue.app.sandbox_loader import Commands
from retinue.config.load import load
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.transcript import Said
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.trials.bench.scenes import ASK, FILE, HELLO, LOOK, SPAWN, TELL, WISH
from retinue.worker.clock import system_chance

KEY = "bench-key-0000"
ROOM = 2_000
"""Runs at once: the default keeps a person's machine from being flooded, and this is a flood."""
SMALL = 100
"""How often what takes microseconds is done, to be measured once."""
WAKERS = 64
"""How many agents are made at once, before anything is measured."""


class Subject:
    """One application in one process, on a home of its own."""

    def __init__(self) -> None:
        self._open = AsyncExitStack()
        self._held = AsyncExitStack()
        self._app: App | None = None
        self._place = ""
        self._sessions: list[str] = []

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("it was not opened")
        return self._app

    async def open(self, url: str, place: str, keep: bool = True, driver: str = "openai") -> None:
        self._place = place
        config = load(settings(url, place, driver))
        limits = replace(config.limits, max_live=ROOM, max_live_per_requester=ROOM)
        config = replace(config, limits=limits)
        opened = open_app(config=config, keeps=keep)
        self._app = await self._open.enter_async_context(opened)

    async def close(self) -> None:
        await self._held.aclose()
        await self._open.aclose()

    async def sessions(self, count: int) -> None:
        gate = asyncio.Semaphore(WAKERS)

        async def one() -> str:
            async with gate:
                return (await self._said(ASK)).session_id

        self._sessions += await asyncio.gather(*(one() for _ in range(count)))

    async def turn(self, number: int) -> str:
        return (await self._said(ASK, self._sessions[number])).text

    async def first(self, number: int) -> str:
        return (await self._said(f"{ASK} ({number})")).text

    async def hello(self, number: int) -> str:
        return (await self._said(HELLO, self._sessions[number])).text

    async def stream(self, number: int) -> str:
        return (await self._said(TELL, self._sessions[number])).text

    async def crowd(self, number: int) -> str:
        return (await self._said(f"{SPAWN} ({number})")).text

    async def crowd_after(self, number: int) -> str:
        return (await self._said(f"{SPAWN} ({number})", self._sessions[0])).text

    async def look(self, number: int) -> str:
        return (await self._said(f"{LOOK} ({number})")).text

    async def stored(self) -> int:
        return len(await self.app.sessions())

    async def past(self, lines: Sequence[str]) -> None:
        """A conversation that is long already; its last turn was like any other."""
        run = await self._said(ASK)
        session = await self.app.session(run.session_id)
        async with self.app.store.open(session) as talk:
            await talk.append(
                *(
                    Said(id=f"past{number}", by="agent" if number % 2 else "user", text=line)
                    for number, line in enumerate(lines)
                )
            )
            await talk.rest()
        self._sessions = [run.session_id]

    async def load(self, _number: int) -> str:
        """By a store that has kept nothing of the conversation."""
        session = await self.app.session(self._sessions[0])
        store = FileStore(self.app.store.root, system_chance())
        async with store.open(session) as talk:
            found = len(talk.entries)
        store.close()
        return "" if found else "nothing was there"

    async def idle(self, count: int) -> None:
        """So many agents have answered once, one after the other as everybody's do, and are not at work."""
        self._sessions += [(await self._said(ASK)).session_id for _ in range(count)]

    async def wake(self, number: int) -> str:
        return await self.turn(number)

    async def adopt(self) -> int:
        """Goes on with whatever sessions are there."""
        self._sessions = [each.id for each in await self.app.sessions()]
        return len(self._sessions)

    async def hold(self, count: int) -> None:
        """So many conversations are held open, as those of agents at work are."""
        for session in self._sessions[:count]:
            await self._held.enter_async_context(self.app.store.open(await self.app.session(session)))

    async def wait(self, count: int) -> int:
        """So many agents wait for a person's yes, and are put aside."""
        for number in range(count):
            await self.app.start(f"{WISH} ({number})", workspace=self._place)
        return await self._until(lambda run: run.waiting_for is Waiting.APPROVAL, count)

    async def begin(self, count: int) -> None:
        """So many agents are at work, each in the midst of asking its model."""
        for number in range(count):
            await self.app.start(f"{ASK} ({number})", workspace=self._place)
        await self._until(lambda run: run.status is Status.RUNNING, count)
        await asyncio.sleep(1)

    def newest(self) -> str:
        return self._sessions[-1]

    async def entry(self, number: int) -> str:
        """More entries, each on disk before the next."""
        async with self.app.store.open(await self.app.session(self._sessions[0])) as talk:
            for at in range(SMALL):
                await talk.append(Said(id=f"entry-{number}-{at}", by="user", text="One more line of words."))
        return ""

    async def step(self, _number: int) -> str:
        """More steps of the ledger, each on disk before the next: a step that changes nothing is not written."""
        run = (await self.app.runs(live=False, limit=1))[0]
        for turns in range(1, SMALL + 1):
            changed = replace(run, turns=run.turns + turns)
            await self.app.ledger.do(lambda tx, changed=changed: tx.set_run(changed))
        return ""

    async def guarded(self, _number: int) -> str:
        """A file that an agent names, opened and read under its scope."""
        files = GuardedFiles(await self.app.scope(session=self._sessions[0]))
        for _ in range(SMALL - 1):
            files.read(FILE)
        return files.read(FILE).data.decode()

    async def command(self, _number: int) -> str:
        """A command of an agent, in its sandbox."""
        shell = Commands(self.app.config).shell(await self.app.scope(session=self._sessions[0]))
        return str((await shell("true", 20)).exit)

    async def _until(self, fits: Callable[[Run], bool], count: int) -> int:
        """How many fit when enough do, or when two minutes have passed."""
        found, until = 0, time.monotonic() + 120
        while found < count and time.monotonic() < until:
            await asyncio.sleep(0.2)
            found = sum(map(fits, await self.app.runs(live=True)))
        return found

    async def _said(self, text: str, session: str | None = None) -> Run:
        if session is not None:
            return await self.app.run(text, session=session)
        return await self.app.run(text, workspace=self._place)


def settings(url: str, place: str, driver: str = "openai") -> dict[str, str]:
    """An environment with nothing of the person's own in it."""
    key, base = (
        ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
        if driver == "anthropic"
        else ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    )
    return {
        key: KEY,
        base: url,
        "RETINUE_MODEL": f"{driver}:bench",
        "RETINUE_HOME": str(Path(place) / "home"),
        "RETINUE_CONFIG": str(Path(place) / "config"),
        "PATH": os.environ.get("PATH", ""),
    }
