"""Attaching: follows what happens in a session, whoever works it, until nothing does any more."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

import click

from retinue.app import App
from retinue.app.sessions import LIVE
from retinue.cli.command import exit_code, on_app
from retinue.cli.follow import Follower, ending, outlived
from retinue.cli.options import Command
from retinue.cli.run_waiter import LOOK_SECONDS, Left, ended, family, taken_up
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import Person, interrupts
from retinue.domain.run import Run, as_json
from retinue.domain.session import Session
from retinue.errors import RetinueError


@click.command(cls=Command)
@click.argument("session")
@on_app(quiet=True)
async def attach(app: App, terminal: Terminal, session: str) -> int:
    """Follow what happens in SESSION until nothing does any more, whichever process works it.

    Runs of it whose process has died go on here. What they ask is put to you. Ctrl-C leaves, and stops nothing that
    another process works.
    """
    found = await app.session(session)
    last = f": {one_line(found.last_snippet, 80)}" if found.last_snippet else ""
    terminal.note(f"{found.agent} in {found.slug}{last}")
    visit = Visit(app, terminal, found)
    left = False
    with app.listen(visit.follower.heard), interrupts() as pressed, outlived():
        try:
            await visit.stay(pressed)
        except Left:
            left = True
    return await _told(visit, left=left)


async def _told(visit: "Visit", *, left: bool) -> int:
    """What became of the runs that were followed."""
    terminal = visit.terminal
    now = [await visit.app.find_run(each) for each in visit.runs]
    if terminal.json:
        terminal.value([as_json(run) for run in now])
    elif not now:
        terminal.note(f"nothing is going on there: retinue send {visit.session.slug} TEXT")
    for run in now:
        if left and run.status.live:
            terminal.note(f"run {run.id} is {run.status}: retinue runs cancel {run.id} stops it")
        elif exit_code(run):
            terminal.note(ending(run, await family(visit.app, [run])), colour="31")
    return 0 if left else max((exit_code(run) for run in now), default=0)


class Visit:
    """One look at a session: runs that this process works are heard, those of others are read from their files."""

    def __init__(self, app: App, terminal: Terminal, session: Session) -> None:
        self.app = app
        self.terminal = terminal
        self.session = session
        self.person = Person(terminal=terminal)
        self.follower = Follower(terminal, asking=self.person.turn.locked)
        self.runs: list[str] = []
        self.path = f"{session.path}/session.md"
        self.stamp: tuple[int, int] | None = None
        self.known: set[str] = set()

    async def stay(self, pressed: asyncio.Event) -> None:
        """From one run of the session to the next, as long as there is one that can go on."""
        await self.app.follow(await self._live())
        await self._read(silent=True)
        await taken_up(self.app, await self._live())
        async with self.follower.progress.shown(self.app):
            while live := await self._live():
                self.runs += [run.id for run in live if run.id not in self.runs]
                self.follower.follow(live, await family(self.app, live))
                await self.app.follow(live)
                self.follower.here |= {run.id for run in live if await self.app.works(run)}
                done = await self._through(live, pressed)
                if any(run.status.live for run in done):
                    break
        self.follower.close()

    async def _live(self) -> list[Run]:
        return await self.app.ledger.look(lambda tx: tx.runs(status=LIVE, session=self.session.id))

    async def _through(self, live: Sequence[Run], pressed: asyncio.Event) -> list[Run]:
        ids = [run.id for run in live]
        stop = self.follower.progress.stop
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._reading())
                done = await ended(self.app, ids, pressed, self.person, leaving=stop, cancels=False)
                reading.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        await self._read()
        return done

    async def _reading(self) -> None:
        while True:
            await self._read()
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, *, silent: bool = False) -> None:
        """What was added to the file since the last look, but for what is heard anyway."""
        with suppress(OSError, RetinueError):
            state = os.stat(self.path)  # noqa: PTH116  (a name, as the store has it)
            if (stamp := (state.st_size, state.st_mtime_ns)) == self.stamp:
                return
            entries = await self.app.entries(self.session.path)
            self.stamp = stamp
            new = [entry for entry in entries if entry.id not in self.known]
            self.known.update(entry.id for entry in new)
            for entry in new:
                if not silent and entry.run not in self.follower.here:
                    self.follower.added(entry)
