"""Render a transcript as Markdown: one invisible marker line per entry, and an escaped body."""

import re
from collections.abc import Callable, Mapping
from operator import attrgetter

from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message
from retinue.sessions.markdown.compiler import compile_function
from retinue.sessions.markdown.grammar import (
    COMMENT_CLOSE,
    COMMENT_OPEN,
    ENTRY_KINDS,
    ESCAPED,
    HEAD,
    LENGTH,
    USER,
    MarkerKind,
    SessionHead,
)
from retinue.sessions.markdown.marker import quote_value
from retinue.sessions.markdown.near_marker import escape_marker_like_lines, unescape_marker_like_lines

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_UNSAFE_ASCII = bytes({*range(0x20), 0x7F} - {0x09, 0x0A})
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|x([0-9a-f]{2})|u([0-9a-f]{4}))")


def compile_writer(kind: MarkerKind) -> Callable[[Entry, bool, int], str]:
    """Compile a function that renders an entry's marker line.

    Its arguments are the entry, whether the body is escaped, and the body's length.
    """
    return _compile_line(
        kind.name,
        "entry, is_escaped, length",
        *(attribute.write_source(f"entry.{attribute.field}") for attribute in kind.attributes),
        ESCAPED.write_source("is_escaped"),
        LENGTH.write_source("length"),
    )


def _compile_line(kind: str, parameters: str, *pieces: str) -> Callable[..., str]:
    line = f"{COMMENT_OPEN}{kind}{''.join(pieces)}{COMMENT_CLOSE}"
    return compile_function(f"render_{kind}({parameters})", f'return f"{line}\\n"', quote_value=quote_value)


_ENTRY_WRITERS: Mapping[
    tuple[type, str], tuple[Callable[[Entry], str], Callable[[Entry, bool, int], str]]
] = {(kind.type, kind.role): (attrgetter(kind.body), compile_writer(kind)) for kind in ENTRY_KINDS}
"""Functions for body and marker line, by the entry's type and, for a message, its author."""
_render_head_line = _compile_line(
    HEAD.name, "head", *(attribute.write_source(f"head.{attribute.field}") for attribute in HEAD.attributes)
)
_render_open_line = _compile_line(
    USER.name,
    "entry_id, is_escaped",
    USER.attributes[0].write_source("entry_id"),
    ESCAPED.write_source("is_escaped"),
)


def render_head(session: Session) -> str:
    """Render the first line of a file, which identifies the session wherever the folder is moved."""
    head = SessionHead(
        slug=session.slug, id=session.id, branch=session.branch, parent=session.parent_slug or ""
    )
    return f"{_render_head_line(head)}\n"


def render_open_line(entry_id: str, *, escaped: bool = False) -> str:
    """Render the open user line at the end of an idle conversation; a person types below it."""
    return _render_open_line(entry_id, escaped)


def render_entry(entry: Entry) -> bytes:
    """Render an entry: its marker line, its body, and the blank line that ends it."""
    author = entry.role if isinstance(entry, Message) else ""
    entry_body, render_marker = _ENTRY_WRITERS[type(entry), author]
    body, is_escaped = escape_body(entry_body(entry))
    data = body.encode()
    return b"".join((render_marker(entry, is_escaped, len(data)).encode(), data, b"\n\n" if data else b"\n"))


def escape_body(text: str) -> tuple[str, bool]:
    """Escape a body for the file; also return whether unsafe characters had to be escaped."""
    is_escaped = not _is_safe(text)
    if is_escaped:
        text = escape_unsafe_characters(text.replace("\\", "\\\\"))
    return escape_marker_like_lines(text), is_escaped


def has_escaped_line(body: str) -> bool:
    """Return whether a line begins with a backslash, so that the body may have an escaped line."""
    return "\\" in body and (body[0] == "\\" or "\n\\" in body)


def unescape_body(body: str, *, escaped: bool) -> str:
    """Invert escape_body."""
    if has_escaped_line(body):
        body = unescape_marker_like_lines(body)
    return _ESCAPE.sub(_unescape_character, body) if escaped else body


def escape_unsafe_characters(text: str) -> str:
    """Replace characters that would harm a terminal or a text file by escapes."""
    return text if _is_safe(text) else _UNSAFE.sub(_escape_character, text)


def _is_safe(text: str) -> bool:
    """Return True if nothing must be escaped.

    ASCII has a fast path: a regular expression takes six times as long.
    """
    if not text.isascii():
        return _UNSAFE.search(text) is None
    plain = text.encode()
    return len(plain.translate(None, _UNSAFE_ASCII)) == len(plain)


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - one byte, two digits


def _unescape_character(match: re.Match[str]) -> str:
    backslash, carriage_return, byte, code_unit = match.groups()
    if backslash:
        return "\\"
    return "\r" if carriage_return else chr(int(byte or code_unit, 16))
