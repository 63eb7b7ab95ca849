"""Read, write and atomically replace files; stamps that detect changes."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH105, PTH108, PTH118

import errno
import os
import stat
from contextlib import suppress

from retinue.errors import Conflict, DiskError, Failed, NotFound, RetinueError
from retinue.storage import file_names

FileStamp = tuple[int, int, int, int]
"""Inode, size, mtime and ctime in nanoseconds: differs after every change or replacement."""

DISK_ADVICE = (
    "Check the disk. When it works again, `retinue runs resume RUN` continues a run that was stopped by this."
)
_WRONG_PATH_ERRNOS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errnos of a full disk, an exceeded quota or a file-size limit. All can be lifted while a run waits."""

MISSING_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR})
EXISTS_ERRNOS = frozenset({errno.EEXIST, errno.ENOTEMPTY})

_COPY_CHUNK_BYTES = 256 * 1024


def stamp_from_stat(status: os.stat_result) -> FileStamp:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def file_stamp(path: str, *, dir_fd: int | None = None) -> FileStamp | None:
    """Return the file's stamp, or None if there is no such file."""
    try:
        return stamp_from_stat(os.stat(path, dir_fd=dir_fd))
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_regular_file(path: str, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading without ever blocking.

    A pipe or device of that name is refused instead of waited for.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Not a regular file", path)


def read_file(path: str, *, dir_fd: int | None = None) -> bytes:
    descriptor = open_regular_file(path, dir_fd=dir_fd)
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def read_prefix(path: str, length: int = 4096) -> bytes:
    descriptor = open_regular_file(path)
    try:
        return os.read(descriptor, length)
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    chunks = [os.read(descriptor, size + 1)]
    while chunks[-1]:
        chunks.append(os.read(descriptor, 1 << 20))
    return b"".join(chunks)


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """Read exactly `length` bytes from `start`; fewer only at the end of the file."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    chunks, read_bytes = [data], len(data)
    while read_bytes < length and (chunk := os.pread(descriptor, length - read_bytes, start + read_bytes)):
        chunks.append(chunk)
        read_bytes += len(chunk)
    return b"".join(chunks)


def create_file(path: str, data: bytes, *, fsync: bool = False) -> None:
    """Create a file that must not exist yet, readable and writable only by its owner."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_byte_range(
    path: str, source: int, start: int, end: int, *, prefix: bytes = b"", fsync: bool = False
) -> None:
    """Create a file from `prefix` and a byte range of `source`, copied in chunks."""
    create_file(path, prefix)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        while start < end and (chunk := read_at(source, start, min(_COPY_CHUNK_BYTES, end - start))):
            write_all(descriptor, chunk)
            start += len(chunk)
        if fsync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, preferably in one system call.

    The rest of a short write is retried so that the system reports why it failed.
    """
    written = os.write(descriptor, data) if data else 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def replace_file(path: str, data: bytes, *, token: str) -> None:
    """Replace a file atomically: readers see the whole old or the whole new content."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{token}")
    try:
        create_file(temporary, data, fsync=True)
        os.replace(temporary, path)
        fsync_path(folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise move_error(path, error) from error


def fsync_path(path: str) -> None:
    """Fsync a file's content, or a folder's directory entries."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unused_path(folder: str, name: str) -> str:
    """Return a path in this folder that does not exist yet: the name, or the name with a number."""
    count = 1
    while os.path.lexists(os.path.join(folder, file_names.numbered_name(name, count))):
        count += 1
    return os.path.join(folder, file_names.numbered_name(name, count))


def move_error(path: str, error: OSError) -> RetinueError:
    """Explain why a rename failed: source missing, target exists, or the disk refuses writes."""
    if error.errno in MISSING_ERRNOS:
        return NotFound(f"{path} no longer exists. It was deleted, renamed or moved.")
    if error.errno in EXISTS_ERRNOS:
        return Conflict(f"{path} already exists, because another process created it. Try again.")
    return write_error(path, error)


def read_error(path: str, error: OSError) -> Failed:
    """Explain why one of Retinue's files cannot be read; a broken disk is a DiskError."""
    message = f"{path} cannot be read: {error.strerror or error}"
    return DiskError(f"{message}. {DISK_ADVICE}") if error.errno == errno.EIO else Failed(message)


def write_error(path: str, error: OSError) -> Failed:
    """Explain why one of Retinue's files cannot be written; it is a DiskError unless the path itself is wrong."""
    reason = error.strerror or str(error)
    if error.errno in _WRONG_PATH_ERRNOS:
        return Failed(f"Cannot write {path}: {reason}. Nothing was written.")
    advice = DISK_ADVICE if error.errno == errno.EIO else "Free some disk space, or make it writable."
    return DiskError(
        f"Cannot write {path}: {reason}. Nothing was written. {advice}",
        is_full=error.errno in DISK_FULL_ERRNOS,
    )
