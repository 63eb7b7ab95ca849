"""Limits per connection: a client that sends too much, too slowly, or reads nothing is cut off, and no other client notices."""

import asyncio
import socket
import time
from typing import Any

import pytest
from daemon_fixture import DaemonClient, OpenServer
from starlette.responses import Response

from retinue.domain.api_permission import ApiPermission
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.context import ServerContext
from retinue.server.listeners import open_tcp_socket
from retinue.server.routing import ApiRequest, Route, RouteHandler

JSON = "Content-Type: application/json"
MEGABYTES = 64


async def small_response(_context: ServerContext, _request: ApiRequest[Any, Any]) -> dict[str, Any]:
    return {"well": True}


async def large_response(_context: ServerContext, _request: ApiRequest[Any, Any]) -> Response:
    return Response(bytes(MEGABYTES << 20))


async def failing_handler(_context: ServerContext, _request: ApiRequest[Any, Any]) -> dict[str, Any]:
    secret = "sk-" + "x7" * 20
    raise RuntimeError(f"the inside of the server, {secret}")


def make_route(handler: RouteHandler, path: str = "/api/small", method: str = "GET") -> Route:
    return Route(method=method, path=path, right=ApiPermission.READ, handler=handler, summary="For a test.")


SMALL_ROUTE, PUT_ROUTE = make_route(small_response), make_route(small_response, method="PUT")
LARGE_ROUTE, BROKEN_ROUTE = (
    make_route(large_response, "/api/large"),
    make_route(failing_handler, "/api/broken"),
)


