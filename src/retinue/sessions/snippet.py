"""The last words of a conversation, for lists: read from the end of the file, however long it is."""

import os
from collections.abc import Sequence

from retinue.domain.transcript import Called, Entry, Said, snippet
from retinue.sessions.markdown.marker import OPEN, attributes
from retinue.sessions.markdown.writer import unescape
from retinue.storage.file_io import open_file

_NEAR = 4 * 1024
_FAR = 64 * 1024
_MARKER = 256
_SURE = 4 * 1024
"""Characters that take up less than the far distance even where each must be spelled out."""
_SEPARATOR = f"\n{OPEN}".encode()
_SPEAKERS = (f"{OPEN}user".encode(), f"{OPEN}agent".encode())


def last_words(path: str) -> str:
    """The start of what was said last in a session.md; nothing when that lies too far from its end."""
    try:
        file = open_file(path)
    except OSError:
        return ""
    try:
        return _near_the_end(file)
    except OSError:
        return ""
    finally:
        os.close(file)


def last_said(entries: Sequence[Entry]) -> str | None:
    """The same of entries that stand in such a file, without a look at it; None when they may lie too far from its end,
    however they are written there."""
    length = 0
    for entry in reversed(entries):
        length += _MARKER + len(entry.args if isinstance(entry, Called) else entry.text)
        if length > _SURE:
            return None
        if isinstance(entry, Said) and entry.text.strip():
            return snippet((entry,))
    return ""


def _near_the_end(file: int) -> str:
    size = os.fstat(file).st_size
    for length in (_NEAR, _FAR):
        words = _words(b"\n" + os.pread(file, length, max(0, size - length)))
        if words or size <= length:
            return words
    return ""


def _words(data: bytes) -> str:
    """Goes back from marker to marker until one has words. A user line that nothing follows is still open."""
    end, last = len(data), True
    while (start := data.rfind(_SEPARATOR, 0, end)) >= 0:
        if data.startswith(_SPEAKERS, start + 1):
            text = _said(data[start + 1 : end].decode("utf-8", "replace"), last=last)
            if text.strip():
                return snippet([Said(id="", by="user", text=text)])
        end, last = start, False
    return ""


def _said(piece: str, *, last: bool) -> str:
    line, _, body = piece[len(OPEN) :].partition("\n")
    known = attributes(line)
    if known is None or (last and known[""] == "user" and "n" not in known):
        return ""
    return unescape(body, escaped="esc" in known)
