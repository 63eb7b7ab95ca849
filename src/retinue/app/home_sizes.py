"""Sizes of the parts of a home."""

# Files are counted by the thousand here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH118, PTH202

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from retinue.storage import file_names

_MEGABYTE = 1_000_000
_LEDGER_FILES = ("ledger.db", "ledger.db-wal")


class HomeSizes(Struct, kw_only=True):
    """Bytes in each part of a home."""

    ledger: int = 0
    sessions: int = 0
    deleted_sessions: int = 0
    torn_files: int = 0
    """Incomplete ends of files, kept next to session.md."""
    logs: int = 0

    def describe(self) -> str:
        return (
            f"ledger {format_bytes(self.ledger)}, sessions {format_bytes(self.sessions)}, deleted sessions "
            f"{format_bytes(self.deleted_sessions)}, torn files {format_bytes(self.torn_files)}, logs {format_bytes(self.logs)}"
        )


def measure_home(home: Path) -> HomeSizes:
    """Add up the sizes of all files. Call it in a thread."""
    sizes = HomeSizes()
    for name in _LEDGER_FILES:
        with suppress(OSError):
            sizes.ledger += os.path.getsize(home / name)
    sizes.logs = sum(size for _, size in _files_below(home / "logs"))
    for path, size in _files_below(home / "sessions"):
        parts = path.split("/")
        if any(file_names.deletion_time(part) for part in parts):
            sizes.deleted_sessions += size
        elif parts[-1].startswith(f"{file_names.SESSION}.torn-"):
            sizes.torn_files += size
        else:
            sizes.sessions += size
    return sizes


def format_bytes(count: int) -> str:
    return f"{count / 1000:.0f} kB" if count < _MEGABYTE else f"{count / _MEGABYTE:.1f} MB"


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(OSError):
                yield os.path.relpath(path, folder), os.lstat(path).st_size
