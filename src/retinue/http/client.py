"""An HTTP/1.1 client for the requests to one server, with kept-alive connections."""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, cast

from retinue.http.connect import (
    Connector,
    ProxyRefused,
    ServerUrl,
    Unreachable,
    UntrustedCertificate,
    connection_error,
    describe_os_error,
    is_certificate_alert,
    parse_server_url,
)
from retinue.http.network import DIRECT, NetworkSettings
from retinue.http.parser import NotHttpError, ResponseError, ResponseParser
from retinue.http.proxies import Proxy
from retinue.http.tls import ssl_context
from retinue.http.tunnel import authentication_error, authorization_line, connect_to_proxy, open_tunnel

KEEPALIVE_S = 15.0
"""Time that an unused connection is kept open."""
REUSE_RETRY_S = 1.0
"""If a reused connection breaks within this time, the request is sent again; 0: never.

The server had closed it before the request came. Later, the server may already have begun work.
"""
SINGLE_WRITE_BYTES = 64 * 1024
"""A smaller body is sent in one write together with the request head."""
PIECE_BYTES = 256 * 1024
"""Bytes of a longer body written before other tasks get their turn."""
MAX_UNREAD_BYTES = 256 * 1024
"""Received but unread bytes at which reading from the server is paused."""
_FIRST_ERROR_STATUS = 300
_PROXY_AUTHENTICATION = 407


