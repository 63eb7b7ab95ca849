"""An answer by HTTP/1.1, read from bytes as they come, however they were cut."""

import re
from collections.abc import Callable

MAX_HEAD = 64 * 1024
"""Bytes of all that stands around a body: its first lines, those of answers that were not the last, and trailers."""

_BLANK = re.compile(rb"\n\r?\n")
_STATUS = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})(?:[ \t]+([^\r]*))?\r?")
_FOLD = re.compile(r"\r?\n[ \t]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = rb"(0{0,64}[0-9A-Fa-f]{1,15})[ \t]{0,64}(?:;[^\n]{0,4096})?\r?\n"
_PART_OF_CHUNK = rb"0{0,64}[0-9A-Fa-f]{0,15}[ \t]{0,64}(?:;[^\n]{0,4097}|\r)?"
_FIRST = (re.compile(_CHUNK), re.compile(_PART_OF_CHUNK))
"""The line before a chunk's bytes, and what may yet become one."""
_NEXT = (re.compile(rb"\r?\n" + _CHUNK), re.compile(rb"\r?(?:\n" + _PART_OF_CHUNK + rb")?"))
"""The same for all but the first, with the line break that ends the chunk before."""
_LISTS = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that count as often as they come; of any other the first is taken."""
_FINAL = 200
_SWITCHED = 101
_BODILESS = frozenset({204, 304})


class Broken(Exception):
    """The answer cannot be had: a sentence that goes on from the name of the server."""


class Answer:
    """One answer. Its body is in `pieces`, from which whoever reads takes it."""

    __slots__ = ("_around", "_held", "_left", "_line", "_step", "begun", "ended", "headers", "keep", "pieces",
                 "reason", "status")  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        """Zero until the head is whole."""
        self.reason = ""
        self.headers: dict[str, str] = {}
        """By names in small letters."""
        self.pieces: list[bytes] = []
        self.begun = False
        self.ended = False
        self.keep = False
        """Whether the connection can carry another answer after this one."""
        # A plain function, not a bound method: an answer that refers to itself would wait for the collector.
        self._step: Callable[[Answer, bytes], None] = Answer._head
        self._held = b""
        """The beginning of a line that has not ended."""
        self._around = 0
        self._left = 0
        """Bytes that are still to come: of the body, or of a chunk."""
        self._line = _FIRST

    def feed(self, data: bytes) -> None:
        """Takes what came. Broken: it is no answer."""
        self.begun = True
        if self._held:
            data = self._held + data
            self._held = b""
        self._step(self, data)

    def closed(self, *, orderly: bool) -> None:
        """Nothing more comes. Broken: something is missing."""
        if self.ended:
            return
        if self._step is Answer._open and orderly:
            self.ended = True
            return
        where = "in the middle of its answer" if self.begun else "before it answered"
        raise Broken(f"broke the connection {where}")

    def _head(self, data: bytes) -> None:
        while self.status < _FINAL and self.status != _SWITCHED:
            self.status = 0
            data = data.lstrip(b"\r\n")
            end = _BLANK.search(data)
            size = len(data) if end is None else end.start()
            if self._around + size > MAX_HEAD:
                raise Broken(f"answered with a head of more than {MAX_HEAD:,} bytes")
            if end is None:
                self._held = data
                return
            self._around += size
            self._understand(data[:size].decode("latin-1"))
            data = data[end.end() :]
        self._framed()
        if data:
            self._step(self, data)

    def _understand(self, head: str) -> None:
        if "\n " in head or "\n\t" in head:
            head = _FOLD.sub(" ", head)
        first, *lines = head.split("\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise Broken(f"answered with what is no HTTP: {first.strip()[:100]!r}")
        self.headers = headers = dict[str, str]()
        for line in lines:
            name, colon, said = line.partition(":")
            name = name.strip().lower()
            if not colon or not name:
                raise Broken(f"answered with what is no header: {line.strip()[:100]!r}")
            if name not in headers:
                headers[name] = said.strip()
            elif name in _LISTS:
                headers[name] += f", {said.strip()}"
        self.status = int(found[2])
        self.reason = found[3] or ""
        self.keep = found[1] != "0" and "close" not in headers.get("connection", "").lower()

    def _framed(self) -> None:
        """How the end of the body will be known."""
        headers = self.headers
        coding = headers.get("transfer-encoding")
        if self.status in _BODILESS:
            self._end(b"")
        elif coding is not None and coding.lower().endswith("chunked"):
            self._step = Answer._chunks
        elif "content-length" in headers and coding is None:
            self._left = _length(headers["content-length"])
            self._step = Answer._sized
            if not self._left:
                self._end(b"")
        else:
            self.keep = False
            self._step = Answer._open

    def _chunks(self, data: bytes) -> None:
        at, left = 0, self._left
        whole, part = self._line
        while True:
            if left:
                piece = data[at : at + left]
                if piece:
                    self.pieces.append(piece)
                    at += len(piece)
                    left -= len(piece)
                if left:
                    break
            found = whole.match(data, at)
            if found is None:
                self._held = data[at:]
                if part.fullmatch(self._held) is None:
                    raise Broken(f"answered with what is no chunk: {self._held[:100]!r}")
                break
            at = found.end()
            left = int(found[1], 16)
            whole, part = self._line = _NEXT
            if not left:
                self._step = Answer._trailers
                self._trailers(data[at:])
                return
        self._left = left

    def _trailers(self, data: bytes) -> None:
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            if data[at:end] in {b"", b"\r"}:
                self._end(data[end + 1 :])
                return
            self._around += end - at
            at = end + 1
        self._held = data[at:]
        if self._around + len(self._held) > MAX_HEAD:
            raise Broken(f"answered with more than {MAX_HEAD:,} bytes around its body")

    def _sized(self, data: bytes) -> None:
        rest = data[self._left :]
        if rest:
            data = data[: self._left]
        self._left -= len(data)
        self.pieces.append(data)
        if not self._left:
            self._end(rest)

    def _open(self, data: bytes) -> None:
        self.pieces.append(data)

    def _end(self, rest: bytes) -> None:
        self.ended = True
        self._step = Answer._excess
        if rest:
            self._excess(rest)

    def _excess(self, _: bytes) -> None:
        """What nobody asked for: whatever follows would be taken for the next answer."""
        self.keep = False


def _length(said: str) -> int:
    first, *others = (each.strip() for each in said.split(","))
    if _LENGTH.fullmatch(first) is None or any(each != first for each in others):
        raise Broken(f"answered with a length that is none: {said[:100]!r}")
    return int(first)
