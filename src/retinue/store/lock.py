"""One owner per session: the kernel's lock on the folder, and the holder's words for whoever comes second."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH119, PTH123

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime

from retinue.errors import Held, NotFound
from retinue.store import names

_BOOT = "/proc/sys/kernel/random/boot_id"


def hold(folder: str, now: datetime) -> int:
    """The folder's descriptor, locked until it is closed or the process dies, however it dies."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"There is no session folder {folder}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        words = _words(directory)
        os.close(directory)
        raise Held(f"{os.path.basename(folder)} is open in {words}; end that process or wait") from error
    _say(directory, now)
    return directory


@contextmanager
def held(folder: str, now: datetime) -> Generator[int]:
    """The folder's lock for the length of a block."""
    directory = hold(folder, now)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def alone(path: str) -> Generator[None]:
    """Waits for a moment's lock on a file, which is made if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _say(directory: int, now: datetime) -> None:
    """The words decide nothing, so a folder that cannot be written to is held all the same."""
    words = (
        f"PID {os.getpid()} on host {os.uname().nodename} since {now:%Y-%m-%dT%H:%M:%SZ}\nboot {_boot()}\n"
    )
    with suppress(OSError):
        file = os.open(
            names.HOLDER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory
        )
        try:
            os.write(file, words.encode())
        finally:
            os.close(file)


def _words(directory: int) -> str:
    with suppress(OSError):
        file = os.open(names.HOLDER, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            line = os.read(file, 400).decode("utf-8", "replace").partition("\n")[0]
        finally:
            os.close(file)
        if line.isprintable() and line:
            return line
    return "another process"


def _boot() -> str:
    with suppress(OSError), open(_BOOT, encoding="ascii") as file:
        return file.read().strip()
    return "unknown"
