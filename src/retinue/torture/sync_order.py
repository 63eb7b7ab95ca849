"""Check in a trace of system calls that everything was synced before a side effect happened.

A killed process loses nothing that it has written, so kills cannot show that a sync is missing. A trace can:
when a tool acts, the entry with its call and the ledger's row that it started must be on the disk.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from retinue.torture.counted_tools import EFFECTS_FILE

_CALL = re.compile(r"\d+ +(write|writev|pwrite64|pwritev|pwritev2|fsync|fdatasync)\(\d+<([^>]+)>.* = (\d+)")
_SHORTEST_ENTRY = 80
"""Bytes of the shortest entry; the line below which a person types is shorter, and need not be synced."""
_SYNCED_NAMES = ("session.md", "ledger.db-wal")
"""Files whose content must be on the disk; the others are derived."""


def find_unsynced_effects(trace: Path, home: Path) -> list[str]:
    """Return a message for each side effect that happened before everything was synced."""
    return list(_unsynced_effects(trace.read_text("utf-8", "replace").splitlines(), str(home)))


def count_effects(trace: Path) -> int:
    """Return the number of side effects in a trace."""
    calls = _traced_calls(trace.read_text("utf-8", "replace").splitlines())
    return sum(syscall == "write" and path.endswith(f"/{EFFECTS_FILE}") for syscall, path, _ in calls)


def _unsynced_effects(lines: Iterable[str], home: str) -> Iterator[str]:
    dirty: set[str] = set()
    for syscall, path, size in _traced_calls(lines):
        if syscall.endswith("sync"):
            dirty.discard(path)
        elif path.endswith(f"/{EFFECTS_FILE}"):
            if dirty:
                names = ", ".join(sorted(each.removeprefix(f"{home}/") for each in dirty))
                yield f"a side effect happened while these files were not synced: {names}"
        elif path.startswith(f"{home}/") and path.endswith(_SYNCED_NAMES) and size >= _SHORTEST_ENTRY:
            dirty.add(path)


def _traced_calls(lines: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield each call that succeeded, the path of its file, and what it returned."""
    for line in lines:
        if match := _CALL.match(line):
            yield match[1], match[2], int(match[3])
