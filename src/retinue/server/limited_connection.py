"""HTTP connections with limits on size, time and number, enforced before the application is called.

`LimitedConnection` sits between asyncio and uvicorn's protocol object, which it treats as any
`asyncio.Protocol`: it passes on complete heads and checked bodies, and provides a transport of its own.
`track_responses` reports from the application when a response starts and ends.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.server.connection_limits import ConnectionLimits, Listener
from retinue.server.error_responses import HttpError
from retinue.server.request_reader import RequestReader
from retinue.server.response_headers import Header

ProtocolFactory = Callable[[dict[str, Any]], asyncio.Protocol]
"""Creates the protocol behind a connection; its argument becomes the state of each request."""
CONNECTION_STATE_KEY = "connection"
CLOSE_HEADER: Header = (b"connection", b"close")


class LimitedConnection(asyncio.Protocol):
    """A connection that passes requests within the limits on to another protocol."""

    listener: Listener = Listener.TCP_PORT

    def __init__(
        self,
        make_protocol: ProtocolFactory,
        limits: ConnectionLimits,
        open_connections: "set[LimitedConnection]",
    ) -> None:
        """Create a connection that joins `open_connections` while it is open."""
        self.transport: asyncio.Transport = asyncio.Transport()
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._limits = limits
        self._open_connections = open_connections
        self._reader = RequestReader(limits)
        self._protocol: asyncio.Protocol | None = None
        """The protocol that requests are passed on to; None before admission and after rejection."""
        self.idle_since = self._loop.time()
        self.is_ending = False
        """No more input is read: the connection ends with the current response."""
        self._is_closing = False
        self._is_kept_alive = False
        """The deadline is that of the next request's first byte."""
        self._response_started = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    @property
    def is_responding(self) -> bool:
        return self._reader.is_responding

    @property
    def is_closing(self) -> bool:
        return self._is_closing or self.transport.is_closing()

    # Opening and losing the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (a stream's)
        self.transport = transport
        peer: socket.socket = transport.get_extra_info("socket")
        self.listener = Listener.UNIX_SOCKET if peer.family == socket.AF_UNIX else Listener.TCP_PORT
        if self.listener is Listener.UNIX_SOCKET and _peer_uid(peer) != os.geteuid():
            self.is_ending = True
            transport.abort()
        elif not self._admit_connection():
            self._reject(HttpError(503, "Too many open connections. Close some, or try again in a moment."))
        else:
            self._protocol = self._make_protocol(
                {
                    "limits": self._limits,
                    "listener": self.listener,
                    "abort": transport.abort,
                    CONNECTION_STATE_KEY: self,
                }
            )
            self._protocol.connection_made(_ForwardingTransport(self))
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._open_connections.discard(self)
        self._cancel_deadline()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._detach_protocol()

    def eof_received(self) -> bool | None:
        return None if self._protocol is None else self._protocol.eof_received()

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

    def _detach_protocol(self) -> None:
        """Tell the protocol that its connection is lost; it ends the request in progress."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)

    # Requests and responses

    def data_received(self, data: bytes) -> None:
        if self.is_ending or self._protocol is None:
            return
        if self._is_kept_alive:
            self._cancel_deadline()
        try:
            output = self._reader.read(data)
        except HttpError as error:
            self._reject(error)
            return
        self.is_ending = self._reader.is_stopped
        if self.is_responding:
            self._cancel_deadline()
        else:
            self._start_head_timer()
        if output:
            self._protocol.data_received(output)

    def start_response(self, headers: list[Header]) -> list[Header]:
        """Note that a response starts, and return its headers."""
        self._response_started = True
        if self.is_ending and CLOSE_HEADER not in headers:
            return [*headers, CLOSE_HEADER]
        return headers

    def finish_response(self) -> None:
        """Note that a response is complete, and wait for the next request if there can be one."""
        self.idle_since = self._loop.time()
        self._reader.is_responding = self._response_started = False
        if self.is_closing:
            return
        if self.is_ending or self._reader.is_request_incomplete:  # the rest of the input is not needed
            self.close_gracefully()
        else:
            self._is_kept_alive = True
            self._deadline_timer = self._loop.call_later(
                self._limits.keep_alive_seconds, self.transport.close
            )

    # Rejecting and closing

    def _reject(self, error: HttpError) -> None:
        self.is_ending = True
        self._cancel_deadline()
        self._detach_protocol()
        if self._response_started:
            self.transport.abort()
            return
        self.transport.write(error.raw_response())
        self.close_gracefully()

    def close(self) -> None:
        """Close the connection for the protocol: gracefully after a response, else at once."""
        if self._protocol is None:
            return
        if self.is_responding:
            self.close_gracefully()
        else:
            self.transport.close()

    def close_gracefully(self) -> None:
        """Close the connection once the response was read.

        Input of a client that is still sending is read for a moment and discarded: if the socket were closed
        before, the kernel would discard the response.
        """
        self.is_ending = True
        self._start_stall_timer()
        if self.is_closing:
            return
        self._is_closing = True
        if self._reader.is_request_incomplete and self.transport.can_write_eof():
            self.transport.write_eof()
            self.transport.resume_reading()
            self._deadline_timer = self._loop.call_later(self._limits.linger_seconds, self.transport.close)
        else:
            self.transport.close()

    # Timeouts

    def _start_head_timer(self) -> None:
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_later(self._limits.head_seconds, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._deadline_timer = None
        if self._reader.head_bytes:
            self._reject(
                HttpError(408, f"The headers took too long: the limit is {self._limits.head_seconds:g} s")
            )
        else:
            self.transport.close()

    def _cancel_deadline(self) -> None:
        self._is_kept_alive = False
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._stall_timer = self._loop.call_later(self._limits.stall_seconds, self._on_stall_timeout)

    def _on_stall_timeout(self) -> None:
        """Abort the connection if the client read nothing since the last check, and free its buffers."""
        self._stall_timer = None
        if self.transport.get_write_buffer_size() >= self._unread_bytes:
            self.transport.abort()
        else:
            self._start_stall_timer()


class _ForwardingTransport(asyncio.Transport):
    """The transport of the protocol behind a connection: the connection decides how it closes."""

    def __init__(self, connection: LimitedConnection) -> None:
        super().__init__()
        self._connection = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.transport.get_extra_info(name, default)

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close()

    def pause_reading(self) -> None:
        self._connection.transport.pause_reading()

    def resume_reading(self) -> None:
        self._connection.transport.resume_reading()


def track_responses(app: ASGIApp) -> ASGIApp:
    """Tell the connection of each request when its response starts and when it is complete."""

    async def tracked_app(scope: Scope, receive: Receive, send: Send) -> None:
        connection: LimitedConnection = scope["state"][CONNECTION_STATE_KEY]

        async def tracked_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = connection.start_response(list(message.get("headers", ())))
                message = {**message, "headers": headers}
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.finish_response()

        await app(scope, receive, tracked_send)

    return tracked_app


def _peer_uid(peer: socket.socket) -> int:
    """Return the uid of the peer process, as reported by the kernel."""
    _pid, uid, _gid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid
