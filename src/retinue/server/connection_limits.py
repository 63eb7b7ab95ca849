"""HTTP connections with limits on size, time and number, enforced before the application is called."""

import asyncio
import os
import socket
import struct
from enum import StrEnum
from typing import Any

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from retinue.server.error_responses import HttpError


class Listener(StrEnum):
    """The listener a request arrived on. The listening socket decides it, never a header."""

    UNIX_SOCKET = "socket"
    """The Unix socket in the home: the kernel guarantees that the peer is the same user."""
    TCP_PORT = "page"
    """The TCP port: the peer is unknown until it authenticates."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection."""

    max_url_bytes: int = 8_192
    max_headers: int = 100
    max_head_bytes: int = 32_768
    """Bytes from the start of a request to the end of its headers."""
    max_body_bytes: int = 4 * 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    stall_seconds: float = 30.0
    """Time for which a client may read nothing of its response."""
    linger_seconds: float = 1.0
    """Time for which a rejected client is still read, so that the response reaches it."""
    max_connections: int = 256
    """Counted per listener, so that many page visitors do not lock out the command line."""


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits.

    `app_state` holds the limits and all open connections; the state of each request holds its listener.
    """

    listener: Listener = Listener.TCP_PORT

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: ConnectionLimits = self.app_state["limits"]
        self._open_connections: set[LimitedConnection] = self.app_state["lines"]
        self.idle_since = self.loop.time()
        self.is_responding = False
        self._is_reading_stopped = False
        """No more input is parsed: the connection ends with the current response."""
        self._in_head = True
        self._head_bytes = 0
        self._request_incomplete = False
        """A request has begun and is not complete."""
        self._is_closing = False
        self._parse_error: HttpError | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        self.listener = Listener.UNIX_SOCKET if peer.family == socket.AF_UNIX else Listener.TCP_PORT
        if self.listener is Listener.UNIX_SOCKET and _peer_uid(peer) != os.geteuid():
            self._is_reading_stopped = True
            transport.abort()
        elif not self._admit_connection():
            self._reject(HttpError(503, "Too many open connections. Close some, or try again in a moment."))
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.discard(self)
        for timer in (self._deadline_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _admit_connection(self) -> bool:
        """Admit this connection, closing the one idle for longest if there are too many.

        A connection that is being answered is never closed.
        """
        same_listener = [
            connection for connection in self._open_connections if connection.listener is self.listener
        ]
        if len(same_listener) < self._limits.max_connections:
            self._open_connections.add(self)
            return True
        idle = [connection for connection in same_listener if not connection.is_responding]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        self._open_connections.discard(oldest)
        oldest.transport.abort()
        self._open_connections.add(self)
        return True

    # Parsing

    def data_received(self, data: bytes) -> None:
        if self._in_head and not self._is_reading_stopped:
            allowed = self._limits.max_head_bytes - self._head_bytes
            self._head_bytes += len(data)
            if data[:allowed]:
                super().data_received(data[:allowed])
            data = data[allowed:]
            if data and self._in_head and not self._is_reading_stopped:
                self._reject(
                    HttpError(
                        431,
                        f"The request head is too large: the limit is {self._limits.max_head_bytes} bytes",
                    )
                )
        if data and not self._is_reading_stopped:
            super().data_received(data)
        if (
            self._in_head
            and not self._is_reading_stopped
            and not self.is_responding
            and self.timeout_keep_alive_task is None
        ):
            self._start_head_timer()

    def on_message_begin(self) -> None:
        if self.is_responding:  # pipelined request: ignored, as HTTP allows
            self.cycle.keep_alive = False
            self._is_reading_stopped = True
            raise _ParsingStopped
        self._request_incomplete = True
        super().on_message_begin()
        self.scope["state"] = {**self.app_state, "way": self.listener, "abort": self.transport.abort}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            self._reject_while_parsing(
                HttpError(414, f"The URL is too long: the limit is {self._limits.max_url_bytes} bytes")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.max_headers:
            self._reject_while_parsing(
                HttpError(431, f"Too many headers: the limit is {self._limits.max_headers}")
            )

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_deadline()
        if not self.url.startswith(b"/"):
            self._reject_while_parsing(HttpError(400, "The request target must be a path that starts with /"))
        self.is_responding = True
        super().on_headers_complete()
        self.cycle.transport = _ClosingTransport(self)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._request_incomplete, self._in_head, self._head_bytes = False, True, 0

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        self.is_responding = False
        super().on_response_complete()
        if self._request_incomplete:  # the rest of the request body is not needed
            self.close_gracefully()

    def _unsupported_upgrade_warning(self) -> None:
        """Answer an upgrade request as plain HTTP, and read nothing more from the connection."""
        self._is_reading_stopped = True
        self.cycle.keep_alive = False

    # Rejecting and closing

    def _reject_while_parsing(self, error: HttpError) -> None:
        self._parse_error = error
        raise _ParsingStopped

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn passes the same message for every error)
        if not self._is_reading_stopped:
            self._reject(self._parse_error or HttpError(400, "Invalid HTTP request"))

    def _reject(self, error: HttpError) -> None:
        self._is_reading_stopped = True
        self._cancel_deadline()
        if self.is_responding:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(error.raw_response())
        self.close_gracefully()

    def close_gracefully(self) -> None:
        """Close the connection once the response was read.

        Input of a client that is still sending is read for a moment and discarded: if the socket were closed
        before, the kernel would discard the response.
        """
        self._is_reading_stopped = True
        self._start_stall_timer()
        if self._is_closing or self.transport.is_closing():
            return
        self._is_closing = True
        if self._request_incomplete and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._deadline_timer = self.loop.call_later(self._limits.linger_seconds, self.transport.close)
        else:
            self.transport.close()

    # Timeouts

    def _start_head_timer(self) -> None:
        if self._deadline_timer is None:
            self._deadline_timer = self.loop.call_later(self._limits.head_seconds, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._deadline_timer = None
        if self._head_bytes:
            self._reject(
                HttpError(408, f"The headers took too long: the limit is {self._limits.head_seconds:g} s")
            )
        else:
            self.transport.close()

    def _cancel_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(self._limits.stall_seconds, self._on_stall_timeout)

    def _on_stall_timeout(self) -> None:
        """Abort the connection if the client read nothing since the last check, and free its buffers."""
        self._stall_timer = None
        if self.transport.get_write_buffer_size() >= self._unread_bytes:
            self.transport.abort()
        else:
            self._start_stall_timer()


class _ParsingStopped(Exception):
    """Stops the parsing of a request."""


class _ClosingTransport(asyncio.Transport):
    """The transport of one response: closing it closes the connection gracefully."""

    def __init__(self, connection: LimitedConnection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.close_gracefully()


def _peer_uid(peer: socket.socket) -> int:
    """Return the uid of the peer process, as reported by the kernel."""
    _pid, uid, _gid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid
