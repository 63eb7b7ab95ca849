"""Split session.md into chunks at marker lines, so that a file of any length is read in little memory."""

import re
from collections.abc import Iterator

from msgspec import Struct

from retinue.sessions.markdown.grammar import ANY_KIND, COMMENT_OPEN
from retinue.storage.file_io import read_at

CHUNK_BYTES = 64 * 1024
"""Approximate bytes read at once; a longer entry is always read whole."""
_SEPARATOR = f"\n{COMMENT_OPEN}".encode()
_MARKER_KIND = re.compile(rf"(?:{ANY_KIND}) ".encode())


class Chunk(Struct, frozen=True, kw_only=True):
    """A part of a file that holds complete entries."""

    data: bytes
    offset: int = 0
    """Offset in the file. Except at 0 a chunk starts with a marker line."""
    has_next: bool = False
    """True if a marker line follows, which closes the last body."""


def iter_chunks(fd: int, start: int, end: int, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield chunks from a file's start, or a marker line, to `end`. The last chunk may be empty."""
    buffer, offset = b"", start
    while True:
        read_end = offset + len(buffer)
        # Double the read size while no marker appears, so that long entries take linear time.
        block = read_at(fd, read_end, min(max(size, len(buffer)), end - read_end))
        buffer += block
        if not block or read_end + len(block) >= end:
            yield Chunk(data=buffer, offset=offset)
            return
        marker_offset = _last_marker_offset(buffer)
        if marker_offset:
            yield Chunk(data=buffer[:marker_offset], offset=offset, has_next=True)
            buffer, offset = buffer[marker_offset:], offset + marker_offset


class LineCounter:
    """Count the lines before an offset on demand, continuing from the last answer."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._last_count = (0, 0)

    def count_before(self, offset: int) -> int:
        counted, count = self._last_count if self._last_count[0] <= offset else (0, 0)
        while counted < offset and (block := read_at(self._fd, counted, min(CHUNK_BYTES, offset - counted))):
            count += block.count(b"\n")
            counted += len(block)
        self._last_count = (counted, count)
        return count


def _last_marker_offset(data: bytes) -> int:
    """Return the offset of the last line that is surely a marker; 0 if there is none after the first."""
    end = len(data)
    while (found := data.rfind(_SEPARATOR, 0, end)) >= 0:
        if _MARKER_KIND.match(data, found + len(_SEPARATOR)):
            return found + 1
        end = found + 1
    return 0
