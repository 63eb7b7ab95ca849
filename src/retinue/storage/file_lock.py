"""One owner per session: a kernel lock on its folder, and the PID of the current holder."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH116, PTH119, PTH120, PTH123

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from retinue.errors import NotFound, SessionLocked
from retinue.storage import file_names
from retinue.storage.file_io import write_error

_PROC_LOCKS = "/proc/locks"


def acquire_session_lock(folder: str) -> int:
    """Lock a session's folder without waiting and return its descriptor.

    The lock lasts until the descriptor is closed or the process dies. Raises SessionLocked with the current
    holder.
    """
    try:
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"Session folder {folder} does not exist.") from error
    try:
        fcntl.flock(dir_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _describe_lock_holder(dir_fd)
        os.close(dir_fd)
        raise SessionLocked(
            f"{_session_slug(folder)} is open in {holder}. End that process, or wait."
        ) from error
    return dir_fd


@contextmanager
def session_lock(folder: str) -> Generator[int]:
    """Hold a session's lock for the length of a block."""
    dir_fd = acquire_session_lock(folder)
    try:
        yield dir_fd
    finally:
        os.close(dir_fd)


@contextmanager
def file_lock(path: str) -> Generator[None]:
    """Wait for an exclusive lock on a file; create the file if it is missing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _session_slug(folder: str) -> str:
    """Return the slug of a session from its folder; a branch's folder is inside the slug's."""
    parent = os.path.dirname(folder)
    return os.path.basename(
        os.path.dirname(parent) if os.path.basename(parent) == file_names.BRANCHES else folder
    )


def _describe_lock_holder(dir_fd: int) -> str:
    """Name the lock's holder according to the kernel, which unlike a PID file is never stale."""
    pid = _lock_holder_pid(os.fstat(dir_fd))
    if pid is None:
        return "another process"
    return f"PID {pid} on host {os.uname().nodename}{_format_start_time(pid)}"


def _lock_holder_pid(folder: os.stat_result) -> int | None:
    device = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    with suppress(OSError), open(_PROC_LOCKS, encoding="ascii") as file:
        for line in file:
            columns = line.split()
            if "FLOCK" in columns and device in columns:
                pid = columns[columns.index(device) - 1]
                return int(pid) if pid.isdigit() and pid != "0" else None
    return None


def _format_start_time(pid: int) -> str:
    with suppress(OSError):
        started_at = datetime.fromtimestamp(os.stat(f"/proc/{pid}").st_ctime, UTC)
        return f" since {started_at:%Y-%m-%dT%H:%M:%SZ}"
    return ""
