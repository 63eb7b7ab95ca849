"""One owner per session: the kernel's lock on the folder, and the holder's name for whoever comes second."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH116, PTH119, PTH120, PTH123

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from retinue.errors import Held, NotFound
from retinue.storage import file_names
from retinue.storage.file_io import no_room

_LOCKS = "/proc/locks"


def hold(folder: str) -> int:
    """The folder's descriptor, locked until it is closed or the process dies, however it dies."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"There is no session folder {folder}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = _holder(directory)
        os.close(directory)
        raise Held(f"{_called(folder)} is open in {who}; end that process or wait") from error
    return directory


@contextmanager
def held(folder: str) -> Generator[int]:
    """The folder's lock for the length of a block."""
    directory = hold(folder)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def alone(path: str) -> Generator[None]:
    """Waits for a moment's lock on a file, which is made if it is missing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise no_room(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _called(folder: str) -> str:
    """A session by its slug: the folder of a branch is not called after it."""
    above = os.path.dirname(folder)
    return os.path.basename(
        os.path.dirname(above) if os.path.basename(above) == file_names.BRANCHES else folder
    )


def _holder(directory: int) -> str:
    """Who has the lock, as the kernel knows it: no file of ours can be stale or lie about it."""
    pid = _locker(os.fstat(directory))
    if pid is None:
        return "another process"
    return f"PID {pid} on host {os.uname().nodename}{_since(pid)}"


def _locker(folder: os.stat_result) -> int | None:
    device = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    with suppress(OSError), open(_LOCKS, encoding="ascii") as file:
        for line in file:
            words = line.split()
            if "FLOCK" in words and device in words:
                pid = words[words.index(device) - 1]
                return int(pid) if pid.isdigit() and pid != "0" else None
    return None


def _since(pid: int) -> str:
    with suppress(OSError):
        began = datetime.fromtimestamp(os.stat(f"/proc/{pid}").st_ctime, UTC)
        return f" since {began:%Y-%m-%dT%H:%M:%SZ}"
    return ""
