"""Parse session.md: linear time, exact on what Retinue wrote, tolerant of hand edits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retinue.domain.transcript import Entry
from retinue.errors import Unreadable
from retinue.sessions.markdown.chunks import Chunk, LineCounter, iter_chunks
from retinue.sessions.markdown.fast_parser import FAST_PARSERS
from retinue.sessions.markdown.grammar import (
    COMMENT_OPEN,
    ENTRY_KINDS,
    ESCAPED,
    HEAD,
    LENGTH,
    PROVIDER_DATA,
    USER,
    SessionHead,
)
from retinue.sessions.markdown.marker import (
    MARKER_START,
    Attributes,
    compile_reader,
    count_attribute,
    parse_head,
    parse_marker,
)
from retinue.sessions.markdown.near_marker import near_marker_offsets
from retinue.sessions.markdown.writer import has_escaped_line, unescape_body

SEPARATOR = f"\n{COMMENT_OPEN}"
BODY_TERMINATORS = (b"", b"\n", b"\n\n")
"""Bytes allowed between a complete body and the end of the file."""
NOT_UTF8 = "the file begins with NUL bytes or in another encoding. Save it as UTF-8 text"
ESCAPE_ADVICE = "Correct the line; if it is text, put a backslash in front of it"


@dataclass(slots=True, kw_only=True)
class ParsedTranscript:
    """The parsed content of a session.md, or of a chunk of it."""

    entries: list[Entry] = field(default_factory=list[Entry])
    piece_indexes: list[int] = field(default_factory=list[int])
    """The piece each entry came from, used by `entry_offsets`."""
    head: SessionHead | None = None
    end: int = 0
    """Byte offset where the entries end: at an empty open user line, or at the end of the file."""
    open_line_id: str = ""
    """Id of the open user line at the end; empty if there is none."""
    open_line_at: int = -1
    """Byte offset of the open user line; -1 if none. A draft may exist without a line in a new file."""
    draft: str = ""
    """The draft: text a person typed below the open user line."""
    missing_newlines: bytes = b""
    """Newlines to write before the next marker, so that it does not change the last body."""
    ids_with_provider_data: set[str] = field(default_factory=set[str])
    """Ids of entries whose thinking blocks are in the sidecar file."""
    error: Unreadable | None = None
    """The error at which a lenient parse stopped."""


def parse_transcript(data: bytes, path: str, *, lenient: bool = False) -> ParsedTranscript:
    """Parse a whole file. A lenient parse stops at the first error and records it; a strict one raises."""
    return parse_chunk(Chunk(data=data), path, lenient=lenient)


def parse_chunk(
    chunk: Chunk, path: str, *, lenient: bool = False, count_lines_before: Callable[[int], int] = lambda _: 0
) -> ParsedTranscript:
    """Parse a chunk of a file as in the whole file; `count_lines_before` gives the lines before an offset."""
    text = _ChunkText(chunk, path, count_lines_before)
    parsed = ParsedTranscript(end=chunk.offset + len(chunk.data))
    try:
        _parse_pieces(text, parsed)
    except Unreadable as error:
        if not lenient:
            raise
        parsed.error = error
    return parsed


def parse_file(
    fd: int, start: int, end: int, path: str, *, lenient: bool = False
) -> Iterator[ParsedTranscript]:
    """Parse a file from its start or from a marker line, chunk by chunk, until the first error."""
    line_counter = LineCounter(fd)
    for chunk in iter_chunks(fd, start, end):
        parsed = parse_chunk(chunk, path, lenient=lenient, count_lines_before=line_counter.count_before)
        yield parsed
        if parsed.error is not None:
            return


def join_chunks(parts: Iterable[ParsedTranscript]) -> ParsedTranscript:
    """Join consecutive chunks; only the last one includes the end of the file."""
    entries: list[Entry] = []
    ids_with_provider_data: set[str] = set()
    last = ParsedTranscript()
    for last in parts:
        entries += last.entries
        ids_with_provider_data |= last.ids_with_provider_data
    last.entries, last.ids_with_provider_data = entries, ids_with_provider_data
    return last


def entry_offsets(chunk: Chunk, parsed: ParsedTranscript) -> list[int]:
    """Return the byte offset of each entry's marker line in the file."""
    offsets = _ChunkText(chunk, "", lambda _: 0).offsets()
    return [offsets[piece] for piece in parsed.piece_indexes]


def strip_draft(body: str) -> str:
    """Strip blank lines around a draft, and trailing whitespace."""
    return body.strip("\n").rstrip()


