"""Check in a trace of system calls that everything was synced before a side effect happened.

A killed process loses nothing that it has written, so kills cannot show that a sync is missing. A trace can:
when a tool acts, the entry with its call, the ledger's row that it started, and the name of its session must be on
the disk.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retinue.torture.counted_tools import EFFECTS_FILE

_NAMES = "write|writev|pwrite64|pwritev|pwritev2|fsync|fdatasync"
_STARTED = re.compile(rf"(\d+) +({_NAMES})\(\d+<([^>]+)>(.*)")
_RESUMED = re.compile(rf"(\d+) +<\.\.\. (?:{_NAMES}) resumed>(.*)")
_RENAMED = re.compile(r'(\d+) +rename(?:at2?)?\(.*"[^"]*/\.staging/[^"]*", .*"([^"]+)"')
"""A new session gets its final name."""
_RESULT = re.compile(r".* = (\d+)")
_SHORTEST_ENTRY = 80
"""Bytes of the shortest entry; the line below which a person types is shorter, and need not be synced."""
_LEDGER_LOG = "ledger.db-wal"
_SYNCED_NAMES = ("/session.md", f"/{_LEDGER_LOG}")
"""Files whose content must be on the disk; the others are derived."""


@dataclass(slots=True)
class TracedCall:
    """A write, a sync or a renamed session, in the order in which the calls began."""

    thread: str
    path: str
    """The file; for a renamed session, the folder that contains it."""
    is_sync: bool
    is_rename: bool = False
    size: int = 0
    """What it returned: bytes written, 0 for a sync and for a call that failed."""


def find_unsynced_effects(trace: Path, home: Path) -> list[str]:
    """Return a message for each side effect that happened before everything was synced."""
    return list(_unsynced_effects(_read_calls(trace), f"{home}/"))


def count_effects(trace: Path) -> int:
    """Return the number of side effects in a trace."""
    return sum(_is_effect(call) for call in _read_calls(trace))


def _unsynced_effects(calls: Sequence[TracedCall], home: str) -> Iterator[str]:
    last_writes: dict[str, int] = {}
    for index, call in enumerate(calls):
        if call.is_sync:
            last_writes.pop(call.path, None)
        elif _is_effect(call):
            unsynced = sorted(
                path.removeprefix(home)
                for path, written in last_writes.items()
                if not _is_sync_next(calls[written], calls[index:])
            )
            if unsynced:
                yield f"a side effect happened while these files were not synced: {', '.join(unsynced)}"
        elif call.is_rename or (
            call.path.startswith(home) and call.path.endswith(_SYNCED_NAMES) and call.size >= _SHORTEST_ENTRY
        ):
            last_writes[call.path] = index


def _is_effect(call: TracedCall) -> bool:
    return call.path.endswith(f"/{EFFECTS_FILE}") and not call.is_sync


def _is_sync_next(write: TracedCall, later_calls: Iterable[TracedCall]) -> bool:
    """Return True if the writing thread is about to sync: it works for another agent at the same moment.

    A transaction of the ledger is several writes, an entry is one.
    """
    for call in later_calls:
        if call.thread == write.thread:
            is_same_step = call.path == write.path and write.path.endswith(_LEDGER_LOG)
            if call.is_sync or not is_same_step:
                return call.is_sync and call.path == write.path
    return False


def _read_calls(trace: Path) -> list[TracedCall]:
    calls: list[TracedCall] = []
    unfinished: dict[str, TracedCall] = {}
    for line in trace.read_text("utf-8", "replace").splitlines():
        if match := _STARTED.match(line):
            thread, syscall, path, rest = match.groups()
            call = TracedCall(thread=thread, path=path, is_sync=syscall.endswith("sync"))
            calls.append(call)
            unfinished[thread] = call
        elif match := _RENAMED.match(line):
            thread, target = match.groups()
            calls.append(
                TracedCall(thread=thread, path=target.rpartition("/")[0], is_sync=False, is_rename=True)
            )
            continue
        elif match := _RESUMED.match(line):
            thread, rest = match.groups()
        else:
            continue
        if result := _RESULT.match(rest):
            unfinished[thread].size = int(result[1])
    return calls
