"""How tightly this machine can hold a command: found out by trying each level on a command that does nothing."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Lack, Level
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox import process, seccomp
from retinue.sandbox.bubblewrap import NEWER, PLACES, exact, strict
from retinue.sandbox.command import Cell
from retinue.sandbox.landlock import abi, landlocked

_SECONDS = 10
_NOTHING = Scope(root="/usr")
_SYSCTLS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor keeps programs from making user namespaces",
        "install the system's own bubblewrap, or set kernel.apparmor_restrict_unprivileged_userns=0 with sysctl",
    ),
    (
        "kernel/unprivileged_userns_clone", "0", "the kernel lets only root make user namespaces",
        "set kernel.unprivileged_userns_clone=1 with sysctl",
    ),
    (
        "user/max_user_namespaces", "0", "the kernel is set to allow no user namespaces",
        "set user.max_user_namespaces=10000 with sysctl",
    ),
)  # fmt: skip
_CONTAINER = (
    "let this machine make user namespaces (in a container: start it with a seccomp profile that allows them)"
)
_LANDLOCK = "use Linux 5.13 or newer with landlock in the kernel's list of security modules (lsm=)"
_MACHINE = "no system calls are known by number for this kind of machine, so there is no filter"


@value
class Found:
    """The tightest level that works, and why not a tighter one."""

    level: Level
    lacks: tuple[Lack, ...] = ()
    bwrap: str = ""
    code: bytes = field(default=b"", repr=False)
    """The filter on system calls; empty at level none."""


class Probe:
    """Tried once, when it is first asked: a process that runs no command pays nothing."""

    def __init__(self, *, most: Level = Level.STRICT, places: Sequence[str] = PLACES) -> None:
        self._most = most
        self._places = places
        self._found: asyncio.Task[Found] | None = None

    async def level(self) -> Level:
        return (await self.found()).level

    async def found(self) -> Found:
        if self._found is None or self._found.cancelled():
            self._found = asyncio.ensure_future(self._tried())
        return await asyncio.shield(self._found)

    async def _tried(self) -> Found:
        lacks: list[Lack] = []
        code = seccomp.program()
        bwrap = next((path for path in self._places if trusted(path)), "")
        for level in (Level.STRICT, Level.LANDLOCK):
            if not self._most.reaches(level):
                lacks.append(
                    Lack(
                        level=level,
                        why=f"RETINUE_SANDBOX={self._most} asks for less",
                        do="unset RETINUE_SANDBOX",
                    )
                )
            elif (lack := await _lack(level, bwrap, code)) is None:
                return Found(level=level, lacks=tuple(lacks), bwrap=bwrap, code=code or b"")
            else:
                lacks.append(lack)
        return Found(level=Level.NONE, lacks=tuple(lacks))


async def _lack(level: Level, bwrap: str, code: bytes | None) -> Lack | None:
    """What keeps this machine from a level; None when a command ran at it."""
    if code is None:
        return Lack(level=level, why=_MACHINE, do="use an x86_64 or aarch64 machine")
    if level is Level.LANDLOCK:
        if not abi():
            return Lack(level=level, why="this kernel has no Landlock", do=_LANDLOCK)
        why = await _trial(lambda: landlocked(_NOTHING, "true", code=code))
        return None if why is None else Lack(level=level, why=why, do=_LANDLOCK)
    if not bwrap:
        return Lack(level=level, why="bubblewrap is not installed", do="apt-get install bubblewrap")
    if not await asyncio.to_thread(exact, bwrap):
        return Lack(level=level, why=f"{bwrap} has no --bind-fd, so it lays folders by name", do=NEWER)
    why = await _trial(lambda: strict(_NOTHING, "true", bwrap=bwrap))
    return None if why is None else _forbidden(why)


async def _trial(made: Callable[[], Cell]) -> str | None:
    """Why a command that does nothing could not be run."""
    try:
        ended = await process.run(await asyncio.to_thread(made), _SECONDS)
    except (Failed, OSError) as error:
        return str(error)
    if ended.exit == 0:
        return None
    return " ".join(ended.output.text().split()) or "it did not start, and does not say why"


def _forbidden(why: str) -> Lack:
    """bubblewrap's own words, and the setting behind them where there is one."""
    for name, given, meaning, do in _SYSCTLS:
        try:
            said = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if said == given:
            return Lack(level=Level.STRICT, why=f"{meaning} ({why})", do=do)
    return Lack(level=Level.STRICT, why=why, do=_CONTAINER)


def trusted(path: str) -> bool:
    """A program that only root, or this user, could have put there."""
    try:
        found = Path(path).stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022 and os.access(path, os.X_OK)