def request_head(client: DaemonClient, path: str = "/api/small", headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {client.host}\r\nAuthorization: Bearer {client.token}\r\n{headers}\r\n".encode()


def read_until_closed(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(1 << 16):
        received += chunk
    return received


def drip_until_closed(connection: socket.socket, piece: bytes) -> bytes:
    """Send a small piece again and again until the daemon closes, and return what it sent."""
    received = b""
    while True:
        try:
            connection.sendall(piece)
            connection.settimeout(0.02)
            received += (chunk := connection.recv(1 << 16))
        except TimeoutError:
            continue
        except OSError:
            return received
        if not chunk:
            return received


@pytest.mark.parametrize("transport", ["port", "socket"])
async def test_headers_sent_byte_by_byte_time_out(open_server: OpenServer, transport: str):
    """Shows: A10."""
    async with open_server(SMALL_ROUTE, limits=ConnectionLimits(head_seconds=0.3)) as client:
        with client.connect(transport) as connection:
            connection.sendall(b"GET /api/small HTTP/1.1\r\n")
            response = await asyncio.to_thread(drip_until_closed, connection, b"x")
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b'"request_timeout"' in response
        with client.connect(transport) as silent:
            assert await asyncio.to_thread(read_until_closed, silent) == b""
        with client.connect(transport) as blank:
            assert b" 200 " not in await asyncio.to_thread(drip_until_closed, blank, b"\r\n")


async def test_a_body_sent_byte_by_byte_times_out(open_server: OpenServer):
    """Shows: A10."""
    async with open_server(PUT_ROUTE, limits=ConnectionLimits(body_seconds=0.3)) as client:
        for header in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
            head = request_head(client, headers=f"{JSON}\r\n{header}\r\n").replace(b"GET", b"PUT", 1)
            with client.connect() as connection:
                connection.sendall(head)
                response = await asyncio.to_thread(drip_until_closed, connection, b"1\r\n \r\n")
            assert response.startswith(b"HTTP/1.1 408 "), response
            assert b'"request_timeout"' in response


async def test_an_idle_keep_alive_connection_is_closed_even_if_it_sends_blank_lines(open_server: OpenServer):
    async with open_server(SMALL_ROUTE, limits=ConnectionLimits(head_seconds=0.3)) as client:
        with client.connect() as connection:
            first = await asyncio.to_thread(
                client.request, "GET", "/api/small", token=client.token, connection=connection
            )
            assert first.status == 200
            second = await asyncio.to_thread(
                client.request, "GET", "/api/small", token=client.token, connection=connection
            )
            assert second.json == {"well": True}
            last = await asyncio.to_thread(drip_until_closed, connection, b"\r\n")
            assert last.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("raw_request", "status"),
    [
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"x" * 5_000_000, 414),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1_000_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 5_000_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x" * 5_000_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n", 431),
        (b"\r\n" * 1_000_000, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx\x00: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: y\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding\x00: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else str(value),
)
@pytest.mark.parametrize("transport", ["port", "socket"])
def test_an_oversized_or_malformed_request_gets_one_error_and_the_connection_is_closed(
    client: DaemonClient, raw_request: bytes, status: int, transport: str
):
    """Shows: A10."""
    response = client.send_raw(raw_request, transport=transport)
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head[:200]
    assert b"connection: close" in head
    assert b"frame-ancestors 'none'" in head
    assert body.startswith(b'{"error": {"code": ')


def test_a_pipelined_request_is_not_processed(client: DaemonClient):
    """So a client cannot hide a request behind another one, nor mix up their responses."""
    response = client.send_raw(request_head(client, "/api/health") * 3)
    assert response.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in response


async def test_a_malformed_chunk_ends_the_request_at_once(open_server: OpenServer):
    async with open_server(PUT_ROUTE) as client:
        head = request_head(client, headers=f"{JSON}\r\nTransfer-Encoding: chunked\r\n").replace(
            b"GET", b"PUT", 1
        )
        response = await asyncio.to_thread(client.send_raw, head, b"2\r\n{}\r\nnonsense\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 400 ")
        assert response.count(b"HTTP/1.1 ") == 1


async def test_at_the_connection_limit_idle_connections_are_closed_and_busy_ones_are_kept(
    open_server: OpenServer,
):
    """Shows: A10."""
    arrived = asyncio.Semaphore(0)

    async def never_respond(_context: ServerContext, _request: ApiRequest[Any, Any]) -> dict[str, Any]:
        arrived.release()
        await asyncio.Event().wait()
        return {}

    async with open_server(
        SMALL_ROUTE, make_route(never_respond, "/api/endless"), limits=ConnectionLimits(max_connections=2)
    ) as client:
        with client.connect() as first, client.connect() as second:
            assert (await asyncio.to_thread(client.request_as_owner, "GET", "/api/small")).status == 200
            assert await asyncio.to_thread(first.recv, 1) == b""
            second.close()
        with client.connect() as first, client.connect() as second:
            for connection in (first, second):
                connection.sendall(request_head(client, "/api/endless"))
                await arrived.acquire()
            refused = await asyncio.to_thread(client.request_as_owner, "GET", "/api/small")
            assert (refused.status, refused.code) == (503, "busy")
            over_socket = await asyncio.to_thread(client.request, "GET", "/api/small", transport="socket")
            assert over_socket.status == 200, "connections to the port must not lock out the command line"


async def test_a_client_that_reads_nothing_is_cut_off_and_a_slow_reader_is_not(open_server: OpenServer):
    """Shows: A10."""

    def read_slowly(connection: socket.socket) -> int:
        count = 0
        while chunk := connection.recv(1 << 20):
            count += len(chunk)
            time.sleep(0.02)
        return count

    async with open_server(LARGE_ROUTE, limits=ConnectionLimits(stall_seconds=1.0)) as client:
        with client.connect() as reading, client.connect() as stalled:
            stalled.sendall(request_head(client, "/api/large"))
            reading.sendall(request_head(client, "/api/large", "Connection: close\r\n"))
            assert await asyncio.to_thread(read_slowly, reading) > MEGABYTES << 20
            assert await asyncio.to_thread(read_slowly, stalled) < MEGABYTES << 20


async def test_an_unexpected_exception_is_logged_and_answered_without_details(open_server: OpenServer):
    async with open_server(BROKEN_ROUTE, SMALL_ROUTE) as client:
        response = await asyncio.to_thread(client.request_as_owner, "GET", "/api/broken")
        assert (response.status, response.code) == (500, "internal_error")
        assert not [
            detail for detail in (b"inside", b"Traceback", b"RuntimeError", b".py") if detail in response.body
        ]
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert (await asyncio.to_thread(client.request_as_owner, "GET", "/api/small")).status == 200
        log = (client.home / "logs" / "retinue.jsonl").read_text()
    assert "RuntimeError: the inside of the server" in log
    assert "GET /api/broken" in log
    assert "sk-x7x7" not in log


def test_the_listening_socket_has_the_tcp_protocol_number():
    """Only then does asyncio set TCP_NODELAY, without which a small response arrives 40 ms late."""
    with open_tcp_socket("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
