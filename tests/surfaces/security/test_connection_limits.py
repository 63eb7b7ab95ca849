"""One connection: who says too much, too slowly, or reads nothing, is cut off, and nobody else notices."""

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


async def small(_house: ServerContext, _wish: ApiRequest[Any, Any]) -> dict[str, Any]:
    return {"well": True}


async def large(_house: ServerContext, _wish: ApiRequest[Any, Any]) -> Response:
    return Response(bytes(MEGABYTES << 20))


async def broken(_house: ServerContext, _wish: ApiRequest[Any, Any]) -> dict[str, Any]:
    planted = "sk-" + "x7" * 20
    raise RuntimeError(f"the inside of the house, {planted}")


def route(does: RouteHandler, path: str = "/api/small", method: str = "GET") -> Route:
    return Route(method=method, path=path, right=ApiPermission.READ, handler=does, summary="For a test.")


SMALL, PUT = route(small), route(small, method="PUT")
LARGE, BROKEN = route(large, "/api/large"), route(broken, "/api/broken")


def asking(door: DaemonClient, path: str = "/api/small", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {door.host}\r\nAuthorization: Bearer {door.token}\r\n{more}\r\n".encode()


def heard(line: socket.socket) -> bytes:
    """Until the daemon closes."""
    found = b""
    while piece := line.recv(1 << 16):
        found += piece
    return found


def dripped(line: socket.socket, piece: bytes) -> bytes:
    """Says a little again and again until the daemon closes, and what it said then."""
    found = b""
    while True:
        try:
            line.sendall(piece)
            line.settimeout(0.02)
            found += (heard_now := line.recv(1 << 16))
        except TimeoutError:
            continue
        except OSError:
            return found
        if not heard_now:
            return found


@pytest.mark.parametrize("way", ["port", "socket"])
async def test_headers_that_come_letter_by_letter_are_not_waited_for(open_server: OpenServer, way: str):
    """Shows: A10."""
    async with open_server(SMALL, limits=ConnectionLimits(head_seconds=0.3)) as door:
        with door.connect(way) as line:
            line.sendall(b"GET /api/small HTTP/1.1\r\n")
            answer = await asyncio.to_thread(dripped, line, b"x")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"request_timeout"' in answer
        with door.connect(way) as silent:
            assert await asyncio.to_thread(heard, silent) == b""
        with door.connect(way) as blank:
            assert b" 200 " not in await asyncio.to_thread(dripped, blank, b"\r\n")


async def test_a_body_that_comes_letter_by_letter_is_not_waited_for(open_server: OpenServer):
    """Shows: A10."""
    async with open_server(PUT, limits=ConnectionLimits(body_seconds=0.3)) as door:
        for announced in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
            head = asking(door, more=f"{JSON}\r\n{announced}\r\n").replace(b"GET", b"PUT", 1)
            with door.connect() as line:
                line.sendall(head)
                answer = await asyncio.to_thread(dripped, line, b"1\r\n \r\n")
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b'"request_timeout"' in answer


async def test_a_connection_that_is_kept_and_says_nothing_more_is_closed(open_server: OpenServer):
    """Blank lines between requests keep nobody here either."""
    async with open_server(SMALL, limits=ConnectionLimits(head_seconds=0.3)) as door:
        with door.connect() as line:
            first = await asyncio.to_thread(
                door.request, "GET", "/api/small", token=door.token, connection=line
            )
            assert first.status == 200
            again = await asyncio.to_thread(
                door.request, "GET", "/api/small", token=door.token, connection=line
            )
            assert again.json == {"well": True}
            late = await asyncio.to_thread(dripped, line, b"\r\n")
            assert late.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("said", "status"),
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
    ],
    ids=lambda said: repr(said[:24]) if isinstance(said, bytes) else str(said),
)
@pytest.mark.parametrize("way", ["port", "socket"])
def test_what_is_too_much_or_no_http_gets_one_answer_and_an_end(
    client: DaemonClient, said: bytes, status: int, way: str
):
    """Shows: A10."""
    answer = client.send_raw(said, transport=way)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head[:200]
    assert b"connection: close" in head
    assert b"frame-ancestors 'none'" in head
    assert body.startswith(b'{"error": {"code": ')


def test_a_second_request_before_the_first_is_answered_is_not_heard(client: DaemonClient):
    """So nothing can be hidden behind another request, and no answer be taken for another's."""
    answer = client.send_raw(asking(client, "/api/health") * 3)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer


async def test_broken_chunks_end_the_request_at_once(open_server: OpenServer):
    async with open_server(PUT) as door:
        head = asking(door, more=f"{JSON}\r\nTransfer-Encoding: chunked\r\n").replace(b"GET", b"PUT", 1)
        answer = await asyncio.to_thread(door.send_raw, head, b"2\r\n{}\r\nnonsense\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_whoever_is_silent_gives_way_and_whoever_is_answered_does_not(open_server: OpenServer):
    """Shows: A10."""
    arrived = asyncio.Semaphore(0)

    async def endless(_house: ServerContext, _wish: ApiRequest[Any, Any]) -> dict[str, Any]:
        arrived.release()
        await asyncio.Event().wait()
        return {}

    async with open_server(
        SMALL, route(endless, "/api/endless"), limits=ConnectionLimits(max_connections=2)
    ) as door:
        with door.connect() as first, door.connect() as second:
            assert (await asyncio.to_thread(door.request_as_owner, "GET", "/api/small")).status == 200
            assert await asyncio.to_thread(first.recv, 1) == b""
            second.close()
        with door.connect() as first, door.connect() as second:
            for line in (first, second):
                line.sendall(asking(door, "/api/endless"))
                await arrived.acquire()
            full = await asyncio.to_thread(door.request_as_owner, "GET", "/api/small")
            assert (full.status, full.code) == (503, "busy")
            local = await asyncio.to_thread(door.request, "GET", "/api/small", transport="socket")
            assert local.status == 200, "a crowd before the page keeps the command line out"


async def test_whoever_reads_nothing_is_cut_off_and_whoever_reads_slowly_is_not(open_server: OpenServer):
    """Shows: A10."""

    def slowly(line: socket.socket) -> int:
        count = 0
        while piece := line.recv(1 << 20):
            count += len(piece)
            time.sleep(0.02)
        return count

    async with open_server(LARGE, limits=ConnectionLimits(stall_seconds=1.0)) as door:
        with door.connect() as reads, door.connect() as stalls:
            stalls.sendall(asking(door, "/api/large"))
            reads.sendall(asking(door, "/api/large", "Connection: close\r\n"))
            assert await asyncio.to_thread(slowly, reads) > MEGABYTES << 20
            assert await asyncio.to_thread(slowly, stalls) < MEGABYTES << 20


async def test_a_defect_is_told_in_a_sentence_and_written_down(open_server: OpenServer):
    async with open_server(BROKEN, SMALL) as door:
        answer = await asyncio.to_thread(door.request_as_owner, "GET", "/api/broken")
        assert (answer.status, answer.code) == (500, "internal_error")
        assert not [word for word in (b"house", b"Traceback", b"RuntimeError", b".py") if word in answer.body]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert (await asyncio.to_thread(door.request_as_owner, "GET", "/api/small")).status == 200
        log = (door.home / "logs" / "retinue.jsonl").read_text()
    assert "RuntimeError: the inside of the house" in log
    assert "GET /api/broken" in log
    assert "sk-x7x7" not in log


def test_the_port_is_named_as_tcp_so_that_no_answer_is_held_back():
    """Only then does asyncio tell the kernel to send the body of a small answer at once, and not after 40 ms."""
    with open_tcp_socket("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
