"""Lines of JSON out of a stream of bytes: what is no line of that kind is passed over."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

MAX_LINE = 16_000_000
"""Bytes of one line; a longer one is not held."""


class Lines:
    """Each whole line is read as it comes. Nothing here raises: a program may write anything."""

    def __init__(self, read: Callable[[Mapping[str, Any]], None], alive: Callable[[], None]) -> None:
        self._read = read
        self._alive = alive
        self._rest = bytearray()
        self._skips = False

    def take(self, piece: bytes) -> None:
        self._alive()
        *whole, rest = piece.split(b"\n")
        for line in whole:
            if not self._skips:
                self._rest += line
                self._line(bytes(self._rest))
            self._rest.clear()
            self._skips = False
        self._rest += rest
        if len(self._rest) > MAX_LINE:
            self._rest.clear()
            self._skips = True

    def close(self) -> None:
        """The last line may have no end."""
        if not self._skips:
            self._line(bytes(self._rest))
        self._rest.clear()

    def _line(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"{"):
            return
        try:
            event: Any = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        self._read(event)
