"""A limit on all processes of a command together, where root may set one: its own number of processes does not bind root."""

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_PROCESSES = 512
MAX_MEMORY = 4_294_967_296

_TOP = Path("/sys/fs/cgroup")
_LIMITS = {"pids.max": MAX_PROCESSES, "memory.max": MAX_MEMORY}
"""Where each controller is a tree of its own only the first is joined: each joining takes milliseconds."""

JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
"""Said by a shell that then becomes the program."""


def joined() -> str:
    """A new group for one command, with its limits; empty where there is none to be had."""
    if os.geteuid() != 0 or not _TOP.is_dir():
        return ""
    name = f"retinue-{os.getpid()}-{secrets.token_hex(4)}"
    unified = (_TOP / "cgroup.controllers").exists()
    place = _TOP if unified else _TOP / "pids"
    _swept(place)
    group = _made(place / name)
    return "" if group is None else str(group)


def left(group: str) -> None:
    """Nothing of the command lives: its group is empty."""
    if group:
        with suppress(OSError):
            Path(group).rmdir()


@cache
def _swept(place: Path) -> None:
    """Once: groups whose maker was killed before it could take them away."""
    for group in place.glob("retinue-*-*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            left(str(group))


def _made(group: Path) -> Path | None:
    """None when it cannot be made, or when no limit can be set in it."""
    try:
        group.mkdir()
    except OSError:
        return None
    limited = False
    for file, value in _LIMITS.items():
        with suppress(OSError):
            with (group / file).open("r+") as there:
                there.write(str(value))
            limited = True
    if limited:
        return group
    left(str(group))
    return None
