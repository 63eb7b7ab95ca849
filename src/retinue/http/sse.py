"""A parser for server-sent events that accepts bytes in any split."""

MAX_EVENT_BYTES = 16_000_000
"""Maximum bytes of one event; a longer one cannot be part of a model's reply."""

_BOM = b"\xef\xbb\xbf"
_EVENT_END = b"\n\n"


class EventTooLong(Exception):
    """An event is longer than any reply; the message continues a sentence whose subject is the server."""


class EventParser:
    """Return the data of each complete event.

    Names, ids, comments and retry hints are ignored: both providers repeat what matters inside the data.
    Events without data, sent as keep-alives, are ignored too.
    """

    __slots__ = ("_data_lines", "_event_size", "_has_started", "_line_size", "_partial_line")

    def __init__(self) -> None:
        self._partial_line: list[bytes] = []
        """Pieces of a line that has not ended."""
        self._data_lines: list[bytes] = []
        """Data lines of an event that has not ended."""
        self._line_size = 0
        self._event_size = 0
        """Bytes of the event so far, including line breaks."""
        self._has_started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that these bytes complete."""
        # `find` is faster than `in`, which first tries the bytes as a number and discards an exception.
        has_carriage_return = chunk.find(b"\r") >= 0
        if not has_carriage_return and chunk.find(b"\n") < 0:
            self._partial_line.append(chunk)
            self._line_size += len(chunk)
            self._check_size()
            return []
        if self._partial_line:
            self._partial_line.append(chunk)
            chunk = b"".join(self._partial_line)
            has_carriage_return = chunk.find(b"\r") >= 0
        held_back = b""
        if has_carriage_return:
            # A carriage return at the end may be the first half of a CRLF: keep it for the next chunk.
            held_back = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(held_back)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._has_started:
            self._has_started = True
            chunk = chunk.removeprefix(_BOM)
        events: list[bytes] = []
        if not self._data_lines:
            chunk = _take_simple_events(chunk, events)
        lines = chunk.split(b"\n")
        partial = lines.pop() + held_back
        for line in lines:
            self._parse_line(line, events)
        self._partial_line = [partial] if partial else []
        self._line_size = len(partial)
        self._check_size()
        return events

    def finish(self) -> list[bytes]:
        """Return the last event of a stream that ended without closing it."""
        events: list[bytes] = []
        line = b"".join(self._partial_line).rstrip(b"\r")
        self._parse_line(line if self._has_started else line.removeprefix(_BOM), events)
        self._parse_line(b"", events)
        self._partial_line = []
        return events

    def _check_size(self) -> None:
        if self._line_size + self._event_size > MAX_EVENT_BYTES:
            raise EventTooLong(f"sent one event of more than {MAX_EVENT_BYTES:,} bytes")

    def _parse_line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data_lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._event_size += len(line)
        elif not line and self._data_lines:
            if data := self._data_lines[0] if len(self._data_lines) == 1 else b"\n".join(self._data_lines):
                events.append(data)
            self._data_lines = []
            self._event_size = 0


def _take_simple_events(chunk: bytes, events: list[bytes]) -> bytes:
    """Take leading events with a single data line, the usual case, and return the remaining bytes."""
    blocks = chunk.split(_EVENT_END)
    last = blocks.pop()
    for index, block in enumerate(blocks):
        if block.startswith(b"data: ") and block.find(b"\n") < 0:
            if data := block[6:]:
                events.append(data)
            continue
        name, _, line = block.partition(b"\n")
        if not line.startswith(b"data: ") or line.find(b"\n") >= 0 or name.startswith(b"data"):
            return _EVENT_END.join([*blocks[index:], last])
        if data := line[6:]:
            events.append(data)
    return last
