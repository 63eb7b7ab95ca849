"""A parser for HTTP/1.1 responses that accepts bytes in any split, on httptools (llhttp)."""

import re

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from retinue.domain.http_framing import is_supported_transfer_encoding

MAX_HEAD_BYTES = 64 * 1024
"""Limit for the heads of a response, including interim ones, and for chunk sizes and trailers without body data."""

_LENGTH_PATTERN = re.compile(r"[0-9]{1,18}")
_LIST_HEADERS = frozenset({"connection", "proxy-authenticate", "transfer-encoding"})
"""Headers whose repetitions are joined; of any other header the first one is used."""
_FIRST_STATUS = 100
_FIRST_FINAL_STATUS = 200
_SWITCHING_PROTOCOLS = 101
_BODILESS_STATUSES = frozenset({204, 304})
_VERSIONS = frozenset({"1.0", "1.1"})


class ResponseError(Exception):
    """The response is invalid; the message continues a sentence whose subject is the server."""


class NotHttpError(ResponseError):
    """The response is of another protocol."""


class ResponseParser:
    """An HTTP response. The reader takes the body from `pieces`.

    llhttp parses the bytes. This class detects the end of the response and enforces what llhttp does not: size
    limits, the protocol version, and which transfer encodings and interim responses are allowed.
    """

    __slots__ = (
        "_bytes_without_body",
        "_ends_at_close",
        "_first_byte_checked",
        "_llhttp",
        "has_started",
        "headers",
        "is_complete",
        "keep_alive",
        "pieces",
        "reason",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        """0 until the head of the final response is complete."""
        self.reason = ""
        self.headers: dict[str, str] = {}
        """Header values by lower-case name."""
        self.pieces: list[bytes] = []
        self.has_started = False
        self.is_complete = False
        self.keep_alive = False
        """Whether the connection can carry another response after this one."""
        self._llhttp: HttpResponseParser | None = None
        """Present only while bytes are expected: it refers to this object, and the cycle must not outlive its use."""
        self._first_byte_checked = False
        self._ends_at_close = False
        self._bytes_without_body = 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes; raise ResponseError if they are not a valid response."""
        self.has_started = True
        if self.is_complete:
            self._reject_excess()
            return
        if self._llhttp is None:
            self._llhttp = _make_llhttp(self)
        try:
            if self.status:
                self._feed_body(self._llhttp, data)
            else:
                self._feed_head(self._llhttp, data)
        except BaseException:
            self._llhttp = None
            raise
        if self.is_complete:
            self._llhttp = None

    def close(self, *, orderly: bool) -> None:
        """End the response when the connection closes; raise ResponseError if it is incomplete."""
        self._llhttp = None
        if self.is_complete:
            return
        if self._ends_at_close and orderly:
            self.is_complete = True
            return
        moment = "in the middle of its response" if self.has_started else "before it responded"
        raise ResponseError(f"closed the connection {moment}")

    def on_message_begin(self) -> None:
        """Handle the llhttp event: forget an interim response, refuse a second final one."""
        if self.is_complete:
            raise ResponseError("sent more than one response")
        self.reason = ""
        self.headers = {}

    def on_status(self, reason: bytes) -> None:
        """Handle the llhttp event: add a part of the reason phrase."""
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle the llhttp event: add a header; trailers are ignored."""
        if self.status:
            return
        key = name.decode("latin-1").lower()
        # To llhttp, "chunked" with a tab after it is not chunked: the tab must stay, so that the head is refused.
        text = value.strip(b" " if key == "transfer-encoding" else b" \t").decode("latin-1")
        if key not in self.headers:
            self.headers[key] = text
        elif key in _LIST_HEADERS:
            self.headers[key] += f", {text}"

    def on_headers_complete(self) -> None:
        """Handle the llhttp event: check the head and determine how the end of the body is recognised."""
        assert self._llhttp is not None  # noqa: S101  (it makes this call)
        status = self._llhttp.get_status_code()
        version = self._llhttp.get_http_version()
        if version not in _VERSIONS or status < _FIRST_STATUS:
            raise ResponseError(f"sent an invalid response: HTTP/{version} with status {status:03}")
        length = self.headers.get("content-length")
        if length is not None and _LENGTH_PATTERN.fullmatch(length) is None:
            raise ResponseError(f"sent an invalid response: Content-Length {length[:100]!r}")
        encoding = self.headers.get("transfer-encoding")
        if encoding is not None and not is_supported_transfer_encoding((encoding,)):
            raise ResponseError(f"sent an invalid response: Transfer-Encoding {encoding[:100]!r}")
        if status < _FIRST_FINAL_STATUS and status != _SWITCHING_PROTOCOLS:
            if encoding is not None or int(length or "0"):
                raise ResponseError(f"sent an invalid response: interim status {status} with a body")
            return
        self.status = status
        self.reason = self.reason.lstrip(" \t")
        has_framing = length is not None or encoding is not None or status in _BODILESS_STATUSES
        self._ends_at_close = not has_framing and status != _SWITCHING_PROTOCOLS
        self.keep_alive = (
            has_framing
            and status != _SWITCHING_PROTOCOLS
            and version != "1.0"
            and "close" not in self.headers.get("connection", "").lower()
        )

    def on_body(self, data: bytes) -> None:
        """Handle the llhttp event: add a piece of the body."""
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        """Handle the llhttp event: the response is complete unless it is an interim one."""
        self.is_complete = self.status != 0

    def _feed_head(self, llhttp: HttpResponseParser, data: bytes) -> None:
        """Parse at most the bytes that a head may have, so that the limit does not depend on the split."""
        allowed_bytes = MAX_HEAD_BYTES - self._bytes_without_body
        head, rest = data[:allowed_bytes], data[allowed_bytes:]
        if not self._first_byte_checked:
            self._check_first_byte(head)
        self._execute(llhttp, head)
        if not self.status:
            if rest:
                raise ResponseError(f"sent a response head of more than {MAX_HEAD_BYTES:,} bytes")
            self._bytes_without_body += len(head)
            return
        self._bytes_without_body = 0
        if rest:
            if self.is_complete:
                self._reject_excess()
            else:
                self._feed_body(llhttp, rest)

    def _feed_body(self, llhttp: HttpResponseParser, data: bytes) -> None:
        count = len(self.pieces)
        self._execute(llhttp, data)
        if len(self.pieces) > count or self.is_complete:
            self._bytes_without_body = 0
            return
        self._bytes_without_body += len(data)
        if self._bytes_without_body > MAX_HEAD_BYTES:
            raise ResponseError(f"sent more than {MAX_HEAD_BYTES:,} bytes of chunk sizes and trailers")

    def _execute(self, llhttp: HttpResponseParser, data: bytes) -> None:
        try:
            if not self._ends_at_close and len(data) > 1 and data.endswith((b"\n", b"\r")):
                # llhttp skips blank lines between responses. If the response is complete before its last byte,
                # that byte is excess.
                llhttp.feed_data(memoryview(data)[:-1])
                if self.is_complete:
                    self._reject_excess()
                    return
                data = data[-1:]
            llhttp.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self.is_complete:
                self._reject_excess()
                return
            if error.__context__ is not None:  # raised by a callback
                raise error.__context__ from None
            raise ResponseError(f"sent an invalid response: {error}") from error

    def _check_first_byte(self, data: bytes) -> None:
        """Refuse other protocols, of which llhttp also accepts RTSP and ICE."""
        text = data.lstrip(b"\r\n")
        if text and not text.startswith(b"H"):
            line = text.partition(b"\n")[0].strip()[:100].decode("latin-1")
            raise NotHttpError(f"did not send an HTTP response: {line!r}")
        self._first_byte_checked = bool(text)

    def _reject_excess(self) -> None:
        """Mark the connection as not reusable: excess bytes would be taken for the next response."""
        self.keep_alive = False


def _make_llhttp(response: ResponseParser) -> HttpResponseParser:
    llhttp = HttpResponseParser(response)
    llhttp.set_dangerous_leniencies(
        # Servers end lines with a bare LF and pad chunk sizes with spaces; neither can hide a second response,
        # because a connection carries one response at a time and closes after excess bytes.
        lenient_optional_cr_before_lf=True,
        lenient_spaces_after_chunk_size=True,
        # Whether a response may follow is decided here: "Connection: close" on an interim response closes nothing.
        lenient_keep_alive=True,
    )
    return llhttp
