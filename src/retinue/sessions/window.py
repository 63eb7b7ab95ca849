"""Which part of a long session.md is loaded: its newest complete exchanges, from a rarely moving start."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retinue.sessions.markdown.grammar import AGENT, CALL, COMMENT_OPEN, ID_NAMES, RESULT, USER
from retinue.sessions.markdown.marker import parse_marker
from retinue.storage.file_io import read_at

WINDOW_BYTES = 16 << 20
"""Maximum bytes of a conversation to load, unless a single exchange is longer.

At least half as many are loaded: about two million tokens, more than models accept.
"""
_BLOCK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 1 << 20
_EXCHANGE_KINDS = "|".join(kind.name for kind in (USER, AGENT, CALL, RESULT))
_MARKER = re.compile(rf"\n{COMMENT_OPEN}((?:{_EXCHANGE_KINDS}) [^\n]*)(?=\n)".encode())
_MARKER_PREFIX = f"\n{COMMENT_OPEN}".encode()


def window_start(fd: int, size: int, window: int = WINDOW_BYTES) -> int:
    """Return the offset where the window of a file of this size starts.

    The start is 0 or a user's entry, else an agent's, such that no later tool result lacks its call. It moves
    only when the file has grown by another quarter of the window, so that the prompt prefix stays the same
    from turn to turn and from run to run.
    """
    if size <= window:
        return 0
    step = max(1, window // 4)
    floor = -(-(size - window) // step) * step
    while floor > 0:
        for kind in (USER.name, AGENT.name):
            start = _first_safe_start(_iter_markers(fd, floor, size), kind, floor + step)
            if start is not None:
                return start
        floor -= step
    return 0


@dataclass(frozen=True, slots=True)
class _MarkerLine:
    offset: int
    kind: str
    entry_id: str
    """For a tool result the id of its call."""


def _first_safe_start(markers: Iterator[_MarkerLine], kind: str, limit: int) -> int | None:
    """Return the first entry of this kind before the limit that starts a complete exchange.

    No later tool call or result may belong to an earlier entry, which is known when a second reply starts. A
    result that rules out one start rules out all earlier ones too.
    """
    start: int | None = None
    replies = 0
    call_ids: set[str] = set()
    for marker in markers:
        if start is not None:
            replies += marker.kind == AGENT.name
            if replies > 1:
                return start
            if marker.kind == CALL.name and replies:
                call_ids.add(marker.entry_id)
            elif marker.kind in {CALL.name, RESULT.name} and marker.entry_id not in call_ids:
                start = None
        elif marker.offset >= limit:
            return None
        elif marker.kind == kind:
            start, replies = marker.offset, int(kind == AGENT.name)
            call_ids.clear()
    return start


def _iter_markers(fd: int, floor: int, size: int) -> Iterator[_MarkerLine]:
    """Yield the marker lines after an offset in the middle of any line.

    The byte before it is read too, because it tells whether a marker starts exactly there.
    """
    offset, buffer = floor - 1, b""
    while offset + len(buffer) < size:
        block = read_at(fd, offset + len(buffer), min(_BLOCK_BYTES, size - offset - len(buffer)))
        if not block:
            return
        buffer += block
        end = buffer.rfind(b"\n")
        for match in _MARKER.finditer(buffer):
            marker = _parse_marker_line(offset + match.start() + 1, match[1])
            if marker is not None:
                yield marker
        if end < 0 or (end == 0 and not _may_be_marker(buffer)):
            end = len(buffer)
        buffer, offset = buffer[end:], offset + end


def _may_be_marker(line: bytes) -> bool:
    """Return True if an unfinished line could be a marker."""
    return len(line) < _MAX_LINE_BYTES and (
        line.startswith(_MARKER_PREFIX) or _MARKER_PREFIX.startswith(line)
    )


def _parse_marker_line(offset: int, line: bytes) -> _MarkerLine | None:
    attrs = parse_marker(line.decode("utf-8", "surrogateescape"))
    if attrs is None:
        return None
    return _MarkerLine(offset, attrs[""], attrs.get(ID_NAMES[attrs[""]], ""))
