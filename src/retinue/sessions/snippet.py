"""The last message of a conversation as a snippet for lists, read from the end of the file."""

import os
from collections.abc import Sequence

from retinue.domain.transcript import Entry, Message, ToolCall, last_message_snippet
from retinue.sessions.markdown.grammar import AGENT, COMMENT_OPEN, ESCAPED, LENGTH, USER
from retinue.sessions.markdown.marker import parse_marker
from retinue.sessions.markdown.writer import unescape_body
from retinue.storage.file_io import open_regular_file

_NEAR_BYTES = 4 * 1024
_FAR_BYTES = 64 * 1024
_MARKER_CHARS = 256
_SAFE_CHARS = 4 * 1024
"""Characters that fit into the far distance even if each of them must be escaped."""
_SEPARATOR = f"\n{COMMENT_OPEN}".encode()
_MESSAGE_MARKERS = tuple(f"{COMMENT_OPEN}{kind.name}".encode() for kind in (USER, AGENT))


def snippet_from_file(path: str) -> str:
    """Return the start of the last message in session.md; empty if it is too far from the end."""
    try:
        fd = open_regular_file(path)
    except OSError:
        return ""
    try:
        return _snippet_near_end(fd)
    except OSError:
        return ""
    finally:
        os.close(fd)


def snippet_from_entries(entries: Sequence[Entry]) -> str | None:
    """Return the snippet from loaded entries; None if in the file it may be too far from the end."""
    length = 0
    for entry in reversed(entries):
        length += _MARKER_CHARS + len(entry.args if isinstance(entry, ToolCall) else entry.text)
        if length > _SAFE_CHARS:
            return None
        if isinstance(entry, Message) and entry.text.strip():
            return last_message_snippet((entry,))
    return ""


def _snippet_near_end(fd: int) -> str:
    size = os.fstat(fd).st_size
    for length in (_NEAR_BYTES, _FAR_BYTES):
        found_snippet = _find_last_message(b"\n" + os.pread(fd, length, max(0, size - length)))
        if found_snippet or size <= length:
            return found_snippet
    return ""


def _find_last_message(data: bytes) -> str:
    """Go back from marker to marker until one has text; a last user line without a length is still open."""
    end, is_last = len(data), True
    while (start := data.rfind(_SEPARATOR, 0, end)) >= 0:
        if data.startswith(_MESSAGE_MARKERS, start + 1):
            text = _message_text(data[start + 1 : end].decode("utf-8", "replace"), is_last=is_last)
            if text.strip():
                return last_message_snippet([Message(id="", role="user", text=text)])
        end, is_last = start, False
    return ""


def _message_text(piece: str, *, is_last: bool) -> str:
    line, _, body = piece[len(COMMENT_OPEN) :].partition("\n")
    attrs = parse_marker(line)
    if attrs is None or (is_last and attrs[""] == USER.name and LENGTH.name not in attrs):
        return ""
    return unescape_body(body, escaped=ESCAPED.name in attrs)
