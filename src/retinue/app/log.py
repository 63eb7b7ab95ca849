"""The log: one JSON line per record, and a file for each defect, in <home>/logs."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def log_line(home: Path, line: Mapping[str, Any]) -> None:
    """One JSON line in <home>/logs; newlines in it are escaped, so no text can forge another. What goes wrong here
    must not change what is logged, so a full disk costs the line and nothing else."""
    raw = json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"
    with suppress(OSError):
        _add(home / "logs", "retinue.jsonl", raw)


def keep_details(home: Path, name: str, details: str) -> Path:
    """A text of its own in <home>/logs, for its owner only."""
    _add(home / "logs", name, details.encode("utf-8", "backslashreplace"))
    return home / "logs" / name


def _add(folder: Path, name: str, raw: bytes) -> None:
    # One by one: whoever makes a whole path at once lets the umask decide about its upper part.
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(folder / name, flags, 0o600)
    try:
        os.write(fd, raw)
    finally:
        os.close(fd)
