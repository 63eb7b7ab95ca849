"""A whole file in one step: a reader sees the old one or the new one, and what fails leaves nothing behind."""

import errno
import os
import secrets
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from retinue.errors import Failed

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1_000_000

_LAST_LOOK = threading.Lock()
"""Agents of one process do not come between each other's last look and rename."""


def found(folder: int, leaf: str) -> os.stat_result | None:
    """What a name stands for in an open folder, a link as a link; None when there is nothing."""
    try:
        return os.stat(leaf, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def reached(folder: int, missing: tuple[str, ...]) -> Generator[int]:
    """The folder that a file goes into. Those made for it are taken away again if the file was not written; none is
    entered through a link."""
    trail = [folder]
    made: list[tuple[int, str]] = []
    try:
        for name in missing:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=trail[-1])
                made.append((trail[-1], name))
            trail.append(os.open(name, _FOLDER, dir_fd=trail[-1]))
        yield trail[-1]
    except BaseException:
        for above, name in reversed(made):
            with suppress(OSError):
                os.rmdir(name, dir_fd=above)
        raise
    finally:
        for fd in trail[1:]:
            os.close(fd)


def replaced(folder: int, leaf: str, data: bytes, *, instead_of: bytes | None = None) -> bool:
    """Whether the file is new. It is written beside its place under a name nobody can guess, and renamed. With
    `instead_of` it is looked at once more just before that: what another process writes in the microseconds between
    this look and the rename is lost, as no system call compares and renames in one."""
    before = found(folder, leaf)
    if before is not None:
        # A rename asks only the folder: whether the file itself may be written is asked by opening it.
        os.close(os.open(leaf, _WRITE, dir_fd=folder))
    stamp = None if instead_of is None else _compared(folder, leaf, instead_of)
    beside = f".retinue-{secrets.token_hex(12)}"
    try:
        _made(folder, beside, data, before)
        with _LAST_LOOK:
            _check_same(folder, leaf, stamp)
            os.rename(beside, leaf, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    _synced(folder)
    return before is None


def _made(folder: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """A new file has the rights that any new file of this user has; one that takes another's place has that one's,
    and meanwhile nobody else's."""
    fd = os.open(name, _NEW, 0o666 if before is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest[:_CHUNK]) :]
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, before.st_mode & 0o777)
        os.fsync(fd)
    finally:
        os.close(fd)


def _compared(folder: int, leaf: str, wanted: bytes) -> tuple[int, ...]:
    """The stamp of the very file that was read and found to hold what it should."""
    fd = os.open(leaf, _READ, dir_fd=folder)
    try:
        status = os.fstat(fd)
        is_it = stat.S_ISREG(status.st_mode) and status.st_size == len(wanted)
        if not is_it or not _holds(fd, wanted):
            raise _changed(leaf)
        return _stamp(status)
    finally:
        os.close(fd)


def _holds(fd: int, wanted: bytes) -> bool:
    at = 0
    while piece := os.read(fd, _CHUNK):
        if piece != wanted[at : at + len(piece)]:
            return False
        at += len(piece)
    return at == len(wanted)


def _check_same(folder: int, leaf: str, stamp: tuple[int, ...] | None) -> None:
    if stamp is not None and _stamp(found(folder, leaf)) != stamp:
        raise _changed(leaf)


def _stamp(status: os.stat_result | None) -> tuple[int, ...]:
    if status is None:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed(leaf: str) -> Failed:
    name = leaf if leaf.isprintable() else ascii(leaf)
    return Failed(f"{name} was changed by someone else meanwhile: read it again, then repeat what you wanted")


def _synced(folder: int) -> None:
    """A folder that may be written but not read cannot be synced, and its file is there all the same."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)
