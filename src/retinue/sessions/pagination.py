"""Pages of a conversation, found from the file's end without reading the rest."""

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from msgspec import Struct

from retinue.domain.transcript import RESULT_ID_SUFFIX, Entry, public_entry_id
from retinue.errors import Failed, NotFound
from retinue.sessions.markdown.chunks import CHUNK_BYTES, Chunk, LineCounter
from retinue.sessions.markdown.grammar import ANY_KIND, COMMENT_OPEN, ID_NAMES, RESULT
from retinue.sessions.markdown.marker import parse_marker, quote_value
from retinue.sessions.markdown.parser import ParsedTranscript, entry_offsets, parse_chunk, parse_file
from retinue.sessions.markdown.torn_tail import intact_end
from retinue.storage.file_io import open_regular_file, read_at

_MARKER = re.compile(rf"\n{COMMENT_OPEN}(?:{ANY_KIND}) ".encode())
_MAX_MARKER_BYTES = 64 * 1024
_MAX_REMEMBERED = 4096

EntryAtOffset = tuple[int, Entry]
"""The offset of an entry's marker line in the file, and the entry."""


class PageRequest(Struct, frozen=True, kw_only=True):
    """A request for some entries of a conversation.

    At most one of `before`, `after` and `around` is the id of an entry, and `limit` counts from that entry.
    Without any of the three, `limit` counts from the end.
    """

    limit: int
    before: str = ""
    after: str = ""
    around: str = ""
    within_bytes: int | None = None
    """Search distance in bytes from the end of the file; without a value the whole file is searched."""


