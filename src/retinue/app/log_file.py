"""The log files in `<home>/logs`: one JSON line per record, and one file per internal error."""

import fcntl
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

LOG_NAME = "retinue.jsonl"
ROTATED_LOG_NAME = "retinue.1.jsonl"
MAX_LOG_BYTES = 4_000_000
"""Size at which the log is rotated; only one rotated log is kept."""
CRASH_DETAILS_PREFIX = "internal-error-"
"""Start of the names of files with the details of internal errors."""
PURGED_LINE = b'{"event":"purged"}'
"""What a log line about a purged session becomes, followed by spaces."""
_ID_PATTERN = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9A-HJKMNP-TV-Z]{26}"
)
_ENCODER = msgspec.json.Encoder(enc_hook=str)


class LogFile:
    """The log of a home, held open for frequent writes and reopened after it was rotated or renamed."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "logs"
        self._path = os.fspath(self._folder / LOG_NAME)
        self._fd = -1
        self._inode = (-1, -1)

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append one JSON line per record.

        Newlines are escaped, so no text can forge a record. Write errors are ignored: a full disk loses log
        lines, and must not affect the operation that is logged.
        """
        raw = b"".join(map(_encode_line, lines))
        with suppress(OSError):
            size = self._open_current() + len(raw)
            os.write(self._fd, raw)
            if size >= MAX_LOG_BYTES:
                _rotate_log(self._fd, self._folder)
                self.close()

    def close(self) -> None:
        fd, self._fd, self._inode = self._fd, -1, (-1, -1)
        if fd >= 0:
            os.close(fd)

    def _open_current(self) -> int:
        """Reopen the log if it was rotated or renamed, and return its size."""
        stats = None
        with suppress(FileNotFoundError):
            stats = os.lstat(self._path)
        if stats is None or (stats.st_dev, stats.st_ino) != self._inode:
            self.close()
            self._fd = _open_log_file(self._folder, LOG_NAME)
            stats = os.fstat(self._fd)
            self._inode = (stats.st_dev, stats.st_ino)
        return stats.st_size


def _encode_line(line: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(line) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        text = json.dumps(line, ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace") + b"\n"


def append_log_line(home: Path, line: Mapping[str, Any]) -> None:
    """Append one line and close the log again, for callers that log rarely."""
    file = LogFile(home)
    try:
        file.append([line])
    finally:
        file.close()


def save_details(home: Path, name: str, details: str) -> Path:
    """Write a text to a new file in `<home>/logs`, readable only by its owner."""
    fd = _open_log_file(home / "logs", name)
    try:
        os.write(fd, details.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)
    return home / "logs" / name


def scrub_logs(home: Path, ids: Collection[str], names: Sequence[str]) -> None:
    """Overwrite the lines that mention one of these ids or names, and remove the details of internal errors.

    Lines are overwritten in place, because other processes append to the same file meanwhile. Details of internal
    errors mention no session, so all of them are removed.
    """
    for path in sorted((home / "logs").glob("*")):
        if path.name.startswith(CRASH_DETAILS_PREFIX):
            path.unlink(missing_ok=True)
        elif path.is_file() and not path.is_symlink():
            _scrub_lines(path, ids, _whole_name_pattern(names))


def _whole_name_pattern(names: Sequence[str]) -> re.Pattern[bytes]:
    """Return a pattern for these names, but not for longer ones: `x-2` is another session than `x`."""
    either = "|".join(map(re.escape, names))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])".encode())


def _scrub_lines(path: Path, ids: Collection[str], names: re.Pattern[bytes]) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            offset = 0
            for line in file:
                found = (each.decode() for each in _ID_PATTERN.findall(line))
                if any(each in ids for each in found) or names.search(line):
                    _overwrite_line(fd, line, offset)
                offset += len(line)
        os.fsync(fd)
    finally:
        os.close(fd)


def _overwrite_line(fd: int, line: bytes, offset: int) -> None:
    """Replace a line by a note of the same length that it was purged, if the note fits."""
    length = len(line.rstrip(b"\n"))
    text = PURGED_LINE if length >= len(PURGED_LINE) else b""
    os.pwrite(fd, text.ljust(length), offset)


def _open_log_file(folder: Path, name: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        return os.open(folder / name, flags, 0o600)
    # One by one: creating the whole path at once would leave the mode of its upper folders to the umask.
    for missing in reversed(
        [missing_folder for missing_folder in (folder, *folder.parents) if not missing_folder.exists()]
    ):
        missing.mkdir(mode=0o700, exist_ok=True)
    return os.open(folder / name, flags, 0o600)


def _rotate_log(fd: int, folder: Path) -> None:
    """Rename the full log.

    Several processes may find it full at once. Only the one that holds its lock while it still has the log's
    name renames it, so that a fresh log never replaces the rotated one.
    """
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), (folder / LOG_NAME).lstat()):
            (folder / LOG_NAME).replace(folder / ROTATED_LOG_NAME)
