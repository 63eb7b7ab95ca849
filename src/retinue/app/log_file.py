"""The log: one JSON line per record, and a file for each defect, in <home>/logs."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

LOG = "retinue.jsonl"
OLDER = "retinue.1.jsonl"
MOST_BYTES = 4_000_000
"""A log that has grown to this becomes the older one, and the older one before it goes."""
_ENCODER = msgspec.json.Encoder(enc_hook=str)


class LogFile:
    """The log of a home for whoever writes to it often. It is held open, and opened anew when it has lost its name."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "logs"
        self._path = os.fspath(self._folder / LOG)
        self._fd = -1
        self._inode = (-1, -1)

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """One JSON line each; newlines in it are escaped, so no text can forge another. What goes wrong here must not
        change what is logged, so a full disk costs the lines and nothing else."""
        raw = b"".join(map(_encoded, lines))
        with suppress(OSError):
            size = self._ready() + len(raw)
            os.write(self._fd, raw)
            if size >= MOST_BYTES:
                _put_aside(self._fd, self._folder)
                self.close()

    def close(self) -> None:
        fd, self._fd, self._inode = self._fd, -1, (-1, -1)
        if fd >= 0:
            os.close(fd)

    def _ready(self) -> int:
        """How long the file is that has the name now."""
        found = None
        with suppress(FileNotFoundError):
            found = os.lstat(self._path)
        if found is None or (found.st_dev, found.st_ino) != self._inode:
            self.close()
            self._fd = _opened(self._folder, LOG)
            found = os.fstat(self._fd)
            self._inode = (found.st_dev, found.st_ino)
        return found.st_size


def _encoded(line: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(line) + b"\n"
    except UnicodeEncodeError:  # half a character, which no UTF-8 can hold
        text = json.dumps(line, ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace") + b"\n"


def log_line(home: Path, line: Mapping[str, Any]) -> None:
    """One line, by whoever has seldom something to say."""
    file = LogFile(home)
    try:
        file.add([line])
    finally:
        file.close()


def keep_details(home: Path, name: str, details: str) -> Path:
    """A text of its own in <home>/logs, for its owner only."""
    fd = _opened(home / "logs", name)
    try:
        os.write(fd, details.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)
    return home / "logs" / name


def _opened(folder: Path, name: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        return os.open(folder / name, flags, 0o600)
    # One by one: whoever makes a whole path at once lets the umask decide about its upper part.
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    return os.open(folder / name, flags, 0o600)


def _put_aside(fd: int, folder: Path) -> None:
    """Several processes may find the log full. Whoever holds its lock while it still has the name renames it, so that
    no fresh log takes the older one's place."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), (folder / LOG).lstat()):
            (folder / LOG).replace(folder / OLDER)