class Connection(asyncio.Protocol):
    """A connection and the request on it.

    The caller reads the response and then calls `release`.
    """

    __slots__ = (
        "_client",
        "_error",
        "_got_eof",
        "_input_poll",
        "_raw_socket",
        "_request_sent",
        "_transport",
        "_unread_bytes",
        "_waiter",
        "_writing_paused",
        "last_used_at",
        "reading_paused",
        "response",
    )  # fmt: skip

    def __init__(self, client: "HttpClient", raw_socket: socket.socket | None) -> None:
        self.response = ResponseParser()
        self.last_used_at = 0.0
        """Event-loop time of the last use."""
        self._client = client
        self._raw_socket = raw_socket
        """The socket, if its bytes are the response itself (no TLS)."""
        self._input_poll = None if raw_socket is None else _register_poll(raw_socket)
        self._transport = cast("asyncio.Transport", None)
        self._waiter: asyncio.Future[None] | None = None
        self._error: ResponseError | UntrustedCertificate | None = None
        self._unread_bytes = 0
        self.reading_paused = False
        """Reading is paused until received bytes are taken."""
        self._got_eof = False
        """The server has closed its side of the connection."""
        self._writing_paused = False
        self._request_sent = True

    @property
    def is_complete(self) -> bool:
        """Whether the whole response was received and read."""
        response = self.response
        return response.is_complete and not response.pieces

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def is_stale(self) -> bool:
        """Whether unrequested input has arrived, including end of file.

        Unknown with TLS, where input may belong to TLS itself.
        """
        return self._input_poll is not None and bool(self._input_poll.poll(0))

    async def send_request(
        self, head: bytes, body: Sequence[bytes], size: int, on_progress: Callable[[], None]
    ) -> None:
        """Send a request and wait for the head of the response."""
        response = self.response = ResponseParser()
        self._unread_bytes = 0
        if size < SINGLE_WRITE_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            await self._send_in_pieces(head, body, on_progress)
        while not response.status:
            await self._wait_for_event()
            on_progress()

    async def read(self) -> bytes:
        """Return the body bytes received since the last call, or b"" at the end."""
        response = self.response
        while not response.pieces:
            if response.is_complete:
                return b""
            await self._wait_for_event()
        pieces, response.pieces = response.pieces, []
        self._unread_bytes = 0
        if self.reading_paused:
            self.reading_paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """Keep the connection for the next request if the response is complete, else close it."""
        response = self.response
        if response.is_complete and response.keep_alive and self._request_sent and not self.reading_paused:
            self._client.keep_connection(self)
        else:
            self.abort()

    def abort(self) -> None:
        # Unsent data is useless now, and a TLS shutdown would have to be awaited.
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._client.add_connection(self)

    def data_received(self, data: bytes) -> None:
        response = self.response
        try:
            response.feed(data)
        except ResponseError as error:
            self._error = error
            self._transport.abort()
        else:
            self._unread_bytes += len(data)
            if response.is_complete:
                # Nothing received now may be taken for the next response.
                if not response.keep_alive:
                    self._transport.abort()
            elif self._unread_bytes > MAX_UNREAD_BYTES and not self.reading_paused:
                self.reading_paused = True
                self._transport.pause_reading()
        self._wake_waiter()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake_waiter()

    def eof_received(self) -> None:
        # Left alone, the transport would first send the remaining data, which may take forever.
        self._got_eof = True
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.remove_connection(self)
        if self._error is None and is_certificate_alert(exc):
            # In TLS 1.3 a server checks the client's certificate after the handshake.
            self._error = UntrustedCertificate(describe_os_error(cast("ssl.SSLError", exc)))
        if self._error is None:
            try:
                if exc is not None and self._raw_socket is not None:
                    self._read_remaining(self._raw_socket)
                self.response.close(orderly=self._got_eof)
            except ResponseError as error:
                error.__cause__ = exc
                self._error = error
        self._wake_waiter()

    def _read_remaining(self, raw_socket: socket.socket) -> None:
        """Read what the server sent before it reset the connection.

        A server that rejects a long request closes before reading all of it; sending then fails before its
        response is read.
        """
        try:
            while data := raw_socket.recv(PIECE_BYTES):
                self.response.feed(data)
        except OSError:
            return

    async def _send_in_pieces(
        self, head: bytes, body: Sequence[bytes], on_progress: Callable[[], None]
    ) -> None:
        """Send a long request piece by piece; stop when the server has already rejected it."""
        self._request_sent = False
        self._transport.write(head)
        for piece in _split_body(body):
            self._transport.write(piece)
            await asyncio.sleep(0)
            while self._writing_paused and not self._is_rejected():
                await self._wait_for_event()
            if self._is_rejected():
                return
            on_progress()
        self._request_sent = True

    def _is_rejected(self) -> bool:
        return self.response.status >= _FIRST_ERROR_STATUS or self._transport.is_closing()

    async def _wait_for_event(self) -> None:
        """Wait for the next event on this connection."""
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake_waiter(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


class HttpClient:
    """Connections to one server, opened on use.

    Raises InvalidServerUrl for an invalid URL, and BadConfig for network settings that cannot be used.

    Args:
        url: The URL that is requested.
        headers: Headers of every request.
        connect_timeout_s: Time for the connection and its TLS handshake.
        keepalive_s: See `KEEPALIVE_S`.
        reuse_retry_s: See `REUSE_RETRY_S`.
        network: Proxies and certificates.
        connector: Opens the sockets; by default to the addresses that the host currently has.
    """

    def __init__(
        self,
        url: str | ServerUrl,
        headers: Mapping[str, str],
        *,
        connect_timeout_s: float,
        keepalive_s: float = KEEPALIVE_S,
        reuse_retry_s: float = REUSE_RETRY_S,
        network: NetworkSettings = DIRECT,
        connector: Connector | None = None,
    ) -> None:
        self._server = server = url if isinstance(url, ServerUrl) else parse_server_url(url)
        self._network = network
        self._proxy = proxy = network.proxies.proxy_for(server)
        self.forward_proxy = None if server.is_https else proxy
        """The proxy that the server's responses come from, instead of from a tunnel."""
        target, proxy_line = server.target, ""
        if self.forward_proxy is not None:
            target = f"http://{server.host_header}{server.target}"
            proxy_line = authorization_line(self.forward_proxy)
        self._request_head = (
            f" {target} HTTP/1.1\r\nHost: {server.host_header}\r\n{proxy_line}{_header_lines(headers)}"
        )
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._reuse_retry_s = reuse_retry_s
        peer = server if proxy is None else proxy.server
        self._connector = connector or Connector(peer.host, peer.port)
        self._connections: set[Connection] = set()
        self._idle_connections: list[Connection] = []
        """Unused connections, the most recently used last."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_closed = asyncio.Event()

    def post(
        self,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        on_progress: Callable[[], None] = lambda: None,
    ) -> Coroutine[Any, Any, Connection]:
        """Send a POST request; see `request`."""
        return self.request("POST", headers, body, on_progress)

    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: Sequence[bytes] = (),
        on_progress: Callable[[], None] = lambda: None,
    ) -> Connection:
        """Send a request and return its connection once the head of the response has arrived.

        Until then `on_progress` is called when a piece of a long request was sent or something was received.

        Raises:
            Unreachable: no connection could be made.
            ResponseError: the connection broke, or the response is not HTTP.
            BadConfig: a certificate file cannot be read.
        """
        proxy = self.forward_proxy
        if proxy is None:
            return await self._send(method, headers, body, on_progress)
        try:
            connection = await self._send(method, headers, body, on_progress)
        except NotHttpError as error:
            raise ProxyRefused(f"{proxy} {proxy.redact(str(error))}") from error
        except ResponseError as error:
            raise ResponseError(f"{proxy.redact(str(error))}; it was asked through {proxy}") from error
        if connection.response.status == _PROXY_AUTHENTICATION:
            connection.abort()
            raise authentication_error(proxy, connection.response)
        return connection

    async def _send(
        self,
        method: str,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        on_progress: Callable[[], None],
    ) -> Connection:
        size = sum(map(len, body))
        length = f"Content-Length: {size}\r\n" if size or method == "POST" else ""
        head = f"{method}{self._request_head}{_header_lines(headers)}{length}\r\n".encode("latin-1")
        connection = self._take_idle_connection()
        if connection is not None:
            clock = asyncio.get_running_loop().time
            started_at = clock()
            try:
                return await _send_or_abort(connection, head, body, size, on_progress)
            except ResponseError:
                # The server may close a connection at the moment it is reused.
                if connection.response.has_started or clock() - started_at >= self._reuse_retry_s:
                    raise
        return await _send_or_abort(await self._open_connection(), head, body, size, on_progress)

    async def close(self) -> None:
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        for each in self._connections:
            each.abort()
        if self._connections:
            await self._all_closed.wait()

    def add_connection(self, connection: Connection) -> None:
        self._connections.add(connection)

    def remove_connection(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle_connections:
            self._idle_connections.remove(connection)
        if self._closed and not self._connections:
            self._all_closed.set()

    def keep_connection(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.last_used_at = loop.time()
        self._idle_connections.append(connection)
        if self._expiry_timer is None:
            self._expiry_timer = loop.call_later(self._keepalive_s, self._close_expired)

    def _take_idle_connection(self) -> Connection | None:
        while self._idle_connections:
            connection = self._idle_connections.pop()
            if not connection.is_closing and not connection.is_stale:
                return connection
            connection.abort()
        return None

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        self._expiry_timer = None
        expired_before = loop.time() - self._keepalive_s
        for each in self._idle_connections:
            if each.last_used_at <= expired_before:
                each.abort()
        remaining = [each for each in self._idle_connections if each.last_used_at > expired_before]
        if remaining:
            self._expiry_timer = loop.call_at(
                remaining[0].last_used_at + self._keepalive_s, self._close_expired
            )
        self._idle_connections = remaining

    async def _open_connection(self) -> Connection:
        # The first TLS context takes a while, which is not the server's fault.
        context = ssl_context(self._network.tls) if self._server.is_https else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._proxy is None:
                    connection = await self._connect_directly(context)
                else:
                    connection = await self._connect_through_proxy(self._proxy, context)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:
                route = f" through {self._proxy}" if self._proxy else ""
                raise Unreachable(f"no connection within {self._connect_timeout_s:g} s{route}") from error
            raise connection_error(error) from error
        if self._closed:
            connection.abort()
        return connection

    async def _connect_directly(self, context: ssl.SSLContext | None) -> Connection:
        raw_socket = await self._connector.connect()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self, None if context else raw_socket),
            sock=raw_socket,
            ssl=context,
            server_hostname=self._server.certificate_name if context else None,
        )
        return connection

    async def _connect_through_proxy(self, proxy: Proxy, context: ssl.SSLContext | None) -> Connection:
        proxy_context = ssl_context(self._network.proxy_tls) if proxy.server.is_https else None
        if context is None:
            _, connection = await connect_to_proxy(
                self._connector,
                proxy,
                proxy_context,
                lambda raw_socket: Connection(self, None if proxy_context else raw_socket),
            )
            return connection
        tunnel = await open_tunnel(self._connector, proxy, proxy_context, self._server)
        connection = Connection(self, None)
        # The server may send bytes as soon as TLS is ready, before `start_tls` returns.
        connection.connection_made(tunnel)
        try:
            transport = await asyncio.get_running_loop().start_tls(
                tunnel, connection, context, server_hostname=self._server.certificate_name
            )
        except BaseException:
            connection.abort()
            self.remove_connection(connection)
            raise
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection


async def _send_or_abort(
    connection: Connection, head: bytes, body: Sequence[bytes], size: int, on_progress: Callable[[], None]
) -> Connection:
    try:
        await connection.send_request(head, body, size, on_progress)
    except BaseException:
        connection.abort()
        raise
    return connection


def _register_poll(raw_socket: socket.socket) -> select.poll:
    """Return a poll object that reports whether input, including end of file, has arrived."""
    poll = select.poll()
    poll.register(raw_socket, select.POLLIN)
    return poll


def _header_lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {content}\r\n" for name, content in headers.items()])


def _split_body(body: Sequence[bytes]) -> Iterator[memoryview]:
    for part in body:
        view = memoryview(part)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
