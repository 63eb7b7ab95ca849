"""Replace a file atomically: readers see the old or the new content, a failure leaves nothing."""

import errno
import os
import secrets
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from retinue.errors import Failed

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1_000_000

_RENAME_LOCK = threading.Lock()
"""Serialises the last check and the rename between agents of one process."""


def stat_entry(folder: int, file_name: str) -> os.stat_result | None:
    """Stat a name in an open folder without following a link; None if it does not exist."""
    try:
        return os.stat(file_name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def open_target_folder(folder: int, missing: tuple[str, ...]) -> Generator[int]:
    """Open the folder that a file goes into, creating the missing ones.

    No folder is entered through a link. Folders created here are removed again if the body raises.
    """
    trail = [folder]
    created: list[tuple[int, str]] = []
    try:
        for name in missing:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=trail[-1])
                created.append((trail[-1], name))
            trail.append(os.open(name, _FOLDER_FLAGS, dir_fd=trail[-1]))
        yield trail[-1]
    except BaseException:
        for parent, name in reversed(created):
            with suppress(OSError):
                os.rmdir(name, dir_fd=parent)
        raise
    finally:
        for fd in trail[1:]:
            os.close(fd)


def replace_file(folder: int, file_name: str, data: bytes, *, expected: bytes | None = None) -> bool:
    """Write a file under a temporary name and rename it into place; return whether it is new.

    The temporary name cannot be guessed. With `expected`, the file's content is checked once more just before
    the rename. A write by another process in the microseconds between that check and the rename is lost: no
    system call compares and renames in one step.
    """
    before = stat_entry(folder, file_name)
    if before is not None:
        # A rename checks only the folder's permissions: opening the file checks its own.
        os.close(os.open(file_name, _WRITE_FLAGS, dir_fd=folder))
    stamp = None if expected is None else _stamp_of_expected(folder, file_name, expected)
    temp_name = f".retinue-{secrets.token_hex(12)}"
    try:
        _write_new_file(folder, temp_name, data, before)
        with _RENAME_LOCK:
            _check_stamp(folder, file_name, stamp)
            os.rename(temp_name, file_name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp_name, dir_fd=folder)
        raise
    _sync_folder(folder)
    return before is None


def _write_new_file(folder: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Write a new file.

    A new file gets the user's default permissions. A replacement gets the mode of the file it replaces; until
    then only the owner can read it.
    """
    fd = os.open(name, _CREATE_FLAGS, 0o666 if before is None else 0o600, dir_fd=folder)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(fd, remaining[:_CHUNK_BYTES]) :]
        if before is not None:
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, before.st_mode & 0o777)
        os.fsync(fd)
    finally:
        os.close(fd)


def _stamp_of_expected(folder: int, file_name: str, expected: bytes) -> tuple[int, ...]:
    """Return the stamp of the file after checking that it still has the expected content."""
    fd = os.open(file_name, _READ_FLAGS, dir_fd=folder)
    try:
        status = os.fstat(fd)
        may_match = stat.S_ISREG(status.st_mode) and status.st_size == len(expected)
        if not may_match or not _has_content(fd, expected):
            raise _changed_error(file_name)
        return _file_stamp(status)
    finally:
        os.close(fd)


def _has_content(fd: int, expected: bytes) -> bool:
    offset = 0
    while piece := os.read(fd, _CHUNK_BYTES):
        if piece != expected[offset : offset + len(piece)]:
            return False
        offset += len(piece)
    return offset == len(expected)


def _check_stamp(folder: int, file_name: str, stamp: tuple[int, ...] | None) -> None:
    if stamp is not None and _file_stamp(stat_entry(folder, file_name)) != stamp:
        raise _changed_error(file_name)


def _file_stamp(status: os.stat_result | None) -> tuple[int, ...]:
    if status is None:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed_error(file_name: str) -> Failed:
    name = file_name if file_name.isprintable() else ascii(file_name)
    return Failed(f"{name} was changed by another process. Read it again and repeat the edit")


def _sync_folder(folder: int) -> None:
    """Sync a folder to disk.

    A folder that may be written but not read cannot be synced; its file exists all the same.
    """
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
