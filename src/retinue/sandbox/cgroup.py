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

_STARTED = 19
"""Which of the facts behind a process's name it is."""

JOIN = 'if [ -e "$0/tasks" ]; then echo 0 >"$0/tasks"; else echo $$ >"$0/cgroup.procs"; fi && exec "$@"'
"""Said by a shell that then becomes the program. Where each controller is a tree of its own, a single thread that moves
itself waits for nobody; a process that is moved waits 13 ms for all others of the machine."""


def joined() -> str:
    """A new group for one command, with its limits; empty where there is none to be had."""
    if os.geteuid() != 0 or not _TOP.is_dir():
        return ""
    _sweep_once()
    group = _made(_place() / f"{_maker(os.getpid())}-{secrets.token_hex(4)}")
    return "" if group is None else str(group)


def left(group: str) -> None:
    """Nothing of the command lives: its group is empty."""
    if group:
        with suppress(OSError):
            Path(group).rmdir()


def sweep() -> None:
    """Groups whose maker was killed before it could take them away. The kernel removes none that is in use."""
    if os.geteuid() != 0:
        return
    for group in _place().glob("retinue-*-*-*"):
        _, pid, began, _ = group.name.split("-", 3)
        if pid.isdecimal() and _began(int(pid)) != began:
            left(str(group))


@cache
def _sweep_once() -> None:
    sweep()


@cache
def _maker(pid: int) -> str:
    """How the groups of this process begin. Asked once: it may take milliseconds."""
    return f"retinue-{pid}-{_began(pid)}"


@cache
def _place() -> Path:
    unified = (_TOP / "cgroup.controllers").exists()
    return _TOP if unified else _TOP / "pids"


def _began(pid: int) -> str:
    """When a process began, as the kernel counts: another one may have its number by now. Empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_STARTED]
    except (OSError, IndexError):
        return ""


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
