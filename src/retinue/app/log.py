"""The log: one JSON line per record, and a file for each defect, in <home>/logs."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LOG = "retinue.jsonl"
OLDER = "retinue.1.jsonl"
MOST_BYTES = 4_000_000
"""A log that has grown to this becomes the older one, and the older one before it goes."""


def log_line(home: Path, line: Mapping[str, Any]) -> None:
    log_lines(home, [line])


def log_lines(home: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """One JSON line each in <home>/logs; newlines in it are escaped, so no text can forge another. What goes wrong here
    must not change what is logged, so a full disk costs the lines and nothing else."""
    text = "".join([json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines])
    with suppress(OSError):
        _add(home / "logs", LOG, text.encode("utf-8", "backslashreplace"), most=MOST_BYTES)


def keep_details(home: Path, name: str, details: str) -> Path:
    """A text of its own in <home>/logs, for its owner only."""
    _add(home / "logs", name, details.encode("utf-8", "backslashreplace"))
    return home / "logs" / name


def _add(folder: Path, name: str, raw: bytes, *, most: int | None = None) -> None:
    fd = _opened(folder, name)
    try:
        os.write(fd, raw)
        if most is not None and os.fstat(fd).st_size >= most:
            _put_aside(fd, folder)
    finally:
        os.close(fd)


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
