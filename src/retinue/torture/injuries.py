"""Faults other than killing the process that executes runs, each injected when the caller chooses."""

import os
import random
import resource
import signal
from collections.abc import Iterable
from contextlib import suppress
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


def kill_shell_commands(workspace: Path) -> int:
    """Kill the sandboxes of the agents' shell commands in a workspace, and return how many there were.

    Git, which creates worktrees, runs in a sandbox too and is not killed.
    """
    killed = 0
    for pid in _processes():
        arguments = _command_line(pid)
        command_line = b"\0".join(arguments)
        is_sandbox = bool(arguments) and arguments[0].endswith(b"bwrap")
        if is_sandbox and os.fsencode(workspace) in command_line and COMMAND_SCRIPT.encode() in command_line:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


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


def _processes() -> Iterable[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
