"""Where a file that a crash cut short stops being what was acknowledged."""

import os
import re
from dataclasses import dataclass

from retinue.sessions.markdown.marker import BEGINS, KINDS, OPEN, Attributes, attributes, number_in
from retinue.sessions.markdown.parser import FRAMES
from retinue.storage.file_io import read_at

_OPEN = OPEN.encode()
_SEPARATOR = b"\n" + _OPEN
_STARTS = tuple(f"{OPEN}{kind}".encode() for kind in KINDS)
_NEAR = 64 * 1024
_BLANK = re.compile(rb"\0+")
_SECTOR = 512
"""What a disk writes at once, at least: where bytes were never written, they are missing up to such a place."""
_ENOUGH = 3
"""Markers other than of calls: the last may be torn, the one before tells whether a reply is whole."""


def ends(file: int) -> tuple[int, int | None]:
    """How long the file is, and where its tail is torn; its owner may just be writing, so a torn one is looked at twice."""
    size = os.fstat(file).st_size
    torn = torn_from(file, size)
    if torn is not None:
        size = os.fstat(file).st_size
        torn = torn_from(file, size)
    return size, torn


def end_of(file: int) -> int:
    """Where what was acknowledged ends."""
    size, torn = ends(file)
    return size if torn is None else torn


def torn_from(file: int, size: int) -> int | None:
    """Where the tail of a file of any length is torn; it is read from its end, no further than needed."""
    length = _NEAR
    while length < size:
        data = read_at(file, size - length, length)
        start = _several_back(data)
        if start is not None:
            torn = torn_at(data[start:], size - length + start)
            return None if torn is None else size - length + start + torn
        length *= 8
    return torn_at(read_at(file, 0, size))


def torn_at(data: bytes, offset: int = 0) -> int | None:
    """The byte from which a tail is torn: an unfinished marker line, a body shorter than its marker says, a reply
    without all of its calls (both are one write, so such a reply was never acknowledged), or bytes that the disk never
    got. `offset` is where in the file the tail begins."""
    size, data = len(data), data[: _written(data, offset)]
    good = _whole_lines(data, len(data))
    last = _marker_before(data, good)
    if last is not None and last.length >= 0 and good - last.body < last.length:
        good = last.start
    good = _whole_replies(data, good)
    return None if good == size else good


@dataclass(frozen=True, slots=True)
class _Marker:
    start: int
    body: int
    """Where its body starts."""
    known: Attributes

    @property
    def kind(self) -> str:
        return self.known.get("", "")

    @property
    def length(self) -> int:
        """The bytes its body should have, -1 when it does not say."""
        return number_in(self.known, "n")


def _written(data: bytes, offset: int) -> int:
    """Where the first bytes begin that the power failed before; zeros stand in for them. No text of ours holds any: what
    a person pasted ends where it likes, and not with a sector, nor where an entry begins: a line ends before that."""
    for blank in _BLANK.finditer(data):
        end = blank.end()
        if end == len(data) or not (offset + end) % _SECTOR or data.startswith(_STARTS, end):
            return blank.start()
    return len(data)


def _whole_lines(data: bytes, end: int) -> int:
    """The end without the first part of a marker line, when that is what the last line is."""
    start = data.rfind(b"\n", 0, end) + 1
    line = data[start:end]
    if not line:
        return end
    if line.startswith(_STARTS):
        text = line[len(_OPEN) :].decode("utf-8", "surrogateescape")
        return start if BEGINS.match(text) and attributes(text) is None else end
    if not any(each.startswith(line) for each in _STARTS):
        return end
    return start if _could_follow(data, start, line) else end


def _could_follow(data: bytes, start: int, line: bytes) -> bool:
    """Whether a new entry would have started here: after exactly the body its predecessor announced."""
    last = _marker_before(data, start)
    if last is None:
        return start == 0
    if last.length >= 0:
        whole = start - last.body > last.length or last.length == 0
        return whole and data[last.body + last.length : start] in FRAMES
    return data.endswith(b"\n\n", 0, start) and len(line) > 1


def _whole_replies(data: bytes, end: int) -> int:
    calls, marker = 0, _marker_before(data, end)
    while marker is not None and marker.kind == "call":
        calls += 1
        marker = _marker_before(data, marker.start)
    if marker is None or marker.kind != "agent" or number_in(marker.known, "calls") <= calls:
        return end
    return marker.start


def _several_back(data: bytes) -> int | None:
    """Where the last few markers begin, of which some are not of calls; None when there are not so many."""
    seen, marker = 0, _marker_before(data, len(data))
    while marker is not None and marker.start:
        seen += marker.kind != "call"
        if seen == _ENOUGH:
            return marker.start
        marker = _marker_before(data, marker.start)
    return None


def _marker_before(data: bytes, end: int) -> _Marker | None:
    """The last marker line that starts before `end`; lines that only look like one are passed over."""
    while end > 0:
        found = data.rfind(_SEPARATOR, 0, end)
        start = found + 1 if found >= 0 else 0
        stop = data.find(b"\n", start)
        line = data[start : stop if stop >= 0 else len(data)].removeprefix(b"\xef\xbb\xbf")
        known = (
            attributes(line[len(_OPEN) :].decode("utf-8", "surrogateescape"))
            if line.startswith(_OPEN)
            else None
        )
        if known is not None:
            return _Marker(start, stop + 1 if stop >= 0 else len(data), known)
        end = start
    return None
