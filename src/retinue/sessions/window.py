"""How much of a long session.md is held: its newest entries, from a place that moves rarely and splits no exchange."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retinue.sessions.markdown.marker import OPEN, attributes
from retinue.storage.file_io import read_at

WINDOW = 16 << 20
"""The most bytes of a conversation that are held, as long as no single exchange is longer; at least half as many are.
That half is about two million tokens: more than models take."""
_BLOCK = 64 * 1024
_LONGEST_LINE = 1 << 20
_MARKER = re.compile(rf"\n{OPEN}((?:user|agent|call|result) [^\n]*)(?=\n)".encode())
_BEGINS = f"\n{OPEN}".encode()


def beginning(file: int, size: int, window: int = WINDOW) -> int:
    """Where the window of a file of this size begins: at 0, or at an entry of a user, else of an agent, with no result
    behind it whose call stands before. It moves only when the file has grown by another quarter of the window, so that
    what a model is sent begins the same from turn to turn and from run to run."""
    if size <= window:
        return 0
    step = max(1, window // 4)
    floor = -(-(size - window) // step) * step
    while floor > 0:
        for kind in ("user", "agent"):
            found = _whole_exchanges(_marks(file, floor, size), kind, floor + step)
            if found is not None:
                return found
        floor -= step
    return 0


@dataclass(frozen=True, slots=True)
class _Mark:
    at: int
    kind: str
    call: str
    """The id of the call, of a call and of its result."""


def _whole_exchanges(marks: Iterator[_Mark], kind: str, limit: int) -> int | None:
    """The first entry of this kind, before the limit, that no call or result follows which belongs before it: that is
    known when a second reply begins. What stands in the way of one stands in the way of all before it."""
    start: int | None = None
    replies = 0
    calls: set[str] = set()
    for mark in marks:
        if start is not None:
            replies += mark.kind == "agent"
            if replies > 1:
                return start
            if mark.kind == "call" and replies:
                calls.add(mark.call)
            elif mark.kind in {"call", "result"} and mark.call not in calls:
                start = None
        elif mark.at >= limit:
            return None
        elif mark.kind == kind:
            start, replies = mark.at, int(kind == "agent")
            calls.clear()
    return start


def _marks(file: int, floor: int, size: int) -> Iterator[_Mark]:
    """The marker lines from a place on, wherever that is in a line. The byte before it tells whether one starts there."""
    at, held = floor - 1, b""
    while at + len(held) < size:
        block = read_at(file, at + len(held), min(_BLOCK, size - at - len(held)))
        if not block:
            return
        held += block
        end = held.rfind(b"\n")
        for found in _MARKER.finditer(held):
            mark = _mark(at + found.start() + 1, found[1])
            if mark is not None:
                yield mark
        if end < 0 or (end == 0 and not _may_begin(held)):
            end = len(held)
        held, at = held[end:], at + end


def _may_begin(line: bytes) -> bool:
    """Whether a line that has not ended yet could be a marker."""
    return len(line) < _LONGEST_LINE and (line.startswith(_BEGINS) or _BEGINS.startswith(line))


def _mark(at: int, line: bytes) -> _Mark | None:
    known = attributes(line.decode("utf-8", "surrogateescape"))
    if known is None:
        return None
    return _Mark(at, known[""], known.get("id" if known[""] == "call" else "of", ""))
