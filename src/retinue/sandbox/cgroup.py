"""Limit the processes and the memory of all processes of a command together, with control groups.

The limits of a process (RLIMIT_NPROC, RLIMIT_DATA) do not bind root, or apply to each process alone. Control groups can
be created by root, and by a user whose service manager has delegated a part of the tree (a systemd user session).
"""

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

MAX_PROCESSES = 512
MAX_MEMORY_BYTES = 4_294_967_296

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_V1_CONTROLLERS = ("memory", "pids")

_START_TIME_FIELD = 19
"""Index of the start time among the fields after the process name in /proc/PID/stat."""

_JOIN_SCRIPT = (
    'while [ "$1" != -- ]; do if [ -e "$1/tasks" ]; then echo 0 >"$1/tasks"; else echo $$ >"$1/cgroup.procs"; fi '
    '|| exit 126; shift; done; shift; exec "$@"'
)
"""Shell script that joins the groups before `--` and then becomes the program behind it.

With cgroup v1, a single thread that moves itself does not wait; moving a process waits for all other processes of the
machine.
"""


class GroupLimits(Struct, frozen=True, kw_only=True):
    """The limits of all processes of one command together."""

    processes: int = MAX_PROCESSES
    memory_bytes: int = MAX_MEMORY_BYTES

    def files(self) -> dict[str, int]:
        """Return the values of the kernel's files, of both versions; a file that does not exist is skipped."""
        return {
            "pids.max": self.processes,
            "memory.max": self.memory_bytes,
            "memory.swap.max": 0,
            "memory.limit_in_bytes": self.memory_bytes,
            "memory.memsw.limit_in_bytes": self.memory_bytes,
        }


def create_groups(limits: GroupLimits | None = None) -> tuple[str, ...]:
    """Create the groups for one command: one with cgroup v2, one per controller with v1; none if that fails."""
    name = f"{_group_prefix(os.getpid())}-{secrets.token_hex(4)}"
    if parents := _parents():
        _remove_stale_groups_once()
    found = (_create_limited_group(parent / name, limits or GroupLimits()) for parent in parents)
    return tuple(str(group) for group in found if group is not None)


def remove_groups(groups: tuple[str, ...]) -> None:
    """Remove the groups of a command. None of its processes is alive: the groups are empty."""
    for group in groups:
        with suppress(OSError):
            Path(group).rmdir()


def join_argv(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments before a program that make it join the groups."""
    return ("/bin/sh", "-c", _JOIN_SCRIPT, "sh", *groups, "--") if groups else ()


def can_limit_memory() -> bool:
    """Return whether the memory of a command can be limited as a whole here."""
    return any(map(_has_memory_controller, _parents()))


def remove_stale_groups() -> None:
    """Remove groups whose creator was killed before it could. The kernel keeps those in use."""
    for group in (group for parent in _parents() for group in parent.glob("retinue-*-*-*")):
        _, pid, start_time, _ = group.name.split("-", 3)
        if pid.isdecimal() and _process_start_time(int(pid)) != start_time:
            remove_groups((str(group),))


def candidate_parents(root: Path, memberships: str) -> list[list[Path]]:
    """Return the folders in which groups may be created: one list for each group that a command needs, best first.

    With v2, processes and limits may not be in the same group, so the groups are created beside this process's own.
    With v1 they are created in it: limits that the machine sets for this process apply to its commands too.

    Args:
        root: Where the kernel's tree is mounted.
        memberships: The content of /proc/self/cgroup.
    """
    own_paths: dict[str, str] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths |= dict.fromkeys(controllers.split(","), path)
    if (root / "cgroup.controllers").exists():
        own = root / own_paths.get("", "/").lstrip("/")
        return [[own.parent, root] if own != root else [root]]
    return [[root / name / own_paths.get(name, "/").lstrip("/"), root / name] for name in _V1_CONTROLLERS]


@cache
def _parents() -> tuple[Path, ...]:
    """Return the folders in which this process can create limited groups. Cached: they do not change."""
    try:
        memberships = Path("/proc/self/cgroup").read_text(errors="replace")
    except OSError:
        return ()
    found: list[Path] = []
    for candidates in candidate_parents(_CGROUP_ROOT, memberships):
        usable = [parent for parent in dict.fromkeys(candidates) if _can_create_group(parent)]
        with_memory = [parent for parent in usable if _has_memory_controller(parent)]
        found += (with_memory or usable)[:1]
    return tuple(found)


def _can_create_group(parent: Path) -> bool:
    group = _create_limited_group(
        parent / f"{_group_prefix(os.getpid())}-{secrets.token_hex(4)}", GroupLimits()
    )
    remove_groups(() if group is None else (str(group),))
    return group is not None


def _has_memory_controller(parent: Path) -> bool:
    try:
        controllers = (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return (parent / "memory.limit_in_bytes").exists()
    return "memory" in controllers


@cache
def _remove_stale_groups_once() -> None:
    remove_stale_groups()


@cache
def _group_prefix(pid: int) -> str:
    """Return the name prefix of this process's groups. Cached: it may take milliseconds."""
    return f"retinue-{pid}-{_process_start_time(pid)}"


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


def _create_limited_group(group: Path, limits: GroupLimits) -> Path | None:
    """Create a group; None if that fails, if no limit can be set in it, or if it cannot be joined."""
    try:
        group.mkdir()
    except OSError:
        return None
    has_limit = False
    for file, value in limits.files().items():
        with suppress(OSError):
            with (group / file).open("r+") as limit_file:
                limit_file.write(str(value))
            has_limit = True
    # Joining a group needs write access to a common ancestor too, with v2.
    if has_limit and all(
        os.access(each, os.W_OK) for each in (group / "cgroup.procs", group.parent / "cgroup.procs")
    ):
        return group
    remove_groups((str(group),))
    return None
