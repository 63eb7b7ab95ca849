"""The HTTP client of the providers, against servers that send exactly the bytes a test gives them."""

import asyncio
import gc
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from certificate import create_certificate
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.model_turn import ReplyDelta
from retinue.http.client import MAX_UNREAD_BYTES, PIECE_BYTES, Connection, HttpClient
from retinue.http.connect import (
    InvalidServerUrl,
    SocketAddress,
    Unreachable,
    connect_first,
    describe_os_error,
    parse_server_url,
)
from retinue.http.network import DIRECT, NetworkSettings, network_settings
from retinue.http.parser import MAX_HEAD_BYTES, ResponseError, ResponseParser
from retinue.providers.errors import ProviderError
from retinue.providers.stream_request import StreamingRequest
from retinue.providers.stream_timeout import KEEPALIVE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")


def content_length(head: bytes) -> int:
    length = LENGTH.search(head)
    return int(length[1]) if length else 0


@dataclass(slots=True)
class ServerConnection:
    """The server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes]
    """Requests of all connections of the server."""

    async def read_request(self) -> bytes:
        head = await self.read_head()
        request = head + await self.reader.readexactly(content_length(head))
        self.requests.append(request)
        return request

    async def read_head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def wait_for_disconnect(self) -> None:
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


Handler = Callable[[ServerConnection], Awaitable[None]]


@dataclass(slots=True)
class FakeServer:
    """Run the handlers in order, one per connection. Further connections get the last handler."""

    handlers: Sequence[Handler]
    url: str = ""
    requests: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    connection_closed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve_connection(reader, writer)))

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handle = self.handlers[min(self.connections, len(self.handlers) - 1)]
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handle(ServerConnection(reader, writer, self.requests))
        self.connection_closed.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def respond_with(*responses: bytes) -> Handler:
    """Return a handler that sends one response per request and then closes the connection."""

    async def handle(conn: ServerConnection) -> None:
        for response in responses:
            await conn.read_request()
            await conn.send(response)

    return handle


def respond_and_wait(response: bytes) -> Handler:
    """Return a handler that answers one request and then waits for the client to disconnect."""

    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        await conn.send(response)
        await conn.wait_for_disconnect()

    return handle


async def always_ok(conn: ServerConnection) -> None:
    while True:
        await conn.read_request()
        await conn.send(OK)


async def drop_request(conn: ServerConnection) -> None:
    """Read one request and close the connection without a response."""
    await conn.read_request()


async def drop_second_request(conn: ServerConnection) -> None:
    """Answer one request, read the next and close the connection without a response."""
    await conn.read_request()
    await conn.send(OK)
    await conn.read_request()


@asynccontextmanager
async def run_server(*handlers: Handler, context: ssl.SSLContext | None = None) -> AsyncGenerator[FakeServer]:
    server = FakeServer(handlers)
    async with await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=context) as running:
        port = running.sockets[0].getsockname()[1]
        server.url = f"http{'s' if context else ''}://127.0.0.1:{port}/v1"
        yield server
        await asyncio.gather(*server.tasks)


@asynccontextmanager
async def open_client(
    url: str,
    *,
    keepalive_s: float = 15.0,
    reuse_retry_s: float = 10.0,
    network: NetworkSettings = DIRECT,
) -> AsyncGenerator[HttpClient]:
    client = HttpClient(
        url,
        {"Accept": "*/*"},
        connect_timeout_s=10,
        keepalive_s=keepalive_s,
        reuse_retry_s=reuse_retry_s,
        network=network,
    )
    try:
        yield client
    finally:
        await client.close()


class ObservedPieces(list[bytes]):
    """Pieces of a request that call `on_send` before each of them is sent.

    The client iterates twice: first it measures the request, then it sends it.
    """

    def __init__(self, pieces: Sequence[bytes], on_send: Callable[[bytes], None]) -> None:
        super().__init__(pieces)
        self._on_send = on_send
        self._measured = False

    def __iter__(self) -> Iterator[bytes]:
        measured, self._measured = self._measured, True
        for piece in super().__iter__():
            if measured:
                self._on_send(piece)
            yield piece


async def read_body(connection: Connection) -> bytes:
    pieces: list[bytes] = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


async def post(
    client: HttpClient, *pieces: bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    connection = await client.post(headers or {}, pieces or (b"{}",))
    try:
        return connection.response.status, await read_body(connection)
    finally:
        connection.release()


async def test_a_request_carries_its_path_host_headers_length_and_body():
    async with run_server(always_ok) as server, open_client(f"{server.url}/a b?c=d#e") as client:
        assert await post(client, b"gr", b"eetings", headers={"X-Key": "one"}) == (200, b"ok")
    host = server.url.split("/")[2]
    assert server.requests == [
        f"POST /v1/a%20b?c=d HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nX-Key: one\r\n"
        "Content-Length: 9\r\n\r\ngreetings".encode()
    ]


@pytest.mark.parametrize(
    ("url", "host", "port", "host_header"),
    [
        ("https://Example.com/v1", "example.com", 443, "example.com"),
        ("http://example.com:80/v1", "example.com", 80, "example.com"),
        ("https://example.com:8443/v1", "example.com", 8443, "example.com:8443"),
        ("http://[::1]:9/v1", "::1", 9, "[::1]:9"),
        ("http://[fe80::1%25eth0]/v1", "fe80::1%eth0", 80, "[fe80::1]"),
        ("http://grün.example/v1", "xn--grn-ioa.example", 80, "xn--grn-ioa.example"),
        ("http://model_server/v1", "model_server", 80, "model_server"),
        ("https://example.com./v1", "example.com.", 443, "example.com."),
    ],
)
def test_a_url_is_parsed_into_host_port_and_host_header(url: str, host: str, port: int, host_header: str):
    address = parse_server_url(url)
    assert (address.host, address.port, address.host_header, address.target) == (
        host,
        port,
        host_header,
        "/v1",
    )


@pytest.mark.parametrize(
    ("url", "certificate_name"),
    [
        ("https://example.com./v1", "example.com"),
        ("https://example.com/v1", "example.com"),
        ("https://[fe80::1%25eth0]/v1", "fe80::1"),
    ],
)
def test_the_expected_certificate_name_has_no_trailing_dot_and_no_ipv6_zone(url: str, certificate_name: str):
    assert parse_server_url(url).certificate_name == certificate_name


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x", "http://", "http://a..b", "http://a b", "http://x:y", "http://x:70000",
            "http://me:word@x", f"http://{'m' * 64}", "http://[zz]/", "http://x%20y/", "http://x/\udcff"],
)  # fmt: skip
def test_an_invalid_server_url_is_refused(url: str):
    with pytest.raises(InvalidServerUrl):
        parse_server_url(url)


async def test_the_most_recently_used_connection_is_reused():
    both_received = asyncio.Barrier(2)

    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        await both_received.wait()
        await conn.send(OK)
        await always_ok(conn)

    async with run_server(handle) as server, open_client(server.url) as client:
        first, second = await asyncio.gather(client.post({}, [b"1"]), client.post({}, [b"2"]))
        for connection in (first, second):
            await read_body(connection)
            connection.release()
        for _ in range(3):
            reused = await client.post({}, [b"3"])
            await read_body(reused)
            reused.release()
            assert reused is second
        assert server.connections == 2


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
    ],
    ids=["HTTP/1.0", "close", "close among other options", "excess bytes"],
)
async def test_a_connection_that_cannot_carry_another_response_is_closed(response: bytes):
    async with run_server(respond_and_wait(response)) as server, open_client(server.url) as client:
        for _ in range(2):
            assert await post(client) == (200, b"ok")
            await server.connection_closed.wait()
        assert server.connections == 2


async def test_unrequested_bytes_close_an_idle_connection():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        await conn.send(OK)
        await response_read.wait()
        await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await conn.wait_for_disconnect()

    response_read = asyncio.Event()
    async with run_server(handle, always_ok) as server, open_client(server.url) as client:
        assert await post(client) == (200, b"ok")
        response_read.set()
        await server.connection_closed.wait()
        assert await post(client) == (200, b"ok")
        assert server.connections == 2


async def test_unrequested_bytes_are_noticed_before_the_event_loop_has_read_them():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        await conn.send(OK)
        server_connections.append(conn)
        await conn.wait_for_disconnect()

    server_connections: list[ServerConnection] = []
    async with run_server(handle, always_ok) as server, open_client(server.url) as client:
        assert await post(client) == (200, b"ok")
        # Nothing yields to the event loop between this write and the next request.
        server_connections[0].writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert await post(client) == (200, b"ok")
        assert server.connections == 2


async def test_an_idle_connection_is_closed_after_the_keepalive_time():
    async with run_server(always_ok) as server, open_client(server.url, keepalive_s=0) as client:
        assert await post(client) == (200, b"ok")
        await server.connection_closed.wait()
        assert await post(client) == (200, b"ok")
        assert server.connections == 2


async def test_a_connection_closed_by_the_server_between_requests_is_replaced():
    async with run_server(respond_with(OK), always_ok) as server, open_client(server.url) as client:
        assert await post(client) == (200, b"ok")
        await server.connection_closed.wait()
        assert await post(client) == (200, b"ok")
        assert server.connections == 2


async def test_a_request_is_sent_again_when_its_reused_connection_closes_at_once():
    async with run_server(drop_second_request, respond_with(OK)) as server, open_client(server.url) as client:
        assert await post(client, b"first") == (200, b"ok")
        assert await post(client, b"second") == (200, b"ok")
        assert [request[-6:] for request in server.requests[1:]] == [b"second", b"second"]


async def test_a_request_is_not_sent_again_when_its_reused_connection_closes_after_the_retry_time():
    async with run_server(drop_second_request) as server, open_client(server.url, reuse_retry_s=0) as client:
        assert await post(client) == (200, b"ok")
        with pytest.raises(ResponseError, match="closed the connection before it responded"):
            await post(client)
        assert len(server.requests) == 2


async def test_a_failed_request_on_a_reused_connection_is_sent_again_only_once():
    async with run_server(drop_second_request, drop_request) as server, open_client(server.url) as client:
        assert await post(client) == (200, b"ok")
        with pytest.raises(ResponseError, match="closed the connection before it responded"):
            await post(client)
        assert len(server.requests) == 3


async def test_a_request_is_not_sent_again_once_its_response_has_begun():
    async with run_server(respond_with(OK, b"H")) as server, open_client(server.url) as client:
        assert await post(client) == (200, b"ok")
        with pytest.raises(ResponseError, match="closed the connection in the middle of its response"):
            await post(client)
        assert len(server.requests) == 2


async def test_a_request_on_a_new_connection_that_breaks_is_not_sent_again():
    async with run_server(drop_request) as server, open_client(server.url) as client:
        with pytest.raises(ResponseError, match="before it responded"):
            await post(client)
        assert len(server.requests) == 1


async def test_cancelling_a_request_closes_its_connection():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        request_received.set()
        await conn.wait_for_disconnect()

    request_received = asyncio.Event()
    async with run_server(handle) as server, open_client(server.url) as client:
        request = asyncio.ensure_future(post(client))
        await request_received.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await server.connection_closed.wait()


async def test_releasing_a_half_read_response_closes_its_connection():
    async with (
        run_server(respond_and_wait(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")) as server,
        open_client(server.url) as client,
    ):
        connection = await client.post({}, [b"{}"])
        assert await connection.read() == b"ha"
        connection.release()
        await server.connection_closed.wait()


async def test_closing_the_client_closes_idle_connections_and_fails_running_requests():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        request_received.set()
        await conn.wait_for_disconnect()

    request_received = asyncio.Event()
    async with run_server(always_ok, handle) as server, open_client(server.url) as client:
        completed = await client.post({}, [b"{}"])
        request = asyncio.ensure_future(post(client))
        await request_received.wait()
        assert await read_body(completed) == b"ok"
        completed.release()
        await client.close()
        with pytest.raises(ResponseError, match="before it responded"):
            await request
        assert (completed.is_closing, server.connections) == (True, 2)


async def test_a_response_cut_by_closing_the_client_is_an_error():
    async with (
        run_server(respond_and_wait(b"HTTP/1.1 200 OK\r\n\r\nha")) as server,
        open_client(server.url) as client,
    ):
        connection = await client.post({}, [b"{}"])
        assert await connection.read() == b"ha"
        await client.close()
        with pytest.raises(ResponseError, match="in the middle of its response"):
            await connection.read()
        connection.release()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
COMPLETE_RESPONSES: Mapping[str, tuple[bytes, int, bytes]] = {
    "content length": (OK, 200, b"ok"),
    "empty body": (HEAD + b"Content-Length: 0\r\n\r\n", 200, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified, with a length but no body": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        304,
        b"",
    ),
    "no reason phrase": (b"HTTP/1.1 404\r\ncontent-length:1\r\n\r\nx", 404, b"x"),
    "line feeds alone": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok"),
    "blank lines before": (b"\r\n\r\n" + OK, 200, b"ok"),
    "headers without a value": (HEAD + b"X:\r\nY: \r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "a body of line breaks": (HEAD + b"Content-Length: 4\r\n\r\n\r\n\r\n", 200, b"\r\n\r\n"),
    "interim responses": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "interim responses that close and have no body": (
        b"HTTP/1.0 100 Continue\r\nContent-Length: 0\r\n\r\n"
        b"HTTP/1.1 103 Early\r\nConnection: close\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "chunks": (CHUNKED + b"2\r\nok\r\n00A;a=b;c\r\n and\r\nmore\r\n0\r\n\r\n", 200, b"ok and\r\nmore"),
    "chunk sizes of many digits": (
        CHUNKED + b"%016x\r\nok\r\n%064x\r\n\r\n" % (2, 0),
        200,
        b"ok",
    ),
    "chunks with trailers": (
        HEAD + b"Transfer-Encoding: Chunked \r\n\r\n2 \r\nok\r\n0;x\r\nA: b\r\nConnection: close\r\n\r\n",
        200,
        b"ok",
    ),
    "chunks ended by line feeds alone": (CHUNKED + b"2\r\nok\n0\r\n\n", 200, b"ok"),
}
RESPONSES_UNTIL_CLOSE: Mapping[str, tuple[bytes, int, bytes]] = {
    "until close": (HEAD + b"\r\n" + b"ok and more", 200, b"ok and more"),
    "until close, with line breaks": (HEAD + b"\r\n" + b"ok\r\n\r\n", 200, b"ok\r\n\r\n"),
    "HTTP/1.0": (b"HTTP/1.0 500 Oh\r\nContent-Type: text/plain\r\n\r\nno", 500, b"no"),
}
SWITCHED_PROTOCOLS: Mapping[str, bytes] = {
    "with bytes": b"HTTP/1.1 101 Switching\r\n\r\nno",
    "without bytes": b"HTTP/1.1 101 Switching\r\n\r\n",
    "by its headers": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nno",
    "with a length": b"HTTP/1.1 101 Switching\r\nContent-Length: 2\r\n\r\nno",
    "with a second response": b"HTTP/1.1 101 Switching\r\n\r\n" + OK,
}
INVALID_RESPONSES: Mapping[str, tuple[bytes, str]] = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n\r\n", "did not send an HTTP response: 'SSH-2.0-OpenSSH_9'"),
    "RTSP": (
        b"RTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "did not send an HTTP response: 'RTSP/1.0 200 OK'",
    ),
    "ICE": (
        b"\r\nICE/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "did not send an HTTP response: 'ICE/1.0 200 OK'",
    ),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", "sent an invalid response: Expected dot"),
    "HTTP/2.0": (
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "sent an invalid response: HTTP/2.0 with status 200",
    ),
    "HTTP/0.9": (b"HTTP/0.9 200 OK\r\n\r\nok", "sent an invalid response: HTTP/0.9 with status 200"),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "sent an invalid response: Invalid status code"),
    "a status of two digits": (b"HTTP/1.1 20\r\n\r\n", "sent an invalid response: Invalid status code"),
    "a status below 100": (
        b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
        "sent an invalid response: HTTP/1.1 with status 099",
    ),
    "no header": (HEAD + b"nothing\r\n\r\n", "sent an invalid response: Invalid header token"),
    "no name": (HEAD + b": x\r\n\r\n", "sent an invalid response: Invalid header token"),
    "an endless head": (
        HEAD + b"X: y\r\n" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "a long head": (
        HEAD + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        "sent a response head of more than 65,536 bytes",
    ),
    "endless blank lines": (
        b"\r\n" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "endless interim responses": (
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        "sent a response head of more than 65,536 bytes",
    ),
    "no header after an interim response": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nnothing\r\n\r\n",
        "sent an invalid response: Invalid header token",
    ),
    "a long head after an interim response": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "a length that is no number": (
        HEAD + b"Content-Length: two\r\n\r\nok",
        "sent an invalid response: Invalid character in Content-Length",
    ),
    "a negative length": (
        HEAD + b"Content-Length: -2\r\n\r\nok",
        "sent an invalid response: Invalid character in Content-Length",
    ),
    "an empty length": (
        HEAD + b"Content-Length:\r\n\r\nok",
        "sent an invalid response: Empty Content-Length",
    ),
    "a huge length": (
        HEAD + b"Content-Length: 1000000000000000000\r\n\r\nok",
        "sent an invalid response: Content-Length '1000000000000000000'",
    ),
    "two lengths": (
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "sent an invalid response: Duplicate Content-Length",
    ),
    "two lengths in one header": (
        HEAD + b"Content-Length: 2, 3\r\n\r\nok",
        "sent an invalid response: Invalid character in Content-Length",
    ),
    "no chunk": (
        CHUNKED + b"0x2\r\nok\r\n",
        "sent an invalid response: Invalid character in chunk size",
    ),
    "a chunk without a size": (
        CHUNKED + b"\r\nok",
        "sent an invalid response: Invalid character in chunk size",
    ),
    "a negative chunk size": (
        CHUNKED + b"-2\r\nok\r\n",
        "sent an invalid response: Invalid character in chunk size",
    ),
    "a chunk longer than its size": (
        CHUNKED + b"2\r\nokay\r\n0\r\n\r\n",
        "sent an invalid response: Expected LF after chunk data",
    ),
    "a huge chunk size": (
        CHUNKED + b"1%016x\r\nok\r\n0\r\n\r\n" % 2,
        "sent an invalid response: Chunk size overflow",
    ),
    "a chunk that never arrives": (
        CHUNKED + b"1%015x\r\nok\r\n0\r\n\r\n" % 2,
        "closed the connection in the middle of its response",
    ),
    "an endless chunk size": (
        CHUNKED + b"0" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes of chunk sizes and trailers",
    ),
    "an endless chunk extension": (
        CHUNKED + b"2;" + b"x" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes of chunk sizes and trailers",
    ),
    "endless trailers": (
        CHUNKED + b"0\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes of chunk sizes and trailers",
    ),
    "an endless trailer": (
        CHUNKED + b"0\r\nX: " + b"y" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes of chunk sizes and trailers",
    ),
    "no trailer": (CHUNKED + b"0\r\nnothing\r\n\r\n", "sent an invalid response: Invalid header token"),
    "half a head": (HEAD + b"Content-Le", "closed the connection in the middle of its response"),
    "an interim response alone": (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        "closed the connection in the middle of its response",
    ),
    "half a body": (OK[:-1], "closed the connection in the middle of its response"),
    "half a chunk": (CHUNKED + b"3\r\nok", "closed the connection in the middle of its response"),
    "no last chunk": (CHUNKED + b"2\r\nok\r\n", "closed the connection in the middle of its response"),
    "half a last chunk": (
        CHUNKED + b"2\r\nok\r\n0\r\n",
        "closed the connection in the middle of its response",
    ),
}
NEWLY_REFUSED_RESPONSES: Mapping[str, tuple[bytes, str]] = {
    "a folded header": (
        HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        "Unexpected whitespace after header value",
    ),
    "a folded length": (
        HEAD + b"Content-Length:\r\n\t2\r\n\r\nok",
        "Invalid header value char",
    ),
    "the same length twice": (
        HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "Duplicate Content-Length",
    ),
    "chunks and a length": (
        HEAD + b"Content-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Transfer-Encoding can't be present with Content-Length",
    ),
    "a length after chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 99\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Content-Length can't be present with Transfer-Encoding",
    ),
    "a length as a trailer": (
        CHUNKED + b"2\r\nok\r\n0\r\nContent-Length: 2\r\n\r\n",
        "Content-Length can't be present with Transfer-Encoding",
    ),
    "another encoding before chunks": (
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Transfer-Encoding 'gzip, chunked'",
    ),
    "another encoding after chunks": (
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\nok",
        "Transfer-Encoding 'chunked, gzip'",
    ),
    "an encoding that ends like chunks": (
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Transfer-Encoding 'xchunked'",
    ),
    "chunks with a tab after them": (
        HEAD + b"Transfer-Encoding: chunked\t\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        r"Transfer-Encoding 'chunked\t'",
    ),
    "chunks twice": (
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Transfer-Encoding 'chunked, chunked'",
    ),
    "a NUL in a name": (HEAD + b"X\0Y: z\r\nContent-Length: 2\r\n\r\nok", "Invalid header token"),
    "a NUL after a name": (HEAD + b"Transfer-Encoding\0: chunked\r\n\r\n0\r\n\r\n", "Invalid header token"),
    "a space before a colon": (HEAD + b"Content-Length : 2\r\n\r\nok", "Invalid header field char"),
    "a control character": (HEAD + b"X: a\x01b\r\nContent-Length: 2\r\n\r\nok", "Invalid header value char"),
    "a carriage return alone": (
        HEAD + b"X: a\rb\r\nContent-Length: 2\r\n\r\nok",
        "Missing expected LF after header value",
    ),
    "HTTP/1.2": (b"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok", "Invalid HTTP version"),
    "a space in a name": (HEAD + b"X Y: z\r\nContent-Length: 2\r\n\r\nok", "Invalid header token"),
    "an empty encoding": (HEAD + b"Transfer-Encoding:\r\n\r\nok", "Empty Transfer-Encoding"),
    "spaces before a status": (b"HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok", "Invalid status code"),
    "an extension without a name": (
        CHUNKED + b"2;\r\nok\r\n0\r\n\r\n",
        "Invalid character in chunk extensions",
    ),
    "an interim response with a body": (
        b"HTTP/1.1 150 Wait\r\nContent-Length: 5\r\n\r\n" + OK,
        "interim status 150 with a body",
    ),
    "an interim response with chunks": (
        b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n" + OK,
        "interim status 100 with a body",
    ),
    "a chunk size ended by a line feed alone": (
        CHUNKED + b"2\nok\r\n0\r\n\r\n",
        "Expected LF after chunk size",
    ),
}


@pytest.mark.parametrize(
    ("response", "status", "body"), [*COMPLETE_RESPONSES.values()], ids=[*COMPLETE_RESPONSES]
)
async def test_a_complete_response_is_read_and_its_connection_reused(
    response: bytes, status: int, body: bytes
):
    async with run_server(respond_with(response, OK)) as server, open_client(server.url) as client:
        assert await post(client) == (status, body)
        assert await post(client) == (200, b"ok")
        assert server.connections == 1


@pytest.mark.parametrize(
    ("response", "status", "body"), [*RESPONSES_UNTIL_CLOSE.values()], ids=[*RESPONSES_UNTIL_CLOSE]
)
async def test_a_response_without_a_length_ends_when_the_server_closes_the_connection(
    response: bytes, status: int, body: bytes
):
    async with run_server(respond_with(response)) as server, open_client(server.url) as client:
        assert await post(client) == (status, body)
        assert await post(client) == (status, body)
        assert server.connections == 2


@pytest.mark.parametrize(("response", "message"), [*INVALID_RESPONSES.values()], ids=[*INVALID_RESPONSES])
async def test_an_invalid_or_incomplete_response_is_an_error(response: bytes, message: str):
    async with run_server(respond_with(response)) as server, open_client(server.url) as client:
        with pytest.raises(ResponseError, match=re.escape(message)):
            await post(client)


@pytest.mark.parametrize(
    ("response", "message"), [*NEWLY_REFUSED_RESPONSES.values()], ids=[*NEWLY_REFUSED_RESPONSES]
)
async def test_a_malformed_response_that_the_former_parser_accepted_is_refused(response: bytes, message: str):
    """See ADR 0043."""
    async with run_server(respond_with(response)) as server, open_client(server.url) as client:
        with pytest.raises(ResponseError, match=re.escape(f"sent an invalid response: {message}")):
            await post(client)


@pytest.mark.parametrize("response", [*SWITCHED_PROTOCOLS.values()], ids=[*SWITCHED_PROTOCOLS])
async def test_a_switch_of_protocol_has_no_body_and_closes_the_connection(response: bytes):
    """See ADR 0043. The parser before httptools read the bytes of the other protocol as a body."""

    async with run_server(respond_and_wait(response)) as server, open_client(server.url) as client:
        assert await post(client) == (101, b"")
        assert await post(client) == (101, b"")
        assert server.connections == 2


@pytest.mark.parametrize(
    "excess", [b"x", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b"HTTP/1.1 200 OK", OK, OK + b"\r\n"]
)
@pytest.mark.parametrize(
    "response",
    [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"HTTP/1.1 204 No\r\n\r\n"],
    ids=["length", "chunks", "none"],
)
def test_a_connection_with_bytes_after_the_response_is_never_reused(response: bytes, excess: bytes):
    whole = parse_response([response])
    assert isinstance(whole, tuple)
    assert whole[-1] is True
    for cut in range(len(response) - 4, len(response + excess)):
        assert parse_response([(response + excess)[:cut], (response + excess)[cut:]]) == (*whole[:-1], False)


def test_the_size_limit_of_a_response_head_does_not_depend_on_how_it_is_cut():
    for before in (b"", b"\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"):
        frame = before + HEAD + b"Content-Length: 2\r\nX: \r\n\r\n"
        for length, fits in ((MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)):
            response = frame.replace(b"X: ", b"X: " + b"y" * (length - len(frame))) + b"ok"
            for size in (len(response), 1_000, MAX_HEAD_BYTES, MAX_HEAD_BYTES - 1, length - 1):
                pieces = [response[at : at + size] for at in range(0, len(response), size)]
                assert isinstance(parse_response(pieces), tuple) is fits


@pytest.mark.parametrize(
    "pieces", [[OK], [OK[:-1]], [OK, b"excess"], [b"HTTP/1.1 nothing"], [b""], []],
    ids=["whole", "cut", "with excess", "invalid", "empty", "unused"],
)  # fmt: skip
def test_parsing_a_response_leaves_no_reference_cycle(pieces: Sequence[bytes]):
    gc.collect()
    gc.disable()
    try:
        parse_response(pieces)
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_an_interim_response_is_never_taken_for_the_final_response():
    response = INVALID_RESPONSES["no header after an interim response"][0]
    async with run_server(respond_with(response)) as server, open_client(server.url) as client:
        with pytest.raises(ResponseError, match="Invalid header token"):
            await client.post({}, [b"{}"])


async def test_bytes_received_before_the_connection_broke_are_read_before_the_error():
    async with run_server(respond_with(OK[:-1])) as server, open_client(server.url) as client:
        connection = await client.post({}, [b"{}"])
        await server.connection_closed.wait()
        assert await connection.read() == b"o"
        with pytest.raises(ResponseError):
            await connection.read()
        connection.release()


def parse_response(pieces: Sequence[bytes]) -> object:
    """Return every parsed part of the response, or the start of the error message."""
    response = ResponseParser()
    try:
        for piece in pieces:
            response.feed(piece)
        response.close(orderly=True)
    except ResponseError as error:
        return str(error).partition(":")[0]
    return (
        response.status,
        response.reason,
        response.headers,
        b"".join(response.pieces),
        response.is_complete,
        response.keep_alive,
    )


RESPONSES_TO_CUT = [
    *(response for response, _, _ in (*COMPLETE_RESPONSES.values(), *RESPONSES_UNTIL_CLOSE.values())),
    *(
        response
        for response, _ in (*INVALID_RESPONSES.values(), *NEWLY_REFUSED_RESPONSES.values())
        if len(response) < 1_000
    ),
    *SWITCHED_PROTOCOLS.values(),
    OK + b"excess",
    OK + b"\r\n",
    OK + OK,
]


@given(st.data())
def test_a_response_parses_the_same_however_it_is_cut_into_pieces(data: st.DataObject):
    response = data.draw(st.sampled_from(RESPONSES_TO_CUT))
    cuts = sorted({0, len(response), *data.draw(st.lists(st.integers(1, len(response)), max_size=8))})
    whole = parse_response([response])
    assert parse_response([response[a:b] for a, b in pairwise(cuts)]) == whole
    assert parse_response([bytes([each]) for each in response]) == whole


async def test_a_long_request_arrives_whole():
    body = bytes(range(256)) * 80_000
    async with run_server(always_ok) as server, open_client(server.url) as client:
        assert await post(client, body[:100], body[100:]) == (200, b"ok")
        assert server.requests[0].endswith(body)
        assert await post(client) == (200, b"ok")
        assert server.connections == 1


async def test_the_event_loop_runs_between_the_pieces_of_a_long_request():
    loop_count = 0

    async def count_loop_turns() -> None:
        nonlocal loop_count
        while True:
            loop_count += 1
            await asyncio.sleep(0)

    loop_counts: list[int] = []
    pieces = ObservedPieces([b"x" * PIECE_BYTES] * 10, lambda _: loop_counts.append(loop_count))
    async with run_server(always_ok) as server, open_client(server.url) as client:
        counter = asyncio.ensure_future(count_loop_turns())
        connection = await client.post({}, pieces)
        assert await read_body(connection) == b"ok"
        connection.release()
        counter.cancel()
    assert len(loop_counts) == len({*loop_counts}) == 10


async def test_progress_is_reported_only_while_a_long_request_is_being_sent():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_head()
        await reading.wait()
        await conn.reader.readexactly(80 * PIECE_BYTES)
        await conn.send(OK)

    reading = asyncio.Event()
    progress: list[bool] = []
    async with run_server(handle) as server, open_client(server.url) as client:
        request = asyncio.ensure_future(
            client.post({}, [b"x" * PIECE_BYTES] * 80, lambda: progress.append(True))
        )
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert len(progress) < 80
        reading.set()
        connection = await request
        assert await read_body(connection) == b"ok"
        connection.release()
        assert len(progress) >= 80


async def test_interim_responses_count_as_progress():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        for _ in range(3):
            await conn.send(b"HTTP/1.1 102 Processing\r\n\r\n")
            await progress.wait()
            progress.clear()
        await conn.send(OK)

    progress = asyncio.Event()
    async with run_server(handle) as server, open_client(server.url) as client:
        connection = await client.post({}, [b"{}"], progress.set)
        assert await read_body(connection) == b"ok"
        connection.release()


async def test_a_streaming_request_reports_progress_as_a_keepalive_delta():
    async def handle(conn: ServerConnection) -> None:
        await conn.read_request()
        await conn.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        await progress_reported.wait()
        await conn.send(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    def on_delta(delta: ReplyDelta) -> None:
        if delta is KEEPALIVE:
            progress_reported.set()

    progress_reported = asyncio.Event()
    async with run_server(handle) as server:
        request = StreamingRequest(url=server.url, key_variable="SOME_KEY", network=DIRECT)
        with pytest.raises(ProviderError, match="HTTP 500"):
            await request.stream({}, [b"{}"], UnusedReplyReader(), on_delta, "")
        await request.close()


@pytest.mark.parametrize("body", [b"x" * 20_000_000, b"x" * 200_000, b"x"], ids=["20 MB", "200 kB", "1 byte"])
async def test_an_error_response_sent_before_the_request_was_read_is_received(body: bytes):
    async def refuse_request(conn: ServerConnection) -> None:
        await conn.read_head()
        await conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong")

    async with run_server(refuse_request) as server, open_client(server.url) as client:
        for _ in range(20):
            assert await post(client, body) == (413, b"long")


async def test_a_response_is_read_even_when_the_server_resets_the_connection_while_the_request_is_sent():
    def refuse_request() -> None:
        with listener, listener.accept()[0] as accepted:
            accepted.recv(65_536)
            accepted.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    listener = socket.create_server(("127.0.0.1", 0))
    server_thread = threading.Thread(target=refuse_request)
    server_thread.start()
    pieces = ObservedPieces(
        [b"x", b"y" * 100_000], lambda piece: None if piece == b"x" else server_thread.join()
    )
    async with open_client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        connection = await client.post({}, pieces)
        assert (connection.response.status, await read_body(connection)) == (413, b"long")
        connection.release()


async def test_a_connection_with_a_half_sent_request_is_closed():
    async def refuse_request(conn: ServerConnection) -> None:
        await conn.read_head()
        await conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong")
        await conn.wait_for_disconnect()

    async with run_server(refuse_request) as server, open_client(server.url) as client:
        assert await post(client, b"x" * 20_000_000) == (413, b"long")
        assert await post(client, b"x" * 20_000_000) == (413, b"long")
        assert server.connections == 2


@pytest.mark.parametrize("announces_close", [True, False], ids=["Connection: close", "end of file"])
async def test_a_response_is_received_from_a_server_that_stopped_reading_the_request(
    *, announces_close: bool
):
    async def handle(conn: ServerConnection) -> None:
        await conn.read_head()
        for _ in range(1_000):  # until the client can send no more
            await asyncio.sleep(0)
        await conn.send(
            b"HTTP/1.1 200 OK\r\n"
            + (b"Content-Length: 2\r\nConnection: close\r\n" if announces_close else b"")
        )
        await conn.send(b"\r\nok")
        if not announces_close:
            conn.writer.write_eof()
        await response_read.wait()

    response_read = asyncio.Event()
    async with run_server(handle) as server, open_client(server.url) as client:
        assert await post(client, b"x" * 20_000_000) == (200, b"ok")
        response_read.set()


async def test_a_server_that_answers_early_still_receives_the_whole_request():
    async def handle(conn: ServerConnection) -> None:
        head = await conn.read_head()
        await conn.send(OK)
        await conn.reader.readexactly(content_length(head))
        request_received.set()
        await always_ok(conn)

    request_received = asyncio.Event()
    async with run_server(handle) as server, open_client(server.url) as client:
        assert await post(client, b"x" * 20_000_000) == (200, b"ok")
        await request_received.wait()
        assert await post(client) == (200, b"ok")
        assert server.connections == 1


async def test_an_unread_response_body_pauses_the_server():
    size = 40_000_000

    async def send_body(conn: ServerConnection) -> None:
        await conn.read_request()
        await conn.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(40):
            await conn.send(b"x" * 1_000_000)
        body_sent.set()
        await always_ok(conn)

    body_sent = asyncio.Event()
    async with run_server(send_body) as server, open_client(server.url) as client:
        connection = await client.post({}, [b"{}"])
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert connection.reading_paused
        assert not body_sent.is_set()
        assert sum(map(len, connection.response.pieces)) < 4 * MAX_UNREAD_BYTES
        assert len(await read_body(connection)) == size
        connection.release()
        assert await post(client) == (200, b"ok")
        assert server.connections == 1


async def test_a_refused_connection_is_reported_as_unreachable():
    async with run_server(always_ok) as server:
        pass
    async with open_client(server.url) as client:
        with pytest.raises(Unreachable, match="Connection refused"):
            await post(client)


def test_os_errors_are_described_in_words():
    assert (
        describe_os_error(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        == "Name or service not known"
    )
    assert (
        describe_os_error(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"))
        == "Connection refused"
    )
    assert (
        describe_os_error(ConnectionResetError()) == "TLS handshake failed: the server closed the connection"
    )
    assert (
        describe_os_error(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"
    )


async def test_a_host_name_is_resolved_and_the_first_address_that_accepts_is_used():
    async with run_server(always_ok) as server:
        async with open_client(server.url.replace("127.0.0.1", "localhost")) as client:
            responses = await asyncio.gather(*(post(client) for _ in range(20)))
        assert responses == [(200, b"ok")] * 20
        port = int(server.url.split(":")[2].partition("/")[0])
        closed_port: SocketAddress = (socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", 1))
        open_port: SocketAddress = (socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", port))
        with await connect_first([closed_port, closed_port, open_port, closed_port]) as connected:
            assert connected.getpeername() == ("127.0.0.1", port)
        with pytest.raises(OSError, match=r"^Connection refused$"):
            await connect_first([closed_port, closed_port])


async def test_a_tls_handshake_without_an_answer_times_out(tmp_path: Path):
    async with run_server(ServerConnection.wait_for_disconnect) as server:
        client = HttpClient(server.url.replace("http:", "https:"), {}, connect_timeout_s=0.05)
        with pytest.raises(Unreachable, match=r"no connection within 0\.05 s"):
            await post(client)
        await client.close()


async def test_a_server_without_tls_is_reported_as_unreachable():
    async def send_plain_text(conn: ServerConnection) -> None:
        await conn.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await conn.wait_for_disconnect()

    async with (
        run_server(send_plain_text) as server,
        open_client(server.url.replace("http:", "https:")) as client,
    ):
        with pytest.raises(Unreachable, match="TLS handshake failed: wrong version number"):
            await post(client)


async def test_a_server_that_closes_during_the_tls_handshake_is_reported_as_unreachable():
    async def hang_up(conn: ServerConnection) -> None:
        await conn.reader.read(1)

    async with run_server(hang_up) as server, open_client(server.url.replace("http:", "https:")) as client:
        with pytest.raises(Unreachable, match="TLS handshake failed: the server closed the connection"):
            await post(client)


def make_tls_server(folder: Path, *names: str) -> tuple[ssl.SSLContext, NetworkSettings]:
    """Return the server's context, and network settings that trust the server."""
    issued = create_certificate(folder, *names)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(issued.file)
    return server, network_settings({"SSL_CERT_FILE": str(issued.file)})


