"""Limit the processes and memory of a command with a cgroup, where root may create one.

The limit on a user's own processes (RLIMIT_NPROC) does not bind root.
"""

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_PROCESSES = 512
MAX_MEMORY_BYTES = 4_294_967_296

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_LIMITS = {"pids.max": MAX_PROCESSES, "memory.max": MAX_MEMORY_BYTES}
"""With cgroup v1 only the first controller is joined: each join takes milliseconds."""

_START_TIME_FIELD = 19
"""Index of the start time among the fields after the process name in /proc/PID/stat."""

JOIN_SCRIPT = (
    'if [ -e "$0/tasks" ]; then echo 0 >"$0/tasks"; else echo $$ >"$0/cgroup.procs"; fi && exec "$@"'
)
"""Shell script that joins the group and then becomes the program.

With cgroup v1, a single thread that moves itself does not wait; moving a process waits 13 ms for all other
processes of the machine.
"""


def create_group() -> str:
    """Create a group with limits for one command; empty if none can be created."""
    if os.geteuid() != 0 or not _CGROUP_ROOT.is_dir():
        return ""
    _remove_stale_groups_once()
    group = _create_limited_group(_parent_group() / f"{_group_prefix(os.getpid())}-{secrets.token_hex(4)}")
    return "" if group is None else str(group)


def remove_group(group: str) -> None:
    """Remove a group. None of its processes is alive: the group is empty."""
    if group:
        with suppress(OSError):
            Path(group).rmdir()


def remove_stale_groups() -> None:
    """Remove groups whose creator was killed before it could. The kernel keeps those in use."""
    if os.geteuid() != 0:
        return
    for group in _parent_group().glob("retinue-*-*-*"):
        _, pid, start_time, _ = group.name.split("-", 3)
        if pid.isdecimal() and _process_start_time(int(pid)) != start_time:
            remove_group(str(group))


@cache
def _remove_stale_groups_once() -> None:
    remove_stale_groups()


@cache
def _group_prefix(pid: int) -> str:
    """Return the name prefix of this process's groups. Cached: it may take milliseconds."""
    return f"retinue-{pid}-{_process_start_time(pid)}"


@cache
def _parent_group() -> Path:
    unified = (_CGROUP_ROOT / "cgroup.controllers").exists()
    return _CGROUP_ROOT if unified else _CGROUP_ROOT / "pids"


def _process_start_time(pid: int) -> str:
    """Return a process's start time in kernel ticks (its id may be reused); empty if there is none."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(errors="replace")
            .rpartition(")")[2]
            .split()[_START_TIME_FIELD]
        )
    except (OSError, IndexError):
        return ""


def _create_limited_group(group: Path) -> Path | None:
    """Create a group; None if that fails or no limit can be set in it."""
    try:
        group.mkdir()
    except OSError:
        return None
    has_limit = False
    for file, value in _LIMITS.items():
        with suppress(OSError):
            with (group / file).open("r+") as limit_file:
                limit_file.write(str(value))
            has_limit = True
    if has_limit:
        return group
    remove_group(str(group))
    return None
