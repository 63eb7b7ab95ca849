"""The log: one JSON line per record, in <home>/logs."""

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
        _add(home / "logs", raw)


def _add(folder: Path, raw: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "retinue.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, raw)
    finally:
        os.close(fd)