async def test_requests_are_sent_over_tls_to_a_trusted_server(tmp_path: Path):
    context, network = make_tls_server(tmp_path, "localhost")
    requested_names: list[str | None] = []
    context.sni_callback = lambda _, name, __: requested_names.append(name)
    async with run_server(always_ok, context=context) as server:
        async with open_client(server.url.replace("127.0.0.1", "localhost"), network=network) as client:
            assert await post(client) == (200, b"ok")
            assert await post(client, b"x" * 5_000_000) == (200, b"ok")
        assert (server.connections, requested_names) == (1, ["localhost"])


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path):
    context, network = make_tls_server(tmp_path, "elsewhere.example")
    async with run_server(always_ok, context=context) as server:
        async with open_client(server.url.replace("127.0.0.1", "localhost"), network=network) as client:
            with pytest.raises(Unreachable, match="its certificate is not trusted: Hostname mismatch"):
                await post(client)
        assert server.requests == []


class UnusedReplyReader:
    """A reply reader that fails if it is given any bytes."""

    has_stop_reason = False
    is_done = False

    def read_events(self, events: Sequence[bytes]) -> None:
        raise AssertionError(events)

    def read_document(self, data: bytes) -> None:
        raise AssertionError(data)


async def catch_post_error(url: str, key: str = "a-secret") -> ProviderError:
    request = StreamingRequest(url=url, key_variable="SOME_KEY", network=DIRECT)
    with pytest.raises(ProviderError) as error_info:
        await request.stream({}, [b"{}"], UnusedReplyReader(), ignore_delta, key)
    await request.close()
    return error_info.value


