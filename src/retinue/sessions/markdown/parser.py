"""How session.md is read back: linear, exact on what we wrote, patient with what people change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retinue.domain.run import Usage
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said
from retinue.errors import Unreadable
from retinue.sessions.markdown.chunks import Lines, Portion, portions
from retinue.sessions.markdown.fast_parser import LANES
from retinue.sessions.markdown.marker import (
    BEGINS,
    OPEN,
    Attributes,
    Head,
    attributes,
    counted,
    number_in,
    read_head,
)
from retinue.sessions.markdown.writer import unescape

SEPARATOR = f"\n{OPEN}"
FRAMES = (b"", b"\n", b"\n\n")
"""What can stand between a whole body and the end of the file."""
_ESCAPED = f"\\{OPEN}"
_NO_USAGE = Usage()


@dataclass(slots=True, kw_only=True)
class Reading:
    """What stands in one session.md, or in a portion of it."""

    entries: list[Entry] = field(default_factory=list[Entry])
    pieces: list[int] = field(default_factory=list[int])
    """Which piece each entry came from, for `starts`."""
    head: Head | None = None
    end: int = 0
    """Where the entries end, in bytes: a blank open user line or the end of the file."""
    opened: str = ""
    """The id of the open user line at the end; empty when there is none."""
    opened_at: int = -1
    """Where that line starts, in bytes; -1 when there is none: words may stand in a file that has no line yet."""
    typed: str = ""
    """What a person wrote below it."""
    gap: bytes = b""
    """What must be written first, so that a marker that follows does not change the last body."""
    thoughtful: set[str] = field(default_factory=set[str])
    """The entries that have blocks in the sidecar."""
    problem: Unreadable | None = None
    """Why a lenient reading stopped."""


def read(data: bytes, where: str, *, lenient: bool = False) -> Reading:
    """Reads a whole file. A lenient reading stops at what it cannot understand and says so; a strict one raises."""
    return read_portion(Portion(data=data), where, lenient=lenient)


def read_portion(
    portion: Portion, where: str, *, lenient: bool = False, lines: Callable[[int], int] = lambda _: 0
) -> Reading:
    """Reads a part of a file as it is read in the whole; `lines` says how many stand before a place."""
    text = _Text(portion, where, lines)
    reading = Reading(end=portion.at + len(portion.data))
    try:
        _read(text, reading)
    except Unreadable as error:
        if not lenient:
            raise
        reading.problem = error
    return reading


def readings(file: int, start: int, end: int, where: str, *, lenient: bool = False) -> Iterator[Reading]:
    """Reads a file from its beginning or a marker line on, portion by portion, until the first problem."""
    lines = Lines(file)
    for portion in portions(file, start, end):
        reading = read_portion(portion, where, lenient=lenient, lines=lines.before)
        yield reading
        if reading.problem is not None:
            return


def joined(parts: Iterable[Reading]) -> Reading:
    """Portions that follow each other, as one: how it ends is known to the last."""
    entries: list[Entry] = []
    thoughtful: set[str] = set()
    last = Reading()
    for last in parts:
        entries += last.entries
        thoughtful |= last.thoughtful
    last.entries, last.thoughtful = entries, thoughtful
    return last


def starts(portion: Portion, reading: Reading) -> list[int]:
    """Where in the file each entry's marker line starts, in bytes."""
    offsets = _Text(portion, "", lambda _: 0).offsets()
    return [offsets[piece] for piece in reading.pieces]


def typed_text(body: str) -> str:
    """A person's words without the blank lines around them."""
    return body.strip("\n").rstrip()


class _Text:
    """A portion's text in the pieces between `<!-- ` lines. Lines and bytes are counted only when asked for."""

    def __init__(self, portion: Portion, where: str, lines: Callable[[int], int]) -> None:
        text = portion.data.decode("utf-8", "surrogateescape")
        self.where = where
        self.at = portion.at
        self.bom = 3 if not portion.at and text.startswith("\ufeff") else 0
        text = f"\n{text[1:] if self.bom else text}"
        # The newline before the marker that follows belongs to that marker, as it does between two pieces.
        self.pieces = _merged((text[:-1] if portion.more else text).split(SEPARATOR))
        self.final = -1 if portion.more else len(self.pieces) - 1
        """The piece that nothing closes."""
        self.crlf = "\r" in text
        self._lines = lines
        self._counted = (0, 0)

    def line(self, piece: int) -> int:
        """The line of a piece's marker; counted on from the last one asked for, so that reading stays linear."""
        done, line = self._counted if 0 < self._counted[0] <= piece else (0, self._lines(self.at))
        line += sum(self.pieces[each].count("\n") + 1 for each in range(done, piece))
        self._counted = (piece, line)
        return line

    def offset(self, piece: int) -> int:
        return self.offsets(piece)[piece]

    def offsets(self, last: int | None = None) -> list[int]:
        """Where in the file each piece's marker line starts, up to one of them or to the last."""
        found = [self.at + self.bom - len(SEPARATOR)]
        for piece in self.pieces[:last]:
            found.append(found[-1] + len(piece.encode("utf-8", "surrogateescape")) + len(SEPARATOR))
        return found

    def unreadable(self, piece: int, problem: str) -> Unreadable:
        return Unreadable(f"{self.where}:{self.line(piece)}", problem)


def _merged(pieces: list[str]) -> list[str]:
    """A comment of someone else's opens no entry: it belongs to the body it stands in."""
    if all(map(BEGINS.match, pieces[1:])):
        return pieces
    bodies = [[pieces[0]]]
    for piece in pieces[1:]:
        if BEGINS.match(piece):
            bodies.append([piece])
        else:
            bodies[-1].append(piece)
    return [SEPARATOR.join(each) for each in bodies]


def _read(text: _Text, reading: Reading) -> None:
    pieces, entries, origins = text.pieces, reading.entries, reading.pieces
    if pieces[0]:
        _typed(text, reading, 0, pieces[0][1:], {"id": "line-1"}, final=text.final == 0)
    for start in range(1, len(pieces) if text.final < 0 else text.final):
        piece = pieces[start]
        lane = LANES.get(piece[:2])
        found = lane[0].match(piece) if lane else None
        if lane is None or found is None:
            _take(text, reading, start, final=False)
            continue
        body = piece[found.end() :].removesuffix("\n")
        entries.append(lane[1](found, unescape(body, escaped=False) if _ESCAPED in body else body))
        origins.append(start)
    if text.final > 0:
        _take(text, reading, text.final, final=True)


def _take(text: _Text, reading: Reading, start: int, *, final: bool) -> None:
    line, newline, raw = text.pieces[start].partition("\n")
    known = attributes(line)
    if known is None:
        raise text.unreadable(start, f"not a marker line Retinue can read: {OPEN}{line[:80]}")
    if text.crlf:
        raw = f"{raw}\n".replace("\r\n", "\n")[:-1]
    try:
        _TAKERS[known[""]](text, reading, start, raw, known, final=final)
    except (KeyError, ValueError) as error:
        raise text.unreadable(start, f"this marker line lacks or misspells {error}") from error
    if final and not newline:
        reading.gap = b"\n" + (reading.gap or b"\n")


def _head(text: _Text, reading: Reading, start: int, raw: str, known: Attributes, *, final: bool) -> None:
    reading.head = read_head(f"{OPEN}{text.pieces[start]}")
    if start != 1 or text.at or reading.head is None or text.pieces[0]:
        version = known.get("word")
        problem = (
            "a head line stands only at the start of the file"
            if version
            else "this head line is of no version Retinue knows"
        )
        raise text.unreadable(start, problem)
    line = 2 + len(raw) - len(raw.lstrip("\n"))
    _typed(text, reading, start, raw, {"id": f"line-{line}"}, final=final)


def _user(text: _Text, reading: Reading, start: int, raw: str, known: Attributes, *, final: bool) -> None:
    if "n" in known:
        _entry(text, reading, start, raw, known, final=final)
        return
    _typed(text, reading, start, raw, {**known, "id": _id(text, start, known)}, final=final)


