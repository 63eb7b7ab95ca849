"""The last words of a conversation, for lists: read from the end of the file, however long it is."""

import os

from retinue.domain.transcript import snippet
from retinue.store.reading import read

_HEAD = 1024
_NEAR = 4 * 1024
_FAR = 64 * 1024
_SEPARATOR = b"\n<!-- "


def last_words(path: str) -> tuple[str, str]:
    """The first characters of the file, and the start of what was said last in it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "", ""
    try:
        size = os.fstat(file).st_size
        if not size:
            return "", ""
        start = os.pread(file, _HEAD, 0).decode("utf-8", "replace")
        words = _words(file, size, _NEAR)
        if not words and size > _NEAR:
            words = _words(file, size, _FAR)
        return start, words
    finally:
        os.close(file)


def _words(file: int, size: int, length: int) -> str:
    data = os.pread(file, length, max(0, size - length))
    if size > length:
        first = data.find(_SEPARATOR)
        data = data[first + 1 :] if first >= 0 else b""
    reading = read(data, "", lenient=True)
    return snippet(reading.entries)