def ignore_delta(_: ReplyDelta) -> None:
    return


async def test_an_untrusted_certificate_is_a_provider_error(tmp_path: Path):
    context, _ = make_tls_server(tmp_path, "localhost")
    async with run_server(always_ok, context=context) as server:
        failure = await catch_post_error(server.url)
        assert (failure.reason, failure.retry, server.requests) == ("config", False, [])
        assert str(failure) == (
            f"cannot reach {server.url}: its certificate is not trusted: self-signed certificate. "
            "If you trust it, set SSL_CERT_FILE to a file with the certificate of its issuer"
        )


@pytest.mark.parametrize(
    ("response", "reason", "message"),
    [
        (
            b"HTTP/1.1 401 No\r\nContent-Length: 9\r\n\r\nhalf",
            "auth",
            "rejected the API key (HTTP 401). Check SOME_KEY",
        ),
        (b"", "incomplete", "closed the connection before it responded"),
        (b"a-secret\r\n\r\n", "incomplete", "did not send an HTTP response: '[key]'"),
        (
            b"HTTP/1.1 400 Bad\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
            "provider",
            "answered HTTP 400: Bad",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
            "provider",
            "sent a compressed response (gzip), which was not requested",
        ),
        (
            b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n",
            "provider",
            "answered HTTP 503: no reason given",
        ),
    ],
    ids=[
        "half an error",
        "empty",
        "no HTTP",
        "a compressed error",
        "compressed",
        "an error without a reason",
    ],
)
async def test_a_wrong_response_is_a_provider_error_with_its_cause(
    response: bytes, reason: str, message: str
):
    async with run_server(respond_with(response)) as server:
        failure = await catch_post_error(server.url)
    assert (failure.reason, str(failure)) == (reason, f"{server.url} {message}")


