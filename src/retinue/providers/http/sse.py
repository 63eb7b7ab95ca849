"""Server-sent events, read from bytes as they come, however they were cut."""

from retinue.domain.run import Reason
from retinue.providers.errors import Trouble

MAX_EVENT = 16_000_000
"""Bytes of one event: past it the stream is not a model's reply."""

_BOM = b"\xef\xbb\xbf"
_BLANK = b"\n\n"


class Events:
    """The data of each event, whole. Names, ids, comments and retry hints are passed over: both providers
    repeat what matters inside the data. So are events without data, by which a server shows that it is there."""

    __slots__ = ("_begun", "_data", "_event", "_line_size", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """Of a line that has not ended."""
        self._data: list[bytes] = []
        """Of an event that has not ended."""
        self._line_size = 0
        self._event = 0
        """Bytes of the event so far, its line breaks included."""
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this piece completes."""
        # Bytes are looked for by `find`: `in` first takes them for a number, and throws an error away.
        returns = chunk.find(b"\r") >= 0
        if not returns and chunk.find(b"\n") < 0:
            self._pieces.append(chunk)
            self._line_size += len(chunk)
            self._check()
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
            returns = chunk.find(b"\r") >= 0
        held = b""
        if returns:
            # A carriage return at the very end may be half of a CRLF: it waits for its other half.
            held = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._begun:
            self._begun = True
            chunk = chunk.removeprefix(_BOM)
        found: list[bytes] = []
        if not self._data:
            chunk = _plain(chunk, found)
        lines = chunk.split(b"\n")
        rest = lines.pop() + held
        for line in lines:
            self._line(line, found)
        self._pieces = [rest] if rest else []
        self._line_size = len(rest)
        self._check()
        return found

    def rest(self) -> list[bytes]:
        """What stands at the end of a stream that did not close its last event."""
        found: list[bytes] = []
        line = b"".join(self._pieces).rstrip(b"\r")
        self._line(line if self._begun else line.removeprefix(_BOM), found)
        self._line(b"", found)
        self._pieces = []
        return found

    def _check(self) -> None:
        if self._line_size + self._event > MAX_EVENT:
            raise Trouble(
                f"the model's server sent one event of more than {MAX_EVENT:,} bytes", reason=Reason.PROVIDER
            )

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._event += len(line)
        elif not line and self._data:
            if data := self._data[0] if len(self._data) == 1 else b"\n".join(self._data):
                found.append(data)
            self._data = []
            self._event = 0


def _plain(chunk: bytes, found: list[bytes]) -> bytes:
    """Takes the events of one line of data each from the front, as nearly all are, and gives back what follows them."""
    blocks = chunk.split(_BLANK)
    last = blocks.pop()
    for at, block in enumerate(blocks):
        if block.startswith(b"data: ") and block.find(b"\n") < 0:
            if data := block[6:]:
                found.append(data)
            continue
        name, _, line = block.partition(b"\n")
        if not line.startswith(b"data: ") or line.find(b"\n") >= 0 or name.startswith(b"data"):
            return _BLANK.join([*blocks[at:], last])
        if data := line[6:]:
            found.append(data)
    return last
