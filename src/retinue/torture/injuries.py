"""Faults other than killing the process that executes runs, each injected when the caller chooses."""

import fcntl
import os
import random
import resource
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from retinue.torture.home_reader import parse_session_file
from retinue.torture.scenario import COMMAND_SCRIPT

MEMORY_MARGIN_BYTES = 1 << 20
"""Memory that a process may still allocate after its limit was set."""
TORN_ENTRY = b"<!-- agent id=01TORN0000000000000000000000 at=2026-01-01T00:00:00Z model=torture in=10 out=5 n=60 -->\nHere"
"""What is left of an entry if the power fails while it is written: less text than it announces."""


class Injury(StrEnum):
    """Fault injected into a running tree before the process that executes it is killed."""

    NONE = "none"
    FOLLOWER = "follower killed"
    COMMAND = "shell command killed"
    MEMORY = "memory limited"
    TORN_TAIL = "torn entry"
    TWO_RESUMERS = "two processes resume"
    LOCKED_SESSION = "session locked by another process"


def kill_shell_commands(workspace: Path) -> int:
    """Kill the sandboxes of the agents' shell commands in a workspace, and return how many there were.

    Git, which creates worktrees, runs in a sandbox too and is not killed.
    """
    killed = 0
    for sandbox in {_outermost_sandbox(pid) for pid in _processes() if _is_shell_command(pid, workspace)}:
        with suppress(ProcessLookupError):
            os.kill(sandbox, signal.SIGKILL)
            killed += 1
    return killed


def _is_shell_command(pid: int, workspace: Path) -> bool:
    """Recognise a command by its folder: the arguments of its sandbox name neither the folder nor the mounts."""
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False
    return folder == workspace and any(COMMAND_SCRIPT.encode() in each for each in _arguments(pid))


def _outermost_sandbox(pid: int) -> int:
    """Return the first process of the sandbox that a process runs in, or the process itself without one."""
    parent = _parent(pid)
    while parent is not None and _arguments(parent)[:1] and _arguments(parent)[0].endswith(b"bwrap"):
        pid, parent = parent, _parent(parent)
    return pid


def limit_memory(pid: int, rng: random.Random) -> bool:
    """Let a process fail to allocate memory from now on; return False if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + rng.randrange(MEMORY_MARGIN_BYTES)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    except OSError:
        return False
    return True


def tear_session_file(home: Path, rng: random.Random) -> bool:
    """Append a part of an entry to a session whose file ends with a complete one, as a power failure may leave it."""
    paths = [
        path for path in sorted(home.glob("sessions/*/branches/*/**/session.md")) if _ends_complete(path)
    ]
    if not paths:
        return False
    with rng.choice(paths).open("ab") as file:
        file.write(TORN_ENTRY)
    return True


def _ends_complete(path: Path) -> bool:
    """Return True if the file ends with an entry, and not with the empty line of an idle session."""
    data = path.read_bytes()
    _, entries, problems = parse_session_file(data)
    last_line = data[data.rfind(b"\n<!-- ") :].lstrip(b"\n").partition(b"\n")[0]
    return bool(entries) and not problems and b" n=" in last_line


@contextmanager
def locked_session(folder: Path) -> Generator[None]:
    """Lock a session's folder for the length of a block, as a process does that has the session open."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _processes() -> Iterable[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except OSError:
        return None
    return int(fields.split()[1])