class _ChunkText:
    """A chunk's text, split at `<!-- ` lines; lines and bytes are counted only on demand."""

    def __init__(self, chunk: Chunk, path: str, count_lines_before: Callable[[int], int]) -> None:
        text = chunk.data.decode("utf-8", "surrogateescape")
        self.path = path
        self.chunk_offset = chunk.offset
        self.bom_bytes = 3 if not chunk.offset and text.startswith("\ufeff") else 0
        text = f"\n{text[1:] if self.bom_bytes else text}"
        # The newline before the next marker belongs to that marker.
        self.pieces = _merge_foreign_comments((text[:-1] if chunk.has_next else text).split(SEPARATOR))
        self.last_piece = -1 if chunk.has_next else len(self.pieces) - 1
        """Index of the piece that no marker follows."""
        self.has_crlf = "\r" in text
        self._count_lines_before = count_lines_before
        self._last_count = (0, 0)

    def line_number(self, piece: int) -> int:
        """Return the line of a piece's marker.

        Counting continues from the last answer, so that parsing stays linear.
        """
        first_piece, number = (
            self._last_count
            if 0 < self._last_count[0] <= piece
            else (0, self._count_lines_before(self.chunk_offset))
        )
        number += sum(self.pieces[each].count("\n") + 1 for each in range(first_piece, piece))
        self._last_count = (piece, number)
        return number

    def line_id(self, piece: int) -> str:
        """Return the id of an entry that a person wrote without one."""
        return f"line-{self.line_number(piece)}"

    def offset(self, piece: int) -> int:
        return self.offsets(piece)[piece]

    def offsets(self, last: int | None = None) -> list[int]:
        """Return the byte offset of each piece's marker line, up to `last` if given."""
        found = [self.chunk_offset + self.bom_bytes - len(SEPARATOR)]
        for piece in self.pieces[:last]:
            found.append(found[-1] + len(piece.encode("utf-8", "surrogateescape")) + len(SEPARATOR))
        return found

    def error_at(self, piece: int, problem: str, *, lines_below: int = 0) -> Unreadable:
        """Return an error at a piece's marker line, or at a line below it."""
        return Unreadable(f"{self.path}:{self.line_number(piece) + lines_below}", problem)


def _merge_foreign_comments(pieces: list[str]) -> list[str]:
    """Join comments that are not markers to the body that contains them."""
    if all(map(MARKER_START.match, pieces[1:])):
        return pieces
    bodies = [[pieces[0]]]
    for piece in pieces[1:]:
        if MARKER_START.match(piece):
            bodies.append([piece])
        else:
            bodies[-1].append(piece)
    return [SEPARATOR.join(each) for each in bodies]


def _parse_pieces(text: _ChunkText, parsed: ParsedTranscript) -> None:
    pieces, entries, piece_indexes = text.pieces, parsed.entries, parsed.piece_indexes
    if pieces[0]:
        if "\0" in pieces[0]:
            raise Unreadable(f"{text.path}:1", NOT_UTF8)
        _check_edited_body(text, 0, pieces[0][1:])
        _parse_draft(text, parsed, 0, pieces[0][1:], {"id": "line-1"}, final=text.last_piece == 0)
    for index in range(1, len(pieces) if text.last_piece < 0 else text.last_piece):
        piece = pieces[index]
        pattern = FAST_PARSERS.get(piece[:2])
        match = pattern[0].match(piece) if pattern else None
        if pattern is None or match is None:
            _parse_piece(text, parsed, index, final=False)
            continue
        body = piece[match.end() :].removesuffix("\n")
        length = int(match[match.lastindex or 0])
        if len(body) != length and (body.isascii() or len(_encode(body)) != length):
            _check_edited_body(text, index, body)
        entries.append(
            pattern[1](match, unescape_body(body, escaped=False) if has_escaped_line(body) else body)
        )
        piece_indexes.append(index)
    if text.last_piece > 0:
        _parse_piece(text, parsed, text.last_piece, final=True)


def _parse_piece(text: _ChunkText, parsed: ParsedTranscript, index: int, *, final: bool) -> None:
    line, newline, raw = text.pieces[index].partition("\n")
    attrs = parse_marker(line)
    if attrs is None:
        raise text.error_at(
            index, f"cannot parse this marker line: {COMMENT_OPEN}{line[:80]}. {ESCAPE_ADVICE}"
        )
    if text.has_crlf:
        raw = f"{raw}\n".replace("\r\n", "\n")[:-1]
    if not _has_written_length(raw, attrs):
        _check_edited_body(text, index, raw)
    try:
        _PARSERS[attrs[""]](text, parsed, index, raw, attrs, final=final)
    except (KeyError, ValueError) as error:
        raise text.error_at(index, f"missing or invalid in this marker line: {error}") from error
    if final and not newline:
        parsed.missing_newlines = b"\n" + (parsed.missing_newlines or b"\n")


def _has_written_length(raw: str, attrs: Attributes) -> bool:
    """Return whether a body has the length that its marker says, so nobody has edited it."""
    data, length = _encode(raw), count_attribute(attrs, LENGTH.name)
    return 0 <= length <= len(data) and data[length:] in BODY_TERMINATORS


