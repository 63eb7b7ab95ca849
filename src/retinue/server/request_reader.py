"""Read the HTTP requests of one connection within limits, and rewrite them in one normal form for uvicorn."""

import httptools

from retinue.domain.http_framing import is_supported_transfer_encoding
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.error_responses import HttpError


class RequestReader:
    """Parses, checks and rewrites the requests of one connection.

    Requests are re-serialised from the parsed parts, so the downstream parser cannot interpret them
    differently. Requests are read one at a time: a pipelined request is ignored, as HTTP allows.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.in_head = True
        self.head_bytes = 0
        self.is_responding = False
        """A request was passed on and its response is not complete. The connection resets it."""
        self.is_request_incomplete = False
        """A request has begun and is not complete."""
        self.is_stopped = False
        """Nothing more is read: another request, or another protocol, follows the current request."""
        self._limits = limits
        self._error: HttpError | None = None
        self._output: list[bytes] = []
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_chunked = False
        self._parser = httptools.HttpRequestParser(self)

    def read(self, data: bytes) -> bytes:
        """Read input, and return the bytes to pass on.

        Raises:
            HttpError: The input is not HTTP, or exceeds a limit.
        """
        self._output = []
        if self.in_head:
            allowed = self._limits.max_head_bytes - self.head_bytes
            self.head_bytes += len(data)
            self._parse(data[:allowed])
            data = data[allowed:]
            if data and self.in_head and not self.is_stopped:
                raise HttpError(
                    431, f"The request head is too large: the limit is {self._limits.max_head_bytes} bytes"
                )
        if not self.is_stopped:
            self._parse(data)
        return b"".join(self._output)

    def _parse(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered as plain HTTP
            self.is_stopped = True
        except httptools.HttpParserError as error:
            if self.is_responding and not self.is_request_incomplete:  # follows a complete request
                self.is_stopped = True
                return
            raise self._error or HttpError(400, "Invalid HTTP request") from error

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        if self.is_responding:
            self.is_stopped = True
            raise _ParsingStopped
        self.is_request_incomplete = True
        self._url, self._headers, self._is_chunked = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.max_url_bytes:
            self._reject(
                HttpError(414, f"The URL is too long: the limit is {self._limits.max_url_bytes} bytes")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header. Trailers are counted too, and not passed on."""
        self._headers.append((name, value))
        if len(self._headers) > self._limits.max_headers:
            self._reject(HttpError(431, f"Too many headers: the limit is {self._limits.max_headers}"))

    def on_headers_complete(self) -> None:
        if not self._url.startswith(b"/"):
            self._reject(HttpError(400, "The request target must be a path that starts with /"))
        httptools.parse_url(self._url).path.decode("ascii")  # what fails here would fail in uvicorn
        self.in_head = False
        self.is_responding = True
        encodings = [
            value.decode("latin-1") for name, value in self._headers if name.lower() == b"transfer-encoding"
        ]
        if not is_supported_transfer_encoding(encodings):
            self._reject(HttpError(400, "The transfer encoding must be chunked"))
        self._is_chunked = bool(encodings)
        version = self._parser.get_http_version().encode()
        self._output += [self._parser.get_method(), b" ", self._url, b" HTTP/", version, b"\r\n"]
        for name, value in self._headers:
            self._output += [name, b": ", value, b"\r\n"]
        self._output.append(b"\r\n")

    def on_body(self, body: bytes) -> None:
        self._output += [b"%x\r\n" % len(body), body, b"\r\n"] if self._is_chunked else [body]

    def on_message_complete(self) -> None:
        if self._is_chunked:
            self._output.append(b"0\r\n\r\n")
        self.is_request_incomplete, self.in_head, self.head_bytes = False, True, 0

    def _reject(self, error: HttpError) -> None:
        self._error = error
        raise _ParsingStopped


class _ParsingStopped(Exception):
    """Stops httptools, which reports it as its own error."""
