"""The daemon: one process of a home that works what others left to it, and what they left behind."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import retinue
from retinue import app as application
from retinue import remote
from retinue.app import App
from retinue.config import load
from retinue.errors import Failed, Refused
from retinue.surfaces.cli.command import plainly
from retinue.surfaces.cli.options import Command
from retinue.surfaces.cli.terminal import Terminal

LOOK_SECONDS = 2.0
"""How often it looks for what dead processes left behind. What is handed to it, it is told of at once."""
DRAIN_SECONDS = 10.0
IDLE_SECONDS = 10.0
START_SECONDS = 15.0


@click.command(cls=Command)
@click.option("--detach", is_flag=True, help="Go on in the background, and return when it is ready.")
@click.option(
    "--stop", is_flag=True, help="Stop the daemon: what runs gets a moment to end, the rest goes on later."
)
@click.option("--until-idle", is_flag=True, hidden=True)
@plainly
async def serve(terminal: Terminal, home: str | None, *, detach: bool, stop: bool, until_idle: bool) -> int:
    """Work the runs of this home in one process.

    It takes up what was interrupted, and what `retinue run --background` hands to it. On SIGTERM it lets running work
    end for a moment and leaves the rest to the next start; a second signal ends it at once. Nothing is lost either way.
    """
    place = load(os.environ, home=home).home
    if stop:
        return await _stopped(place, terminal)
    if detach:
        facts = await ready(place, until_idle=until_idle)
        terminal.facts(facts)
        return 0
    async with application.open(home=home) as app:
        await Daemon(app, tell=terminal.note).serve(until_idle=until_idle)
    return 0


async def ready(home: Path, *, until_idle: bool = False) -> dict[str, Any]:
    """The daemon of this home: the one that is there, or one that is started now."""
    if facts := await remote.told(home, "hello"):
        return facts
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "logs").mkdir(mode=0o700, exist_ok=True)
    log = home / "logs" / "daemon.log"
    process = _begun(home, log, until_idle=until_idle)
    async with asyncio.timeout(START_SECONDS):
        while True:
            if facts := await remote.told(home, "hello"):
                return facts
            if process.poll() is not None:
                raise Failed(f"the daemon ended at once: {log} says why")
            await asyncio.sleep(0.02)


def _begun(home: Path, log: Path, *, until_idle: bool) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "retinue", "--home", str(home), "serve", *(["--until-idle"] * until_idle)]
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603  (our own command, and it outlives us)
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
        )
    finally:
        os.close(out)


async def _stopped(home: Path, terminal: Terminal) -> int:
    facts = await remote.told(home, "stop")
    if facts is None:
        terminal.note("no daemon is running")
        return 0
    while await remote.told(home, "hello"):  # noqa: ASYNC110  (another process ends: nothing to wait on)
        await asyncio.sleep(0.05)
    terminal.facts(facts | {"stopped": True})
    return 0


class Daemon:
    def __init__(self, app: App, *, tell: Callable[[str], None]) -> None:
        self._app = app
        self._tell = tell
        self._stop = asyncio.Event()
        self._poked = asyncio.Event()
        self._home = app.config.home

    async def serve(self, *, until_idle: bool = False) -> None:
        """Until it is told to stop, or has had nothing to do for a while."""
        lock = self._alone()
        if told := await self._app.sound():
            self._tell(told)
        server = await self._listening()
        self._hear_signals()
        self._tell(f"at work in {self._home} (process {os.getpid()})")
        try:
            await self._worked(until_idle=until_idle)
        finally:
            server.close()
            with suppress(OSError):
                (self._home / remote.SOCKET).unlink()
            await self._app.drain(DRAIN_SECONDS)
            os.close(lock)

    async def _worked(self, *, until_idle: bool) -> None:
        idle_since = asyncio.get_running_loop().time()
        while not self._stop.is_set():
            self._poked.clear()
            await self._app.resume()
            await self._app.take_up()
            now = asyncio.get_running_loop().time()
            if not until_idle or await self._app.moving():
                idle_since = now
            elif now - idle_since >= IDLE_SECONDS:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), LOOK_SECONDS)

    def _alone(self) -> int:
        """One daemon for a home; the kernel frees the place of a dead one."""
        descriptor = os.open(self._home / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise Refused(
                f"a daemon is at work in {self._home} already: `retinue serve --stop` stops it"
            ) from error
        return descriptor

    async def _listening(self) -> asyncio.Server:
        with suppress(FileNotFoundError):
            (self._home / remote.SOCKET).unlink()
        before = os.umask(0o177)
        try:
            with remote.address(self._home) as place:
                return await asyncio.start_unix_server(self._answered, place)
        finally:
            os.umask(before)

    def _hear_signals(self) -> None:
        def heard() -> None:
            if self._stop.is_set():
                os._exit(1)  # a second signal: what is on disk is enough to go on from
            self._stop.set()
            self._poked.set()

        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, heard)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.LimitOverrunError):
            wish = json.loads(await reader.readline())
            if wish.get("do") == "stop":
                self._stop.set()
            if wish.get("do") in ("stop", "look"):
                self._poked.set()
            facts = {"pid": os.getpid(), "owner": self._app.owner, "version": retinue.__version__}
            writer.write(json.dumps(facts).encode() + b"\n")
            await writer.drain()
        writer.close()