def _check_edited_body(text: _ChunkText, index: int, raw: str) -> None:
    """Raise Unreadable if a line of a body that a person wrote or edited is almost a marker.

    The text below such a line was probably a separate entry by another author.
    """
    for start in near_marker_offsets(raw):
        line = raw[start:].partition("\n")[0]
        raise text.error_at(
            index,
            f"this line is almost a marker: {line[:80]}. {ESCAPE_ADVICE}",
            lines_below=raw.count("\n", 0, start) + 1,
        )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _parse_head_line(
    text: _ChunkText, parsed: ParsedTranscript, index: int, raw: str, attrs: Attributes, *, final: bool
) -> None:
    parsed.head = parse_head(f"{COMMENT_OPEN}{text.pieces[index]}")
    if index != 1 or text.chunk_offset or parsed.head is None or text.pieces[0]:
        version = attrs.get("word")
        problem = (
            "a head line is only allowed at the start of the file"
            if version
            else "this head line has an unsupported version"
        )
        raise text.error_at(index, problem)
    line = 2 + len(raw) - len(raw.lstrip("\n"))
    _parse_draft(text, parsed, index, raw, {"id": f"line-{line}"}, final=final)


def _parse_user_line(
    text: _ChunkText, parsed: ParsedTranscript, index: int, raw: str, attrs: Attributes, *, final: bool
) -> None:
    if LENGTH.name in attrs:
        _parse_entry(text, parsed, index, raw, attrs, final=final)
        return
    _parse_draft(
        text, parsed, index, raw, {**attrs, "id": attrs.get("id") or text.line_id(index)}, final=final
    )


def _parse_draft(
    text: _ChunkText, parsed: ParsedTranscript, index: int, raw: str, attrs: Attributes, *, final: bool
) -> None:
    """Parse a person's text below an open user line, or in a file without entries. Blank text is no entry."""
    draft = strip_draft(unescape_body(raw, escaped=ESCAPED.name in attrs))
    if not final:
        if draft:
            parsed.entries.append(_READERS[USER.name](attrs, draft, str))
            parsed.piece_indexes.append(index)
        return
    if draft or attrs.get(""):
        parsed.open_line_id, parsed.draft = attrs["id"], draft
    if attrs.get(""):
        parsed.open_line_at = text.offset(index)
    if not draft and attrs.get(""):
        parsed.end = parsed.open_line_at
    else:
        newlines_needed = 2 if draft else min(1, index or len(raw))
        parsed.missing_newlines = b"\n" * max(0, newlines_needed - _trailing_newlines(raw))


def _parse_entry(
    text: _ChunkText, parsed: ParsedTranscript, index: int, raw: str, attrs: Attributes, *, final: bool
) -> None:
    escaped = ESCAPED.name in attrs
    if final:
        body, parsed.missing_newlines = _split_last_body(raw, attrs)
    else:
        body = raw.removesuffix("\n")
    if escaped or has_escaped_line(body):
        body = unescape_body(body, escaped=escaped)
    parsed.entries.append(_READERS[attrs[""]](attrs, body, lambda: text.line_id(index)))
    parsed.piece_indexes.append(index)
    if PROVIDER_DATA.name in attrs:
        parsed.ids_with_provider_data.add(parsed.entries[-1].id)


def _split_last_body(raw: str, attrs: Attributes) -> tuple[str, bytes]:
    """Split the unclosed last body from the newlines that must follow it.

    The stored length decides whether trailing newlines belong to the body; if it does not fit, a person
    edited the body.
    """
    data = raw.encode("utf-8", "surrogateescape")
    length = count_attribute(attrs, LENGTH.name)
    is_exact = 0 <= length <= len(data) and data[length:] in BODY_TERMINATORS
    body = data[:length] if is_exact else _strip_terminator(data)
    missing_newlines = next(each for each in BODY_TERMINATORS if _is_closed(data + each, body))
    return body.decode("utf-8", "surrogateescape"), missing_newlines


def _is_closed(data: bytes, body: bytes) -> bool:
    return _strip_terminator(data) == body and data.endswith(b"\n\n" if body else b"\n")


def _strip_terminator(data: bytes) -> bytes:
    return data[:-2] if data.endswith(b"\n\n") else data.removesuffix(b"\n")


def _trailing_newlines(raw: str) -> int:
    return min(2, len(raw) - len(raw.rstrip("\n")))


_READERS: Mapping[str, Callable[[Attributes, str, Callable[[], str]], Entry]] = {
    kind.name: compile_reader(kind) for kind in ENTRY_KINDS
}
_PARSERS = {
    **{kind.name: _parse_entry for kind in ENTRY_KINDS},
    HEAD.name: _parse_head_line,
    USER.name: _parse_user_line,
}
