"""Small text files that people write, opened so that no link, pipe or size can play a trick."""

import os
import stat
from pathlib import Path

from retinue.errors import BadDefinition

MAX_BYTES = 256 * 1024

Stamp = tuple[int, int, int] | None
"""Inode, time and size of a file; None when there is none."""


def stamp_of(path: Path | str) -> Stamp:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # What cannot be looked at may still exist, and must not count as absent: it may take rights away.
        raise BadDefinition(str(path), f"cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_text(path: Path) -> str:
    """A regular file with one name, not too large, in UTF-8; links are not followed. A missing one is
    FileNotFoundError, everything else BadDefinition."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        say = "is a symbolic link, which is not followed; put the file itself there"
        raise BadDefinition(
            str(path), say if path.is_symlink() else f"cannot be read: {error.strerror}"
        ) from error
    try:
        checked(path, os.fstat(handle))
        data = _read(handle)
    finally:
        os.close(handle)
    return decoded(path, data)


def decoded(path: Path, data: bytes) -> str:
    """The words of a small file in UTF-8."""
    if len(data) > MAX_BYTES:
        raise BadDefinition(str(path), f"is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadDefinition(f"{path}:{line}", "is not text in UTF-8; save it in that encoding") from error


def checked(path: Path, found: os.stat_result) -> None:
    """A regular file with one name, or BadDefinition."""
    if not stat.S_ISREG(found.st_mode):
        raise BadDefinition(str(path), "is not a file")
    if found.st_nlink > 1:
        raise BadDefinition(str(path), "has a second name (hard link) and is not read; put a copy there")


def _read(handle: int) -> bytes:
    """One byte more than allowed, so that too large shows."""
    pieces: list[bytes] = []
    left = MAX_BYTES + 1
    while left > 0 and (piece := os.read(handle, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