def _typed(text: _Text, reading: Reading, start: int, raw: str, known: Attributes, *, final: bool) -> None:
    """Words of a person, below an open user line or in a file that had no entry yet. Blank ones are no entry."""
    words = typed_text(unescape(raw, escaped="esc" in known))
    if not final:
        if words:
            reading.entries.append(_said("user", known["id"], known, words))
            reading.pieces.append(start)
        return
    if words or known.get(""):
        reading.opened, reading.typed = known["id"], words
    if known.get(""):
        reading.opened_at = text.offset(start)
    if not words and known.get(""):
        reading.end = reading.opened_at
    else:
        wanted = 2 if words else min(1, start or len(raw))
        reading.gap = b"\n" * max(0, wanted - _newlines(raw))


def _entry(text: _Text, reading: Reading, start: int, raw: str, known: Attributes, *, final: bool) -> None:
    escaped = "esc" in known
    if final:
        body, reading.gap = _last_body(raw, known)
    else:
        body = raw.removesuffix("\n")
    if escaped or _ESCAPED in body:
        body = unescape(body, escaped=escaped)
    reading.entries.append(_BUILDERS[known[""]](text, start, known, body))
    reading.pieces.append(start)
    if "thoughts" in known:
        reading.thoughtful.add(reading.entries[-1].id)


def _last_body(raw: str, known: Attributes) -> tuple[str, bytes]:
    """The body that nothing closes yet, and what must follow it. The length decides where newlines at the end
    could belong to either; where it disagrees, a person changed the body."""
    data = raw.encode("utf-8", "surrogateescape")
    length = number_in(known, "n")
    said = 0 <= length <= len(data) and data[length:] in FRAMES
    body = data[:length] if said else _unframed(data)
    gap = next(frame for frame in FRAMES if _closed(data + frame, body))
    return body.decode("utf-8", "surrogateescape"), gap


def _closed(data: bytes, body: bytes) -> bool:
    return _unframed(data) == body and data.endswith(b"\n\n" if body else b"\n")


def _unframed(data: bytes) -> bytes:
    return data[:-2] if data.endswith(b"\n\n") else data.removesuffix(b"\n")


def _newlines(raw: str) -> int:
    return min(2, len(raw) - len(raw.rstrip("\n")))


def _id(text: _Text, start: int, known: Attributes) -> str:
    return known.get("id") or f"line-{text.line(start)}"


def _said(by: str, entry_id: str, known: Attributes, body: str) -> Said:
    tokens = "in" in known or "out" in known or "cached" in known
    usage = Usage(input=_count(known, "in"), output=_count(known, "out"), cached=_count(known, "cached"))
    return Said(
        id=entry_id,
        by="agent" if by == "agent" else "user",
        text=body,
        at=known.get("at", ""),
        origin=known.get("from", ""),
        run=known.get("run", ""),
        model=known.get("model", ""),
        usage=usage if tokens else _NO_USAGE,
        stop=known.get("stop", ""),
        calls=_count(known, "calls"),
    )


def _count(known: Attributes, name: str) -> int:
    return counted(known[name]) if name in known else 0


def _build_said(text: _Text, start: int, known: Attributes, body: str) -> Said:
    return _said(known[""], _id(text, start, known), known, body)


def _build_called(_text: _Text, _start: int, known: Attributes, body: str) -> Called:
    return Called(
        id=known["id"],
        tool=known["tool"],
        args=body,
        at=known.get("at", ""),
        run=known.get("run", ""),
        broken=known.get("broken", ""),
    )


def _build_returned(_text: _Text, _start: int, known: Attributes, body: str) -> Returned:
    return Returned(
        of=known["of"],
        text=body,
        ok=known.get("word") != "failed",
        ms=_count(known, "ms"),
        at=known.get("at", ""),
        run=known.get("run", ""),
    )


def _build_notice(text: _Text, start: int, known: Attributes, body: str) -> Notice:
    return Notice(
        id=_id(text, start, known),
        kind=known.get("kind", ""),
        text=body,
        at=known.get("at", ""),
        run=known.get("run", ""),
    )


_BUILDERS: Mapping[str, Callable[[_Text, int, Attributes, str], Entry]] = {
    "user": _build_said,
    "agent": _build_said,
    "call": _build_called,
    "result": _build_returned,
    "notice": _build_notice,
}
_TAKERS = {
    "retinue": _head,
    "user": _user,
    "agent": _entry,
    "call": _entry,
    "result": _entry,
    "notice": _entry,
}
