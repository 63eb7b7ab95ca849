"""A page of a conversation: some entries of a file of any length, found from its end without reading the rest."""

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from retinue.domain.transcript import OF_RESULT, Entry, name_of
from retinue.domain.value import value
from retinue.errors import Failed, NotFound
from retinue.sessions.markdown.chunks import PORTION, Lines, Portion
from retinue.sessions.markdown.marker import KINDS, OPEN, attributes, quoted
from retinue.sessions.markdown.parser import Reading, read_portion, readings, starts
from retinue.sessions.markdown.torn_tail import end_of
from retinue.storage.file_io import open_file, read_at

_MARKER = re.compile(rf"\n{OPEN}(?:{'|'.join(KINDS)}) ".encode())
_LONGEST_MARKER = 64 * 1024
_MOST_REMEMBERED = 4096

Placed = tuple[int, Entry]
"""An entry, and where in the file its marker line starts."""


@value
class Span:
    """Which entries are meant. At most one of the three names is given, and `limit` counts from there: without a name
    it counts from the end."""

    limit: int
    before: str = ""
    after: str = ""
    around: str = ""
    within: int | None = None
    """How many bytes from the end an entry of that name is looked for; without it, everywhere."""


class Pages:
    """Remembers where the pages it gave began and ended, so that the next one is not searched for."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], int] = {}

    def page(self, path: str, span: Span) -> list[Entry]:
        """Oldest first."""
        with _opened(path) as file:
            end = end_of(file)
            placed = self._placed(file, path, end, span)
            for at, entry in (placed[0], placed[-1]) if placed else ():
                self._remember(path, name_of(entry), at)
        return [entry for _, entry in placed]

    def between(self, path: str, *, after: str = "", before: str = "") -> Iterator[list[Entry]]:
        """All entries after one and before another, some at a time."""
        with _opened(path) as file:
            end = end_of(file)
            first = self._find(file, path, end, after) if after else 0
            last = self._find(file, path, end, before) if before else end
            for reading in readings(file, first, last, path, lenient=True):
                yield reading.entries[1:] if after else reading.entries
                after = ""

    def _placed(self, file: int, path: str, end: int, span: Span) -> list[Placed]:
        name = span.before or span.after or span.around
        if not name:
            return _last(file, path, end, end, span.limit)
        at = self._find(file, path, end, name, within=span.within)
        if span.before:
            return _last(file, path, at, end, span.limit)
        if span.after:
            return _first(file, path, at, end, span.limit + 1)[1:]
        earlier = _last(file, path, at, end, span.limit // 2)
        return [*earlier, *_first(file, path, at, end, span.limit - len(earlier))]

    def _find(self, file: int, path: str, end: int, name: str, *, within: int | None = None) -> int:
        known = self._places.get((path, name))
        if known is not None and known < end and _stands(file, known, name):
            return known
        if name.startswith("line-"):
            found = _by_line(file, path, end, name)
        else:
            found = _searched(file, end, name, within=within)
        if found is None:
            raise NotFound(f"there is no entry {name!r} in {path}")
        return found

    def _remember(self, path: str, name: str, at: int) -> None:
        if len(self._places) >= _MOST_REMEMBERED:
            self._places.clear()
        self._places[path, name] = at


def last_reading(file: int, path: str, end: int) -> Reading:
    """How a file ends: its last few entries, and what is typed below them."""
    return read_portion(next(_backwards(file, end, end)), path, lenient=True, lines=Lines(file).before)


def _last(file: int, path: str, upto: int, end: int, limit: int) -> list[Placed]:
    """The newest so many before a place."""
    lines = Lines(file)
    pieces: list[list[Placed]] = []
    count = 0
    for portion in _backwards(file, upto, end) if limit else ():
        reading = read_portion(portion, path, lenient=True, lines=lines.before)
        pieces.append(_where(portion, reading))
        count += len(reading.entries)
        if count >= limit:
            break
    placed = [each for piece in reversed(pieces) for each in piece]
    return placed[max(0, len(placed) - limit) :]


def _first(file: int, path: str, at: int, end: int, limit: int) -> list[Placed]:
    """The oldest so many from a place on."""
    lines = Lines(file)
    placed: list[Placed] = []
    while len(placed) < limit and at < end:
        portion = _forwards(file, at, end)
        reading = read_portion(portion, path, lenient=True, lines=lines.before)
        placed += _where(portion, reading)
        if reading.problem is not None:
            break
        at += len(portion.data)
    return placed[:limit]


def _where(portion: Portion, reading: Reading) -> list[Placed]:
    """Words at the very start of a file have no marker line: they stand at its beginning."""
    found = zip(starts(portion, reading), reading.entries, strict=True)
    return [(max(0, at), entry) for at, entry in found]


def _forwards(file: int, at: int, end: int) -> Portion:
    """Whole entries from a marker line on."""
    size = PORTION
    while True:
        data = read_at(file, at, min(size, end - at))
        if at + len(data) >= end:
            return Portion(data=data, at=at)
        cut = max((found.start() + 1 for found in _MARKER.finditer(data)), default=0)
        if cut:
            return Portion(data=data[:cut], at=at, more=True)
        size *= 2


def _backwards(file: int, upto: int, end: int) -> Iterator[Portion]:
    """Whole entries before a place, which is the end or a marker line: the last portion first."""
    while True:
        portion = _before(file, upto, end)
        yield portion
        upto = portion.at
        if not upto:
            return


def _before(file: int, upto: int, end: int) -> Portion:
    size = PORTION
    while True:
        at = max(0, upto - size)
        data = read_at(file, at, upto - at)
        found = _MARKER.search(data) if at else None
        if not at or found is not None:
            cut = found.start() + 1 if found is not None else 0
            return Portion(data=data[cut:], at=at + cut, more=upto < end)
        size *= 2


def _searched(file: int, end: int, name: str, *, within: int | None) -> int | None:
    """The last entry of this name, looked for from the end. Most of a long file is only searched for the bytes."""
    word = f"={quoted(name.removesuffix(OF_RESULT))}".encode()
    for portion in _backwards(file, end, end):
        if within is not None and end - portion.at - len(portion.data) > within:
            return None
        if word not in portion.data:
            continue
        marks = [0, *(found.start() + 1 for found in _MARKER.finditer(portion.data))]
        for mark in reversed(marks):
            if _named(portion.data[mark : mark + _LONGEST_MARKER], name):
                return portion.at + mark
    return None


def _by_line(file: int, path: str, end: int, name: str) -> int | None:
    """An entry that a person typed has no name in the file but the line it stands on."""
    lines, at = Lines(file), 0
    while at < end:
        portion = _forwards(file, at, end)
        reading = read_portion(portion, path, lenient=True, lines=lines.before)
        for start, entry in _where(portion, reading):
            if name_of(entry) == name:
                return start
        at += len(portion.data)
    return None


def _stands(file: int, at: int, name: str) -> bool:
    """Whether the entry is still where it was: a person may have edited the file."""
    before = read_at(file, max(0, at - 1), 1)
    return (not at or before == b"\n") and _named(read_at(file, at, _LONGEST_MARKER), name)


def _named(data: bytes, name: str) -> bool:
    line = data.partition(b"\n")[0].decode("utf-8", "surrogateescape")
    known = attributes(line[len(OPEN) :]) if line.startswith(OPEN) else None
    if known is None:
        return False
    if known[""] == "result":
        return f"{known.get('of')}{OF_RESULT}" == name
    return known.get("id") == name and known[""] != "retinue"


@contextmanager
def _opened(path: str) -> Generator[int]:
    try:
        file = open_file(path)
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield file
    finally:
        os.close(file)
