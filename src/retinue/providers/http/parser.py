"""A parser for HTTP/1.1 responses that accepts bytes in any split."""

import re
from collections.abc import Callable

MAX_HEAD_BYTES = 64 * 1024
"""Limit for everything around a body: heads, including those of interim responses, and trailers."""

_BLANK_LINE = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})(?:[ \t]+([^\r]*))?\r?")
_LINE_FOLD = re.compile(r"\r?\n[ \t]+")
_LENGTH_PATTERN = re.compile(r"[0-9]{1,18}")
_CHUNK_LINE = rb"(0{0,64}[0-9A-Fa-f]{1,15})[ \t]{0,64}(?:;[^\n]{0,4096})?\r?\n"
_PARTIAL_CHUNK_LINE = rb"0{0,64}[0-9A-Fa-f]{0,15}[ \t]{0,64}(?:;[^\n]{0,4097}|\r)?"
_FIRST_CHUNK_PATTERNS = (re.compile(_CHUNK_LINE), re.compile(_PARTIAL_CHUNK_LINE))
"""The line before the first chunk, and a prefix of such a line."""
_NEXT_CHUNK_PATTERNS = (
    re.compile(rb"\r?\n" + _CHUNK_LINE),
    re.compile(rb"\r?(?:\n" + _PARTIAL_CHUNK_LINE + rb")?"),
)
"""The same for later chunks, with the line break that ends the previous chunk."""
_LIST_HEADERS = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers whose repetitions are joined; of any other header the first one is used."""
_FIRST_FINAL_STATUS = 200
_SWITCHING_PROTOCOLS = 101
_BODILESS_STATUSES = frozenset({204, 304})


class ResponseError(Exception):
    """The response cannot be read; the message continues a sentence that begins with the server."""


class ResponseParser:
    """An HTTP response. The reader takes the body from `pieces`."""

    __slots__ = (
        "_chunk_patterns",
        "_head_bytes",
        "_parse_next",
        "_partial_line",
        "_remaining_bytes",
        "has_started",
        "headers",
        "is_complete",
        "keep_alive",
        "pieces",
        "reason",
        "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is complete."""
        self.reason = ""
        self.headers: dict[str, str] = {}
        """Header values by lower-case name."""
        self.pieces: list[bytes] = []
        self.has_started = False
        self.is_complete = False
        self.keep_alive = False
        """Whether the connection can carry another response after this one."""
        # A plain function, not a bound method: a reference cycle would wait for the garbage collector.
        self._parse_next: Callable[[ResponseParser, bytes], None] = ResponseParser._parse_head
        self._partial_line = b""
        """The beginning of a line that has not ended."""
        self._head_bytes = 0
        self._remaining_bytes = 0
        """Bytes still to come of the body or of the current chunk."""
        self._chunk_patterns = _FIRST_CHUNK_PATTERNS

    def feed(self, data: bytes) -> None:
        """Parse received bytes; raise ResponseError if they are not HTTP."""
        self.has_started = True
        if self._partial_line:
            data = self._partial_line + data
            self._partial_line = b""
        self._parse_next(self, data)

    def close(self, *, orderly: bool) -> None:
        """End the response when the connection closes; raise ResponseError if it is incomplete."""
        if self.is_complete:
            return
        if self._parse_next is ResponseParser._parse_until_close and orderly:
            self.is_complete = True
            return
        moment = "in the middle of its answer" if self.has_started else "before it answered"
        raise ResponseError(f"broke the connection {moment}")

    def _parse_head(self, data: bytes) -> None:
        while self.status < _FIRST_FINAL_STATUS and self.status != _SWITCHING_PROTOCOLS:
            self.status = 0
            data = data.lstrip(b"\r\n")
            end = _BLANK_LINE.search(data)
            size = len(data) if end is None else end.start()
            if self._head_bytes + size > MAX_HEAD_BYTES:
                raise ResponseError(f"answered with a head of more than {MAX_HEAD_BYTES:,} bytes")
            if end is None:
                self._partial_line = data
                return
            self._head_bytes += size
            self._parse_header_lines(data[:size].decode("latin-1"))
            data = data[end.end() :]
        self._choose_body_parser()
        if data:
            self._parse_next(self, data)

    def _parse_header_lines(self, head: str) -> None:
        if "\n " in head or "\n\t" in head:
            head = _LINE_FOLD.sub(" ", head)
        first, *lines = head.split("\n")
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise ResponseError(f"answered with what is no HTTP: {first.strip()[:100]!r}")
        self.headers = headers = dict[str, str]()
        for line in lines:
            name, colon, content = line.partition(":")
            name = name.strip().lower()
            if not colon or not name:
                raise ResponseError(f"answered with what is no header: {line.strip()[:100]!r}")
            if name not in headers:
                headers[name] = content.strip()
            elif name in _LIST_HEADERS:
                headers[name] += f", {content.strip()}"
        self.status = int(match[2])
        self.reason = match[3] or ""
        self.keep_alive = match[1] != "0" and "close" not in headers.get("connection", "").lower()

    def _choose_body_parser(self) -> None:
        """Determine how the end of the body is recognised."""
        headers = self.headers
        encoding = headers.get("transfer-encoding")
        if self.status in _BODILESS_STATUSES:
            self._finish_body(b"")
        elif encoding is not None and encoding.lower().endswith("chunked"):
            self._parse_next = ResponseParser._parse_chunks
        elif "content-length" in headers and encoding is None:
            self._remaining_bytes = _parse_content_length(headers["content-length"])
            self._parse_next = ResponseParser._parse_sized_body
            if not self._remaining_bytes:
                self._finish_body(b"")
        else:
            self.keep_alive = False
            self._parse_next = ResponseParser._parse_until_close

    def _parse_chunks(self, data: bytes) -> None:
        position, remaining = 0, self._remaining_bytes
        pattern, partial_pattern = self._chunk_patterns
        while True:
            if remaining:
                piece = data[position : position + remaining]
                if piece:
                    self.pieces.append(piece)
                    position += len(piece)
                    remaining -= len(piece)
                if remaining:
                    break
            match = pattern.match(data, position)
            if match is None:
                self._partial_line = data[position:]
                if partial_pattern.fullmatch(self._partial_line) is None:
                    raise ResponseError(f"answered with what is no chunk: {self._partial_line[:100]!r}")
                break
            position = match.end()
            remaining = int(match[1], 16)
            pattern, partial_pattern = self._chunk_patterns = _NEXT_CHUNK_PATTERNS
            if not remaining:
                self._parse_next = ResponseParser._parse_trailers
                self._parse_trailers(data[position:])
                return
        self._remaining_bytes = remaining

    def _parse_trailers(self, data: bytes) -> None:
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            if data[position:end] in {b"", b"\r"}:
                self._finish_body(data[end + 1 :])
                return
            self._head_bytes += end - position
            position = end + 1
        self._partial_line = data[position:]
        if self._head_bytes + len(self._partial_line) > MAX_HEAD_BYTES:
            raise ResponseError(f"answered with more than {MAX_HEAD_BYTES:,} bytes around its body")

    def _parse_sized_body(self, data: bytes) -> None:
        rest = data[self._remaining_bytes :]
        if rest:
            data = data[: self._remaining_bytes]
        self._remaining_bytes -= len(data)
        self.pieces.append(data)
        if not self._remaining_bytes:
            self._finish_body(rest)

    def _parse_until_close(self, data: bytes) -> None:
        self.pieces.append(data)

    def _finish_body(self, rest: bytes) -> None:
        self.is_complete = True
        self._parse_next = ResponseParser._reject_excess
        if rest:
            self._reject_excess(rest)

    def _reject_excess(self, _: bytes) -> None:
        """Mark the connection as not reusable: excess bytes would be taken for the next response."""
        self.keep_alive = False


def _parse_content_length(header: str) -> int:
    first, *others = (each.strip() for each in header.split(","))
    if _LENGTH_PATTERN.fullmatch(first) is None or any(each != first for each in others):
        raise ResponseError(f"answered with a length that is none: {header[:100]!r}")
    return int(first)
