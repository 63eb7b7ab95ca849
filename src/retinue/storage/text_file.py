"""Read small text files that people write, safe against links, pipes and huge sizes."""

import os
import stat
from pathlib import Path

from retinue.errors import BadDefinition

MAX_TEXT_FILE_BYTES = 256 * 1024

LstatStamp = tuple[int, int, int, int] | None
"""Inode, mtime, size and ctime of a file; None when there is none.

The ctime shows a change that kept size and mtime, because no program can set it.
"""


def lstat_stamp(path: Path | str) -> LstatStamp:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # An unreadable file may still exist and may restrict permissions, so it must not count as absent.
        raise BadDefinition(str(path), f"cannot be read: {error.strerror}") from error
    return stamp_from_stat(status)


def stamp_from_stat(status: os.stat_result) -> LstatStamp:
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns


def read_text_file(path: Path) -> str:
    """Read a small UTF-8 file: regular, with one hard link, links not followed.

    Raises FileNotFoundError for a missing file and BadDefinition for everything else.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = "is a symbolic link, which is not followed; replace it with the file itself"
        raise BadDefinition(
            str(path), problem if path.is_symlink() else f"cannot be read: {error.strerror}"
        ) from error
    try:
        check_regular_file(path, os.fstat(handle))
        data = _read_limited(handle)
    finally:
        os.close(handle)
    return decode_text(path, data)


def decode_text(path: Path, data: bytes) -> str:
    """Decode the bytes of a small UTF-8 file, or raise BadDefinition."""
    if len(data) > MAX_TEXT_FILE_BYTES:
        raise BadDefinition(str(path), f"is larger than {MAX_TEXT_FILE_BYTES // 1024} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadDefinition(f"{path}:{line}", "is not UTF-8 text; save it in UTF-8") from error


def check_regular_file(path: Path, status: os.stat_result) -> None:
    """Raise BadDefinition unless this is a regular file with a single hard link."""
    if not stat.S_ISREG(status.st_mode):
        raise BadDefinition(str(path), "is not a regular file")
    if status.st_nlink > 1:
        raise BadDefinition(
            str(path), "has a second name (hard link), so it is not read; replace it with a copy"
        )


def _read_limited(handle: int) -> bytes:
    """Read up to one byte more than allowed, so that the caller can detect a file that is too large."""
    chunks: list[bytes] = []
    remaining = MAX_TEXT_FILE_BYTES + 1
    while remaining > 0 and (chunk := os.read(handle, remaining)):
        chunks.append(chunk)
        remaining -= len(chunk)
    return b"".join(chunks)
