"""The daemon as a person has it: started, in the background or not, found, and stopped."""

import asyncio
import errno
import ipaddress
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from retinue import app as application
from retinue import daemon_client
from retinue.app.composition import later
from retinue.cli.command import plainly
from retinue.cli.main import DAEMON
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.config.load import load
from retinue.errors import Failed, NoRoom, RetinueError, Usage
from retinue.worker.process_lock import Owner

START_SECONDS = 15.0
MOST_SAID = 4000
"""Bytes of what a daemon that could not start leaves for whoever started it."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})
DO = "make room, or let the home be written to, or choose another with RETINUE_HOME"


@click.command(cls=Command)
@click.option("--detach", is_flag=True, help="Go on in the background, and return when it is ready.")
@click.option(
    "--stop", is_flag=True, help="Stop the daemon: what runs gets a moment to end, the rest goes on later."
)
@click.option("--link", is_flag=True, help="Print a new link to the page of the daemon that is at work.")
@click.option("--host", default="127.0.0.1", metavar="H", show_default=True, help="Where the page is served.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="On which port; without it 8765, or another free one where that is taken.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Let other machines reach a --host that is not this one. Anybody who has the token can do what you can.",
)
@click.option("--until-idle", is_flag=True, hidden=True)
@click.option("--logged", is_flag=True, hidden=True)
@click.option("--why", type=int, hidden=True)
@plainly
async def serve(terminal: Terminal, home: str | None, **wishes: Any) -> int:
    """Work the runs of this home in one process, and show them on a page.

    It takes up what was interrupted, and what commands hand to it. The link it prints opens the page once, and stays
    valid for ten minutes; `retinue serve --link` prints another. Programs send the token in <home>/token.

    On SIGTERM it lets running work end for a moment and leaves the rest to the next start; a second signal ends it at
    once. Nothing is lost either way.
    """
    place = load(os.environ, home=home).home
    if wishes["stop"] and (wishes["detach"] or wishes["link"]):
        raise Usage("--stop goes with neither --detach nor --link: stop the daemon first, then start another")
    if wishes["stop"]:
        return await _stopped(place, terminal)
    if wishes["link"] and not wishes["detach"]:
        return await _linked(place, terminal)
    if not _here(wishes["host"]) and not wishes["allow_remote"]:
        raise Usage(
            f"--host {wishes['host']} lets other machines in: say --allow-remote too, or leave it at 127.0.0.1"
        )
    if wishes["detach"]:
        return await _detached(place, terminal, wishes)
    daemon = click.get_current_context().meta[DAEMON]()
    with _telling(place, wishes["why"]):
        async with application.open(home=home, ask=later) as app:
            await daemon(
                app,
                tell=terminal.note,
                host=wishes["host"],
                port=wishes["port"],
                until_idle=wishes["until_idle"],
                link=not wishes["logged"],
            )
    return 0


async def _detached(home: Path, terminal: Terminal, wishes: dict[str, Any]) -> int:
    facts = await ready(home, until_idle=wishes["until_idle"], words=_again(wishes))
    link = await daemon_client.told(home, "POST", "/api/links") or {}
    terminal.facts({each: facts[each] for each in ("pid", "owner", "version")} | link)
    url: str = link.get("url", "")
    there = urlsplit(url).port
    if wishes["port"] and there not in (None, wishes["port"]):
        terminal.note(
            f"a daemon was at work already, on port {there} and not {wishes['port']}: `retinue serve --stop` first, "
            "and the next one has it"
        )
    return 0


def _here(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _again(wishes: dict[str, Any]) -> list[str]:
    """The words that give the same wishes to the process in the background."""
    words = ["--host", wishes["host"]]
    if wishes["port"] is not None:
        words += ["--port", str(wishes["port"])]
    return [*words, *(["--allow-remote"] if wishes["allow_remote"] else [])]


async def ready(home: Path, *, until_idle: bool = False, words: list[str] | None = None) -> dict[str, Any]:
    """The daemon of this home: the one that is there, or one that is started now."""
    while facts := await daemon_client.hello(home):
        if facts["looking"]:
            return facts
        await asyncio.sleep(0.05)  # it is about to leave
    log = home / "logs" / "daemon.log"
    why = os.memfd_create("why")
    try:
        process = _begun(home, log, why, [*(words or []), *(["--until-idle"] if until_idle else [])])
        async with asyncio.timeout(START_SECONDS):
            while True:
                if facts := await daemon_client.hello(home):
                    return facts
                if process.poll() is not None:
                    said = os.pread(why, MOST_SAID, 0).decode("utf-8", "replace")
                    raise Failed(f"the daemon ended at once: {said or f'{log} says why'}")
                await asyncio.sleep(0.02)
    finally:
        os.close(why)


def _begun(home: Path, log: Path, why: int, words: list[str]) -> "subprocess.Popen[bytes]":
    whole = [sys.executable, "-m", "retinue", "--home", str(home), "serve", "--logged", "--why", str(why)]
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise NoRoom(f"no daemon can be started: {log} cannot be written: {error.strerror}; {DO}") from error
    try:
        return subprocess.Popen(  # noqa: S603  (our own command, and it outlives us)
            [*whole, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            cwd="/", pass_fds=[why],
        )  # fmt: skip
    finally:
        os.close(out)


@contextmanager
def _telling(home: Path, why: int | None) -> Generator[None]:
    """What ends the daemon is left for whoever started it, also where the log cannot be written."""
    if why is not None:
        os.set_inheritable(why, False)
    try:
        yield
    except (RetinueError, OSError) as error:
        meant = error
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            meant = NoRoom(f"{error.filename or home}: {error.strerror}; {DO}")
        if why is not None:
            os.pwrite(why, str(meant).encode("utf-8", "replace")[:MOST_SAID], 0)
        raise meant from error.__cause__ if meant is error else error


async def _linked(home: Path, terminal: Terminal) -> int:
    link = await daemon_client.told(home, "POST", "/api/links")
    if link is None:
        raise Failed("no daemon is running: `retinue serve --detach` starts one and prints the link")
    terminal.facts(link)
    return 0


async def _stopped(home: Path, terminal: Terminal) -> int:
    facts = await daemon_client.stop(home)
    if facts is None:
        terminal.note("no daemon is running")
        if terminal.json:
            terminal.value({"stopped": False})
        return 0
    while await daemon_client.hello(home) or Owner.alive(home, facts["owner"]):  # noqa: ASYNC110  (another process ends)
        await asyncio.sleep(0.05)
    terminal.facts(facts | {"stopped": True})
    return 0
