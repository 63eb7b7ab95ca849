"""Render a transcript as Markdown: one invisible marker line per entry, and an escaped body."""

import re

from retinue.domain.run import Usage
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.sessions.markdown.marker import (
    COMMENT_CLOSE,
    COMMENT_OPEN,
    HEAD_PREFIX,
    MARKER_KINDS,
    format_attribute,
    format_number,
    quote_value,
)

_MARKER_LIKE = re.compile(rf"^(\\*{COMMENT_OPEN}(?:{'|'.join(MARKER_KINDS)})\b)", re.MULTILINE)
_ESCAPED_LINE = re.compile(rf"^\\(\\*{COMMENT_OPEN}(?:{'|'.join(MARKER_KINDS)})\b)", re.MULTILINE)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_UNSAFE_ASCII = bytes({*range(0x20), 0x7F} - {0x09, 0x0A})
_NO_USAGE = Usage()
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|x([0-9a-f]{2})|u([0-9a-f]{4}))")


def render_head(session: Session) -> str:
    """Render the first line of a file, which identifies the session wherever the folder is moved."""
    parent = format_attribute("parent", session.parent_slug or "")
    return (
        f"{HEAD_PREFIX}{quote_value(session.slug)} id={quote_value(session.id)}"
        f" branch={quote_value(session.branch)}{parent}{COMMENT_CLOSE}\n\n"
    )


def render_open_line(entry_id: str, *, escaped: bool = False) -> str:
    """Render the open user line at the end of an idle conversation; a person types below it."""
    return f"{COMMENT_OPEN}user id={quote_value(entry_id)}{' esc=1' if escaped else ''}{COMMENT_CLOSE}\n"


def render_entry(entry: Entry) -> bytes:
    """Render an entry: its marker line, its body, and the blank line that ends it."""
    body, is_escaped = escape_body(_entry_body(entry))
    data = body.encode()
    marker = f"{COMMENT_OPEN}{_render_marker(entry)}{' esc=1' if is_escaped else ''} n={len(data)}{COMMENT_CLOSE}\n"
    return b"".join((marker.encode(), data, b"\n\n" if data else b"\n"))


def escape_body(text: str) -> tuple[str, bool]:
    """Escape a body for the file; also return whether unsafe characters had to be escaped."""
    is_escaped = not _is_safe(text)
    if is_escaped:
        text = escape_unsafe_characters(text.replace("\\", "\\\\"))
    if COMMENT_OPEN in text:
        text = _MARKER_LIKE.sub(r"\\\1", text)
    return text, is_escaped


def unescape_body(body: str, *, escaped: bool) -> str:
    """Invert escape_body."""
    if f"\\{COMMENT_OPEN}" in body:
        body = _ESCAPED_LINE.sub(r"\1", body)
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


def _entry_body(entry: Entry) -> str:
    return entry.args if isinstance(entry, ToolCall) else entry.text


def _render_marker(entry: Entry) -> str:
    match entry:
        case Message(by="user"):
            return (
                f"user id={quote_value(entry.id)}{format_attribute('at', entry.at)}{format_attribute('from', entry.origin)}"
                f"{format_attribute('run', entry.run)}{_render_reply_attributes(entry)}"
            )
        case Message():
            return (
                f"agent id={quote_value(entry.id)}{format_attribute('at', entry.at)}{format_attribute('from', entry.origin)}"
                f"{_render_reply_attributes(entry)}{format_attribute('run', entry.run)}"
            )
        case ToolCall():
            return (
                f"call id={quote_value(entry.id)} tool={quote_value(entry.tool)}{format_attribute('at', entry.at)}"
                f"{format_attribute('run', entry.run)}{format_attribute('broken', entry.broken)}"
            )
        case ToolResult():
            return (
                f"result of={quote_value(entry.of)} {'ok' if entry.ok else 'failed'}{format_number('ms', entry.ms)}"
                f"{format_attribute('at', entry.at)}{format_attribute('run', entry.run)}"
            )
        case Notice():
            return (
                f"notice id={quote_value(entry.id)}{format_attribute('kind', entry.kind)}{format_attribute('at', entry.at)}"
                f"{format_attribute('run', entry.run)}"
            )


def _render_reply_attributes(entry: Message) -> str:
    if not (entry.model or entry.calls or entry.stop or entry.thoughts) and entry.usage == _NO_USAGE:
        return ""
    return (
        f"{format_attribute('model', entry.model)}{format_number('in', entry.usage.input)}"
        f"{format_number('out', entry.usage.output)}{format_number('cached', entry.usage.cached)}{format_attribute('stop', entry.stop)}"
        f"{format_number('calls', entry.calls)}{' thoughts=1' if entry.thoughts else ''}"
    )


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
