"""The few ways this room touches the disk: files replaced whole, stamps that tell a change."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH105, PTH108, PTH118

import errno
import os
import stat as kinds
from contextlib import suppress

from retinue.errors import Conflict, NoRoom, NotFound, RetinueError
from retinue.storage import file_names

Stamp = tuple[int, int, int, int]
"""Inode, size, and both times in nanoseconds: what differs when a file was changed or replaced."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk, this user's share of it, or what this process may put into one file: each can be raised while we wait."""

GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})

_PIECE = 256 * 1024


def stamp(stat: os.stat_result) -> Stamp:
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def stamp_of(path: str, *, directory: int | None = None) -> Stamp | None:
    """None when there is no such file."""
    try:
        return stamp(os.stat(path, dir_fd=directory))
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_file(path: str, *, directory: int | None = None) -> int:
    """A regular file, for reading. A pipe or a device of that name is refused, and nobody waits for one."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, dir_fd=directory)
    mode = os.fstat(descriptor).st_mode
    if kinds.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if kinds.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Not a regular file", path)


def read_file(path: str, *, directory: int | None = None) -> bytes:
    descriptor = open_file(path, directory=directory)
    try:
        return read_all(descriptor)
    finally:
        os.close(descriptor)


def read_start(path: str, length: int = 4096) -> bytes:
    descriptor = open_file(path)
    try:
        return os.read(descriptor, length)
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    pieces = [os.read(descriptor, size + 1)]
    while pieces[-1]:
        pieces.append(os.read(descriptor, 1 << 20))
    return b"".join(pieces)


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """So many bytes from there on; fewer only where the file ends."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    pieces, read = [data], len(data)
    while read < length and (piece := os.pread(descriptor, length - read, start + read)):
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)


def write_new(path: str, data: bytes, *, sync: bool = False) -> None:
    """A file that must not be there yet, for its owner's eyes only."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_new(path: str, source: int, start: int, end: int, *, first: bytes = b"", sync: bool = False) -> None:
    """A new file of some bytes of another, behind a beginning of its own; however many, a few at a time."""
    write_new(path, first)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        while start < end and (piece := read_at(source, start, min(_PIECE, end - start))):
            write_all(descriptor, piece)
            start += len(piece)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """One write of everything; what a short write left over is tried again, so that the disk says why."""
    written = os.write(descriptor, data) if data else 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def replace_file(path: str, data: bytes, *, token: str) -> None:
    """The whole new content or the whole old one, never a mixture, whatever happens meanwhile."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{token}")
    try:
        write_new(temporary, data, sync=True)
        os.replace(temporary, path)
        sync_path(folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise not_moved(path, error) from error


def sync_path(path: str) -> None:
    """On disk: a file's bytes, or which names a folder holds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unused(folder: str, name: str) -> str:
    """A path in this folder that nothing has yet: the name, or the name with a number."""
    count = 1
    while os.path.lexists(os.path.join(folder, file_names.numbered(name, count))):
        count += 1
    return os.path.join(folder, file_names.numbered(name, count))


def not_moved(path: str, error: OSError) -> RetinueError:
    """Why something did not come to its place: others were quicker, or the disk takes nothing."""
    if error.errno in GONE:
        return NotFound(f"{path} is gone: it was deleted, renamed or moved meanwhile")
    if error.errno in TAKEN:
        return Conflict(f"{path} is there already: others were quicker; try again")
    return no_room(path, error)


def no_room(path: str, error: OSError) -> NoRoom:
    reason = error.strerror or str(error)
    return NoRoom(
        f"Cannot write {path}: {reason}; nothing was added. Free the disk or make it writable",
        full=error.errno in FULL,
    )
