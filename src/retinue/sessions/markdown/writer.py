"""How a transcript is spelled as Markdown: one invisible line per entry, and a body that cannot pretend to be one."""

import re

from retinue.domain.run import Usage
from retinue.domain.session import Session
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said
from retinue.sessions.markdown.marker import CLOSE, KINDS, OPEN, SIGNATURE, attribute, number, quoted

_MARKER_LIKE = re.compile(rf"^(\\*{OPEN}(?:{'|'.join(KINDS)})\b)", re.MULTILINE)
_ESCAPED_LINE = re.compile(rf"^\\(\\*{OPEN}(?:{'|'.join(KINDS)})\b)", re.MULTILINE)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_UNSAFE_ASCII = bytes({*range(0x20), 0x7F} - {0x09, 0x0A})
_UNCOUNTED = Usage()
_ESCAPE = re.compile(r"\\(?:(\\)|(r)|x([0-9a-f]{2})|u([0-9a-f]{4}))")


def head(session: Session) -> str:
    """The first line of a file: who this conversation is, wherever the folder is moved."""
    parent = attribute("parent", session.parent_slug or "")
    return (
        f"{SIGNATURE}{quoted(session.slug)} id={quoted(session.id)}"
        f" branch={quoted(session.branch)}{parent}{CLOSE}\n\n"
    )


def open_line(entry_id: str, *, escaped: bool = False) -> str:
    """What an idle conversation ends with: a person types below it."""
    return f"{OPEN}user id={quoted(entry_id)}{' esc=1' if escaped else ''}{CLOSE}\n"


def render(entry: Entry) -> bytes:
    """The framed entry: marker line, body, and the blank line that ends it."""
    body, escaped = escape(_text(entry))
    data = body.encode()
    marker = f"{OPEN}{_marker(entry)}{' esc=1' if escaped else ''} n={len(data)}{CLOSE}\n"
    return b"".join((marker.encode(), data, b"\n\n" if data else b"\n"))


def escape(text: str) -> tuple[str, bool]:
    """The body as it stands in the file, and whether characters unfit for a text file had to be spelled out."""
    escaped = not _fit(text)
    if escaped:
        text = spelled(text.replace("\\", "\\\\"))
    if OPEN in text:
        text = _MARKER_LIKE.sub(r"\\\1", text)
    return text, escaped


def unescape(body: str, *, escaped: bool) -> str:
    """The inverse of escape."""
    if f"\\{OPEN}" in body:
        body = _ESCAPED_LINE.sub(r"\1", body)
    return _ESCAPE.sub(_unspelled, body) if escaped else body


def spelled(text: str) -> str:
    """Characters that would harm a terminal or a text file, written as escapes."""
    return text if _fit(text) else _UNSAFE.sub(_spelled, text)


def _fit(text: str) -> bool:
    """Whether nothing in it must be spelled out. Most text is ASCII, where an expression would take six times as long."""
    if not text.isascii():
        return _UNSAFE.search(text) is None
    plain = text.encode()
    return len(plain.translate(None, _UNSAFE_ASCII)) == len(plain)


def _text(entry: Entry) -> str:
    return entry.args if isinstance(entry, Called) else entry.text


def _marker(entry: Entry) -> str:
    match entry:
        case Said(by="user"):
            return (
                f"user id={quoted(entry.id)}{attribute('at', entry.at)}{attribute('from', entry.origin)}"
                f"{attribute('run', entry.run)}{_reply(entry)}"
            )
        case Said():
            return (
                f"agent id={quoted(entry.id)}{attribute('at', entry.at)}{attribute('from', entry.origin)}"
                f"{_reply(entry)}{attribute('run', entry.run)}"
            )
        case Called():
            return (
                f"call id={quoted(entry.id)} tool={quoted(entry.tool)}{attribute('at', entry.at)}"
                f"{attribute('run', entry.run)}{attribute('broken', entry.broken)}"
            )
        case Returned():
            return (
                f"result of={quoted(entry.of)} {'ok' if entry.ok else 'failed'}{number('ms', entry.ms)}"
                f"{attribute('at', entry.at)}{attribute('run', entry.run)}"
            )
        case Notice():
            return (
                f"notice id={quoted(entry.id)}{attribute('kind', entry.kind)}{attribute('at', entry.at)}"
                f"{attribute('run', entry.run)}"
            )


def _reply(entry: Said) -> str:
    if not (entry.model or entry.calls or entry.stop or entry.thoughts) and entry.usage == _UNCOUNTED:
        return ""
    return (
        f"{attribute('model', entry.model)}{number('in', entry.usage.input)}"
        f"{number('out', entry.usage.output)}{number('cached', entry.usage.cached)}{attribute('stop', entry.stop)}"
        f"{number('calls', entry.calls)}{' thoughts=1' if entry.thoughts else ''}"
    )


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - one byte, two digits


def _unspelled(found: re.Match[str]) -> str:
    backslash, carriage_return, byte, unit = found.groups()
    if backslash:
        return "\\"
    return "\r" if carriage_return else chr(int(byte or unit, 16))