@pytest.mark.parametrize(
    ("response", "reason", "gate", "seconds", "message"),
    [
        (b"401 No\r\n\r\n{}", "auth", False, None, "rejected the API key (HTTP 401). Check SOME_KEY"),
        (
            b"429 Busy\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n",
            "rate_limited",
            True,
            7.0,
            "answered HTTP 429: Busy",
        ),
        (
            b'400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n16\r\n{"message":"too long"}\r\n',
            "provider",
            False,
            None,
            "answered HTTP 400: too long",
        ),
    ],
    ids=["no length", "length too long", "no last chunk"],
)
async def test_an_error_status_counts_even_when_the_body_is_incomplete(
    response: bytes, reason: str, gate: bool, seconds: float | None, message: str
):
    """Shows: M01."""

    async with run_server(respond_and_wait(b"HTTP/1.1 " + response)) as server:
        failure = await catch_post_error(server.url)
    assert (failure.reason, failure.close_rate_limit_gate, failure.retry_after.seconds) == (
        reason,
        gate,
        seconds,
    )
    assert str(failure) == f"{server.url} {message}"


async def test_a_very_short_key_is_not_redacted_in_an_error_message():
    async with run_server(
        respond_with(b"HTTP/1.1 400 Bad\r\nContent-Length: 17\r\n\r\nthe lock is stuck")
    ) as server:
        assert (
            str(await catch_post_error(server.url, "k"))
            == f"{server.url} answered HTTP 400: the lock is stuck"
        )
        assert (
            str(await catch_post_error(server.url, "the lock"))
            == f"{server.url} answered HTTP 400: [key] is stuck"
        )