class PageReader:
    """Page reader that remembers the offsets of page boundaries, so that the next page needs no search."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], int] = {}

    def read_page(self, path: str, request: PageRequest) -> list[Entry]:
        """Read a page, oldest entry first."""
        with _open_file(path) as fd:
            end = intact_end(fd)
            page = self._read_with_offsets(fd, path, end, request)
            for offset, entry in (page[0], page[-1]) if page else ():
                self._remember_offset(path, public_entry_id(entry), offset)
        return [entry for _, entry in page]

    def iter_between(self, path: str, *, after: str = "", before: str = "") -> Iterator[list[Entry]]:
        """Yield all entries after one and before another, in batches."""
        with _open_file(path) as fd:
            end = intact_end(fd)
            first = self._find_entry(fd, path, end, after) if after else 0
            last = self._find_entry(fd, path, end, before) if before else end
            for parsed in parse_file(fd, first, last, path, lenient=True):
                yield parsed.entries[1:] if after else parsed.entries
                after = ""

    def _read_with_offsets(self, fd: int, path: str, end: int, request: PageRequest) -> list[EntryAtOffset]:
        entry_id = request.before or request.after or request.around
        if not entry_id:
            return _entries_before(fd, path, end, end, request.limit)
        offset = self._find_entry(fd, path, end, entry_id, within_bytes=request.within_bytes)
        if request.before:
            return _entries_before(fd, path, offset, end, request.limit)
        if request.after:
            return _entries_from(fd, path, offset, end, request.limit + 1)[1:]
        earlier = _entries_before(fd, path, offset, end, request.limit // 2)
        return [*earlier, *_entries_from(fd, path, offset, end, request.limit - len(earlier))]

    def _find_entry(
        self, fd: int, path: str, end: int, entry_id: str, *, within_bytes: int | None = None
    ) -> int:
        remembered = self._offsets.get((path, entry_id))
        if remembered is not None and remembered < end and _is_entry_at(fd, remembered, entry_id):
            return remembered
        if entry_id.startswith("line-"):
            found = _find_by_line(fd, path, end, entry_id)
        else:
            found = _search_backwards(fd, end, entry_id, within_bytes=within_bytes)
        if found is None:
            raise NotFound(f"there is no entry {entry_id!r} in {path}")
        return found

    def _remember_offset(self, path: str, entry_id: str, offset: int) -> None:
        if len(self._offsets) >= _MAX_REMEMBERED:
            self._offsets.clear()
        self._offsets[path, entry_id] = offset


def parse_last_chunk(fd: int, path: str, end: int) -> ParsedTranscript:
    """Parse the end of a file: its last few entries and the draft below them."""
    return parse_chunk(
        next(_chunks_backwards(fd, end, end)),
        path,
        lenient=True,
        count_lines_before=LineCounter(fd).count_before,
    )


def _entries_before(fd: int, path: str, end_offset: int, end: int, limit: int) -> list[EntryAtOffset]:
    """Return the newest `limit` entries before an offset."""
    line_counter = LineCounter(fd)
    chunks: list[list[EntryAtOffset]] = []
    count = 0
    for chunk in _chunks_backwards(fd, end_offset, end) if limit else ():
        parsed = parse_chunk(chunk, path, lenient=True, count_lines_before=line_counter.count_before)
        chunks.append(_with_offsets(chunk, parsed))
        count += len(parsed.entries)
        if count >= limit:
            break
    entries = [each for chunk_entries in reversed(chunks) for each in chunk_entries]
    return entries[max(0, len(entries) - limit) :]


def _entries_from(fd: int, path: str, start: int, end: int, limit: int) -> list[EntryAtOffset]:
    """Return the oldest `limit` entries from an offset on."""
    line_counter = LineCounter(fd)
    entries: list[EntryAtOffset] = []
    while len(entries) < limit and start < end:
        chunk = _chunk_from(fd, start, end)
        parsed = parse_chunk(chunk, path, lenient=True, count_lines_before=line_counter.count_before)
        entries += _with_offsets(chunk, parsed)
        if parsed.error is not None:
            break
        start += len(chunk.data)
    return entries[:limit]


def _with_offsets(chunk: Chunk, parsed: ParsedTranscript) -> list[EntryAtOffset]:
    """Pair entries with their offsets.

    Text at the very start of a file has no marker line and gets offset 0.
    """
    pairs = zip(entry_offsets(chunk, parsed), parsed.entries, strict=True)
    return [(max(0, offset), entry) for offset, entry in pairs]


def _chunk_from(fd: int, start: int, end: int) -> Chunk:
    """Read complete entries from a marker line on."""
    size = CHUNK_BYTES
    while True:
        data = read_at(fd, start, min(size, end - start))
        if start + len(data) >= end:
            return Chunk(data=data, offset=start)
        last_marker = max((match.start() + 1 for match in _MARKER.finditer(data)), default=0)
        if last_marker:
            return Chunk(data=data[:last_marker], offset=start, has_next=True)
        size *= 2


def _chunks_backwards(fd: int, end_offset: int, end: int) -> Iterator[Chunk]:
    """Yield chunks of complete entries backwards from an offset, which is the end or a marker line."""
    while True:
        chunk = _chunk_before(fd, end_offset, end)
        yield chunk
        end_offset = chunk.offset
        if not end_offset:
            return


def _chunk_before(fd: int, end_offset: int, end: int) -> Chunk:
    size = CHUNK_BYTES
    while True:
        start = max(0, end_offset - size)
        data = read_at(fd, start, end_offset - start)
        match = _MARKER.search(data) if start else None
        if not start or match is not None:
            marker_start = match.start() + 1 if match is not None else 0
            return Chunk(data=data[marker_start:], offset=start + marker_start, has_next=end_offset < end)
        size *= 2


def _search_backwards(fd: int, end: int, entry_id: str, *, within_bytes: int | None) -> int | None:
    """Find the last entry with this id, from the end; most of a long file is searched as bytes without parsing."""
    needle = f"={quote_value(entry_id.removesuffix(RESULT_ID_SUFFIX))}".encode()
    for chunk in _chunks_backwards(fd, end, end):
        if within_bytes is not None and end - chunk.offset - len(chunk.data) > within_bytes:
            return None
        if needle not in chunk.data:
            continue
        markers = [0, *(match.start() + 1 for match in _MARKER.finditer(chunk.data))]
        for marker in reversed(markers):
            if _is_marker_of(chunk.data[marker : marker + _MAX_MARKER_BYTES], entry_id):
                return chunk.offset + marker
    return None


def _find_by_line(fd: int, path: str, end: int, entry_id: str) -> int | None:
    """Find an entry that a person typed; its id is only its line number."""
    line_counter, position = LineCounter(fd), 0
    while position < end:
        chunk = _chunk_from(fd, position, end)
        parsed = parse_chunk(chunk, path, lenient=True, count_lines_before=line_counter.count_before)
        for entry_offset, entry in _with_offsets(chunk, parsed):
            if public_entry_id(entry) == entry_id:
                return entry_offset
        position += len(chunk.data)
    return None


def _is_entry_at(fd: int, position: int, entry_id: str) -> bool:
    """Return True if the entry is still at this offset; a person may have edited the file."""
    before = read_at(fd, max(0, position - 1), 1)
    return (not position or before == b"\n") and _is_marker_of(
        read_at(fd, position, _MAX_MARKER_BYTES), entry_id
    )


def _is_marker_of(data: bytes, entry_id: str) -> bool:
    line = data.partition(b"\n")[0].decode("utf-8", "surrogateescape")
    attrs = parse_marker(line[len(COMMENT_OPEN) :]) if line.startswith(COMMENT_OPEN) else None
    if attrs is None:
        return False
    kind = attrs[""]
    suffix = RESULT_ID_SUFFIX if kind == RESULT.name else ""
    return kind in ID_NAMES and f"{attrs.get(ID_NAMES[kind], '')}{suffix}" == entry_id


@contextmanager
def _open_file(path: str) -> Generator[int]:
    try:
        fd = open_regular_file(path)
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)
