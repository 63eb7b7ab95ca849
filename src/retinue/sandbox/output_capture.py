"""Capture a command's output: a head and a tail in memory, the whole in a file of limited size."""

import os
from collections.abc import Callable
from contextlib import suppress

HEAD_BYTES = 20_000
TAIL_BYTES = 30_000
MAX_FILE_BYTES = 64_000_000
"""Bytes of one command's output that are kept in a file; bytes after these are only counted."""

_LINE_SEARCH_BYTES = 4_000
"""A cut is moved to a line end within this many bytes."""

OpenOutputFile = Callable[[], tuple[int, str] | None]
"""Open the file for the whole output; return its descriptor and the agent's name for it."""


class OutputCapture:
    """Keep a head and a tail in memory, however large the output is."""

    def __init__(self, open_output_file: OpenOutputFile | None = None) -> None:
        self.file_name = ""
        """The agent's name for the file with the whole output; empty while everything is in memory."""
        self.total_bytes = 0
        self._open_output_file = open_output_file
        self._fd: int | None = None
        self._file_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def is_truncated(self) -> bool:
        return self.total_bytes > len(self._head) + len(self._tail)

    @property
    def is_file_complete(self) -> bool:
        """Whether the file contains everything."""
        return self._file_bytes == self.total_bytes

    def write(self, piece: bytes) -> None:
        self.total_bytes += len(piece)
        head_space = HEAD_BYTES - len(self._head)
        if head_space > 0:
            self._head += piece[:head_space]
            piece = piece[head_space:]
        if not piece:
            return
        if self._open_output_file is not None and len(self._tail) + len(piece) > TAIL_BYTES:
            self._open_file(self._open_output_file)
        self._write_to_file(piece)
        self._tail += piece[-TAIL_BYTES:]
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def text(self) -> str:
        """Return the output as text.

        Invalid UTF-8 is replaced. A cut is marked on its own line with the number of omitted bytes.
        """
        if not self.is_truncated:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = _until_line_end(bytes(self._head)), _from_line_start(bytes(self._tail))
        omitted = self.total_bytes - len(head) - len(tail)
        return (
            f"{head.decode(errors='replace').removesuffix(chr(10))}\n"
            f"[… {omitted:,} bytes left out …]\n"
            f"{tail.decode(errors='replace')}"
        )

    def _open_file(self, open_output_file: OpenOutputFile) -> None:
        """Open the file once, just before the first byte is left out."""
        self._open_output_file = None
        with suppress(OSError):
            opened = open_output_file()
            if opened is not None:
                self._fd, self.file_name = opened
                self._write_to_file(bytes(self._head))
                self._write_to_file(bytes(self._tail))

    def _write_to_file(self, piece: bytes) -> None:
        if self._fd is None:
            return
        try:
            remaining = memoryview(piece)[: MAX_FILE_BYTES - self._file_bytes]
            while remaining:
                count = os.write(self._fd, remaining)
                self._file_bytes += count
                remaining = remaining[count:]
        except OSError:  # disk full: keep what was written; `is_file_complete` is then False
            self.close()


def _until_line_end(head: bytes) -> bytes:
    end = head.rfind(b"\n", max(0, len(head) - _LINE_SEARCH_BYTES))
    return head[: end + 1] if end >= 0 else _without_partial_character(head)


def _from_line_start(tail: bytes) -> bytes:
    newline = tail.find(b"\n", 0, _LINE_SEARCH_BYTES)
    if newline >= 0:
        return tail[newline + 1 :]
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:  # noqa: PLR2004  (UTF-8 continuation byte)
        start += 1
    return tail[start:]


def _without_partial_character(head: bytes) -> bytes:
    """Drop an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 == 0xC0:  # noqa: PLR2004  (first byte of a UTF-8 character)
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)  # noqa: PLR2004  (first byte of a three- or four-byte character)
            return head[:-back] if needed > back else head
        if byte < 0x80:  # noqa: PLR2004  (one-byte character)
            break
    return head
