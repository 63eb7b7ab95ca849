"""Find the torn tail that a crash leaves at the end of session.md."""

import os
import re
from dataclasses import dataclass

from retinue.sessions.markdown.grammar import AGENT, CALL, CALLS, COMMENT_OPEN, HEAD, LENGTH, MARKER_KINDS
from retinue.sessions.markdown.marker import MARKER_START, Attributes, count_attribute, parse_marker
from retinue.sessions.markdown.parser import BODY_TERMINATORS
from retinue.storage.file_io import read_at

_OPEN = COMMENT_OPEN.encode()
_SEPARATOR = b"\n" + _OPEN
_MARKER_STARTS = tuple(f"{COMMENT_OPEN}{kind}".encode() for kind in MARKER_KINDS)
_TAIL_BYTES = 64 * 1024
_ZEROS = re.compile(rb"\0+")
_HEADER_START = f"{COMMENT_OPEN}{HEAD.name} ".encode()
_WIDE_OPEN = re.compile(rb"<\0{1,3}!\0{1,3}-\0{1,3}-")
"""The beginning of a marker in UTF-16 or UTF-32, whatever the byte order."""
_SECTOR_BYTES = 512
"""Smallest unit a disk writes at once: unwritten bytes extend to a multiple of it."""
_MARKERS_NEEDED = 3
"""Markers other than tool calls to look back at.

The last may be torn; the one before shows whether a reply is complete.
"""


def size_and_torn_offset(fd: int) -> tuple[int, int | None]:
    """Return the file's size and the offset of its torn tail, or None.

    The offset is checked twice, because another process may be writing at this moment.
    """
    size = os.fstat(fd).st_size
    torn_offset = find_torn_tail(fd, size)
    if torn_offset is not None:
        size = os.fstat(fd).st_size
        torn_offset = find_torn_tail(fd, size)
    return size, torn_offset


def intact_end(fd: int) -> int:
    """Return the offset where acknowledged data ends."""
    size, torn_offset = size_and_torn_offset(fd)
    return size if torn_offset is None else torn_offset


def find_torn_tail(fd: int, size: int) -> int | None:
    """Return the offset of a file's torn tail, or None; read from the end, no further than needed."""
    length = _TAIL_BYTES
    while length < size:
        data = read_at(fd, size - length, length)
        start = _context_start(data)
        if start is not None:
            torn_offset = find_torn_tail_in(data[start:], size - length + start)
            return None if torn_offset is None else size - length + start + torn_offset
        length *= 8
    return find_torn_tail_in(read_at(fd, 0, size))


def find_torn_tail_in(data: bytes, offset: int = 0) -> int | None:
    """Return the offset of a torn tail in `data`, or None.

    A torn tail is an unfinished marker line, a body shorter than its marker says, a reply without all of its
    tool calls (they share one write, so such a reply was never acknowledged), or bytes that never reached the
    disk. `offset` is the position of `data` in the file.
    """
    size, data = len(data), data[: _written_length(data, offset)]
    good_end = _drop_partial_marker(data, len(data))
    last_marker = _marker_before(data, good_end)
    if (
        last_marker is not None
        and last_marker.length >= 0
        and good_end - last_marker.body_start < last_marker.length
    ):
        good_end = last_marker.start
    good_end = _drop_incomplete_reply(data, good_end)
    return None if good_end == size else good_end


@dataclass(frozen=True, slots=True)
class _Marker:
    start: int
    body_start: int
    """Offset where the marker's body starts."""
    attrs: Attributes

    @property
    def kind(self) -> str:
        return self.attrs.get("", "")

    @property
    def length(self) -> int:
        """Expected bytes of the body; -1 if the marker has no length."""
        return count_attribute(self.attrs, LENGTH.name)


def _written_length(data: bytes, offset: int) -> int:
    """Return the offset of the first bytes lost in a power failure, which read as zeros.

    Retinue writes no zeros. Zeros that a person pasted end neither at a sector boundary nor where an entry
    starts, because a newline comes first. Zeros before the header, and a file that an editor saved in another
    encoding, are no such bytes either: everything in it was acknowledged.
    """
    if b"\0" in data and _WIDE_OPEN.search(data):
        return len(data)
    for zeros in _ZEROS.finditer(data):
        end = zeros.end()
        if not (offset or zeros.start()) and data.startswith(_HEADER_START, end):
            continue
        if end == len(data) or not (offset + end) % _SECTOR_BYTES or data.startswith(_MARKER_STARTS, end):
            return zeros.start()
    return len(data)


def _drop_partial_marker(data: bytes, end: int) -> int:
    """Return the end without a partial marker line at the end of the data."""
    start = data.rfind(b"\n", 0, end) + 1
    line = data[start:end]
    if not line:
        return end
    if line.startswith(_MARKER_STARTS):
        text = line[len(_OPEN) :].decode("utf-8", "surrogateescape")
        # A `>` ends a marker, so a line that continues after one was edited and not cut off.
        is_cut_off = parse_marker(text) is None and ">" not in text
        return start if MARKER_START.match(text) and is_cut_off else end
    if not any(each.startswith(line) for each in _MARKER_STARTS):
        return end
    return start if _could_start_entry(data, start, line) else end


def _could_start_entry(data: bytes, start: int, line: bytes) -> bool:
    """Return True if an entry could start here: right after the body that the previous marker announced."""
    last_marker = _marker_before(data, start)
    if last_marker is None:
        return start == 0
    if last_marker.length >= 0:
        is_complete = start - last_marker.body_start > last_marker.length or last_marker.length == 0
        return is_complete and data[last_marker.body_start + last_marker.length : start] in BODY_TERMINATORS
    return data.endswith(b"\n\n", 0, start) and len(line) > 1


def _drop_incomplete_reply(data: bytes, end: int) -> int:
    calls, marker = 0, _marker_before(data, end)
    while marker is not None and marker.kind == CALL.name:
        calls += 1
        marker = _marker_before(data, marker.start)
    if marker is None or marker.kind != AGENT.name or count_attribute(marker.attrs, CALLS.name) <= calls:
        return end
    return marker.start


def _context_start(data: bytes) -> int | None:
    """Return the offset from which the data has enough markers besides tool calls, or None."""
    other_markers, marker = 0, _marker_before(data, len(data))
    while marker is not None and marker.start:
        other_markers += marker.kind != CALL.name
        if other_markers == _MARKERS_NEEDED:
            return marker.start
        marker = _marker_before(data, marker.start)
    return None


def _marker_before(data: bytes, end: int) -> _Marker | None:
    """Return the last marker line that starts before `end`, skipping lines that only look like one."""
    while end > 0:
        separator = data.rfind(_SEPARATOR, 0, end)
        start = separator + 1 if separator >= 0 else 0
        stop = data.find(b"\n", start)
        line = data[start : stop if stop >= 0 else len(data)].removeprefix(b"\xef\xbb\xbf")
        attrs = (
            parse_marker(line[len(_OPEN) :].decode("utf-8", "surrogateescape"))
            if line.startswith(_OPEN)
            else None
        )
        if attrs is not None:
            return _Marker(start, stop + 1 if stop >= 0 else len(data), attrs)
        end = start
    return None
