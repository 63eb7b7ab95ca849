"""The log: one JSON line per record, in <home>/logs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def log_line(home: Path, line: Mapping[str, Any]) -> None:
    """One JSON line in <home>/logs; newlines in it are escaped, so no text can forge another."""
    folder = home / "logs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    raw = json.dumps(line, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"
    fd = os.open(folder / "retinue.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, raw)
    finally:
        os.close(fd)
