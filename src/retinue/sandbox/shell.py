"""Commands held to one scope at the level this machine has: what cannot be held at that level is not run."""

import asyncio
import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from retinue.domain.io_results import Ran
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Level
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.interfaces import Shell
from retinue.sandbox import process
from retinue.sandbox.bubblewrap import strict
from retinue.sandbox.command import Cell
from retinue.sandbox.landlock import bare, landlocked
from retinue.sandbox.output_capture import MAX_KEPT, Keep
from retinue.sandbox.probe import Found, Probe

MAX_COMMAND = 120_000
"""Bytes: the kernel takes no longer word."""

HANDED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
"""All that a command at level none gets of our own environment."""

_SET_DUMPABLE = 4


def bound(probe: Probe, env: Mapping[str, str], records: str = "") -> Callable[[Scope], Shell]:
    """The shell of each scope. The level is asked for again at every command, and found out once. `records` is a folder
    of our own for what must outlive a kill."""

    def shell(scope: Scope) -> Shell:
        async def run(command: str, seconds: float) -> Ran:
            _possible(command)
            found = await probe.found()
            own = await asyncio.to_thread(_own_tmp, scope)
            cell = await _built(lambda: cell_of(found, scope, command, env, records))
            ended = await process.run(cell, seconds, _keeper(own))
            return _ran(ended, found.level)

        return run

    return shell


def cell_of(found: Found, scope: Scope, command: str, env: Mapping[str, str], records: str = "") -> Cell:
    if found.level is Level.STRICT:
        return strict(scope, command, bwrap=found.bwrap, records=records)
    if found.level is Level.LANDLOCK:
        return landlocked(scope, command, code=found.code)
    _unreadable()
    return bare(scope, command, env=_handed_on(env, scope.root))


def _possible(command: str) -> None:
    """Anything can be said in a command but what the system cannot take as one word."""
    try:
        raw = command.encode()
    except UnicodeEncodeError as error:
        raise Failed("the command is not valid Unicode: write it without lone surrogates") from error
    if not command.strip():
        raise Failed("there is no command to run: it is blank")
    if b"\0" in raw:
        raise Failed("the command holds a NUL character, which no command can")
    if len(raw) > MAX_COMMAND:
        raise Failed(
            f"the command is {len(raw):,} bytes long, and {MAX_COMMAND:,} is the most: "
            "write it to a file and run that"
        )


async def _built(made: Callable[[], Cell]) -> Cell:
    """Off the loop, because it looks at the workspace's files. What it made is given up when nobody waits for it."""
    building = asyncio.ensure_future(asyncio.to_thread(made))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        building.add_done_callback(_given_up)
        raise
    except OSError as error:
        raise Failed(f"the command was not run: its sandbox cannot be made ({error})") from error


def _given_up(building: "asyncio.Future[Cell]") -> None:
    if building.cancelled() or building.exception() is not None:
        return
    cell = building.result()
    for fd in cell.fds:
        os.close(fd)
    building.get_loop().run_in_executor(None, cell.after)


def _ran(ended: process.Ended, level: Level) -> Ran:
    if ended.exit is None and not ended.timed_out and not ended.killed:
        said = " ".join(ended.output.text().split())[:1000] or "it does not say why"
        raise Failed(
            f"the command was not run: the sandbox (level {level}) could not be made: {said}; "
            "`retinue doctor` says what is missing"
        )
    output = ended.output
    notes = ended.notes
    if output.kept and not output.whole:
        notes = (*notes, f"{output.kept} holds only the first {MAX_KEPT // 1_000_000} MB")
    return Ran(
        exit=ended.exit,
        text=output.text(),
        level=level,
        ms=ended.ms,
        timed_out=ended.timed_out,
        kept=output.kept,
        notes=notes,
    )


def _own_tmp(scope: Scope) -> str:
    """The real folder behind the agent's /tmp, made when it is first needed; empty where the agent has none."""
    if not scope.tmp or not scope.path(TMP, "write").ok:
        return ""
    try:
        Path(scope.tmp).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"the command was not run: {scope.tmp} cannot be made ({error.strerror})") from error
    return scope.tmp


def _keeper(own: str) -> Keep | None:
    """A file that did not exist before, by a name that cannot be foreseen: the command may be busy in there."""

    def keep() -> tuple[int, str]:
        name = f"output-{os.urandom(4).hex()}.txt"
        folder = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=folder), f"{TMP}/{name}"
        finally:
            os.close(folder)

    return keep if own else None


def _handed_on(env: Mapping[str, str], root: str) -> dict[str, str]:
    """Programs are never looked for in the workspace."""
    kept = {name: env[name] for name in HANDED_ON if name in env}
    places = kept.get("PATH", os.defpath).split(os.pathsep)
    outside = [
        place
        for place in places
        if place.startswith("/") and not f"{os.path.realpath(place)}/".startswith(f"{root.rstrip('/')}/")
    ]
    return kept | {"PATH": os.pathsep.join(outside) or os.defpath, "TERM": "dumb"}


@cache
def _unreadable() -> None:
    """Where nothing holds a command, at least our own memory and environment, which hold keys, are not its to read."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
