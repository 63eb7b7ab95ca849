"""A session.md in portions that begin and end at marker lines, so that a file of any length is read in little memory."""

import re
from collections.abc import Iterator

from retinue.domain.value import value
from retinue.sessions.markdown.marker import KINDS, OPEN
from retinue.storage.file_io import read_at

PORTION = 64 * 1024
"""About how many bytes are taken at once; an entry that is longer comes whole."""
_SEPARATOR = f"\n{OPEN}".encode()
_KIND = re.compile(rf"(?:{'|'.join(KINDS)}) ".encode())


@value
class Portion:
    """Some whole entries of a file."""

    data: bytes
    at: int = 0
    """Where in the file they stand. Anywhere but at 0 they begin with a marker line."""
    more: bool = False
    """Whether a marker line follows, which closes the last body."""


def portions(file: int, start: int, end: int, size: int = PORTION) -> Iterator[Portion]:
    """All of a file between its beginning, or a marker line, and an end. The last portion is empty if nothing is left."""
    held, at = b"", start
    while True:
        reached = at + len(held)
        # Twice as much each time where no marker comes: an entry of any length is put together in linear time.
        piece = read_at(file, reached, min(max(size, len(held)), end - reached))
        held += piece
        if not piece or reached + len(piece) >= end:
            yield Portion(data=held, at=at)
            return
        cut = _last_marker(held)
        if cut:
            yield Portion(data=held[:cut], at=at, more=True)
            held, at = held[cut:], at + cut


class Lines:
    """How many lines stand before a place in a file: counted when somebody asks, and on from the last answer."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._known = (0, 0)

    def before(self, at: int) -> int:
        done, count = self._known if self._known[0] <= at else (0, 0)
        while done < at and (piece := read_at(self._file, done, min(PORTION, at - done))):
            count += piece.count(b"\n")
            done += len(piece)
        self._known = (done, count)
        return count


def _last_marker(data: bytes) -> int:
    """Where the last line starts that is surely a marker; 0 when there is none behind the first."""
    end = len(data)
    while (found := data.rfind(_SEPARATOR, 0, end)) >= 0:
        if _KIND.match(data, found + len(_SEPARATOR)):
            return found + 1
        end = found + 1
    return 0
