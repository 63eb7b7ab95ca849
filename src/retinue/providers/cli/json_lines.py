"""A parser for JSON lines in a byte stream; anything else is skipped."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from retinue.providers.json_decoding import decode_json

MAX_LINE_BYTES = 16_000_000
"""Longest line that is kept."""


_EVENT_DECODER = msgspec.json.Decoder(dict[str, Any])


class JsonLineParser:
    """Call `on_event` with each JSON object line as it arrives.

    Never raises: a program may write anything.
    """

    def __init__(
        self, on_event: Callable[[Mapping[str, Any]], None], on_activity: Callable[[], None]
    ) -> None:
        self._on_event = on_event
        self._on_activity = on_activity
        self._partial_line = bytearray()
        self._is_skipping = False

    def feed(self, chunk: bytes) -> None:
        self._on_activity()
        *complete_lines, rest = chunk.split(b"\n")
        for line in complete_lines:
            if not self._is_skipping:
                self._partial_line += line
                self._parse_line(bytes(self._partial_line))
            self._partial_line.clear()
            self._is_skipping = False
        self._partial_line += rest
        if len(self._partial_line) > MAX_LINE_BYTES:
            self._partial_line.clear()
            self._is_skipping = True

    def close(self) -> None:
        """Parse the last line, which may have no line break."""
        if not self._is_skipping:
            self._parse_line(bytes(self._partial_line))
        self._partial_line.clear()

    def _parse_line(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"{"):
            return
        try:
            event = decode_json(_EVENT_DECODER, line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        self._on_event(event)
