"""What a command writes, taken in as it comes: a head and a tail in memory, the whole in a file of bounded size."""

import os
from collections.abc import Callable
from contextlib import suppress

HEAD = 20_000
TAIL = 30_000
MAX_KEPT = 64_000_000
"""Bytes of one command's output that are kept in a file; what comes after them is only counted."""

_SEAM = 4_000
"""A cut is moved to the end of a line if there is one this near."""

Keep = Callable[[], tuple[int, str] | None]
"""Opens the file for the whole text: its descriptor, and the name by which the agent knows it."""


class Output:
    """Never holds more than a head and a tail, however much comes."""

    def __init__(self, keep: Keep | None = None) -> None:
        self.kept = ""
        """Where the whole text is, by the agent's name for it; empty while all of it is here."""
        self.total = 0
        self._keep = keep
        self._file: int | None = None
        self._written = 0
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def cut(self) -> bool:
        return self.total > len(self._head) + len(self._tail)

    @property
    def whole(self) -> bool:
        """Whether nothing is missing in the file."""
        return self._written == self.total

    def take(self, piece: bytes) -> None:
        self.total += len(piece)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if not piece:
            return
        if self._keep is not None and len(self._tail) + len(piece) > TAIL:
            self._opened(self._keep)
        self._write(piece)
        self._tail += piece[-TAIL:]
        del self._tail[:-TAIL]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def text(self) -> str:
        """Bytes that are no UTF-8 are replaced; the cut stands on a line of its own and says how much is missing."""
        if not self.cut:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = _to_line_end(bytes(self._head)), _from_line_start(bytes(self._tail))
        gone = self.total - len(head) - len(tail)
        return (
            f"{head.decode(errors='replace').removesuffix(chr(10))}\n"
            f"[… {gone:,} bytes left out …]\n"
            f"{tail.decode(errors='replace')}"
        )

    def _opened(self, keep: Keep) -> None:
        """Asked once, when the first byte is about to be left out."""
        self._keep = None
        with suppress(OSError):
            found = keep()
            if found is not None:
                self._file, self.kept = found
                self._write(bytes(self._head))
                self._write(bytes(self._tail))

    def _write(self, piece: bytes) -> None:
        if self._file is None:
            return
        try:
            left = memoryview(piece)[: MAX_KEPT - self._written]
            while left:
                done = os.write(self._file, left)
                self._written += done
                left = left[done:]
        except (
            OSError
        ):  # the disk is full: what stands in the file stays, and `whole` says that it is not all
            self.close()


def _to_line_end(head: bytes) -> bytes:
    at = head.rfind(b"\n", max(0, len(head) - _SEAM))
    return head[: at + 1] if at >= 0 else _whole_characters(head)


def _from_line_start(tail: bytes) -> bytes:
    at = tail.find(b"\n", 0, _SEAM)
    if at >= 0:
        return tail[at + 1 :]
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:  # noqa: PLR2004  (a byte inside a character)
        start += 1
    return tail[start:]


def _whole_characters(head: bytes) -> bytes:
    """Without the beginning of a character whose end was cut off."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 == 0xC0:  # noqa: PLR2004  (the first byte of a character)
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)  # noqa: PLR2004  (three and four bytes begin so)
            return head[:-back] if needed > back else head
        if byte < 0x80:  # noqa: PLR2004  (a character of one byte)
            break
    return head
