"""The client that asks models' servers, against servers that say just what a test makes them say."""

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
from retinue.providers.errors import ProviderError
from retinue.providers.http.client import MAX_UNREAD_BYTES, PIECE_BYTES, Connection, HttpClient
from retinue.providers.http.connect import (
    InvalidServerUrl,
    SocketAddress,
    Unreachable,
    connect_first,
    describe_os_error,
    parse_server_url,
)
from retinue.providers.http.parser import MAX_HEAD_BYTES, ResponseError, ResponseParser
from retinue.providers.http.stream_request import StreamingRequest
from retinue.providers.stream_timeout import KEEPALIVE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")


@dataclass(slots=True)
class Line:
    """One connection, as the server has it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def asked(self) -> bytes:
        """A whole request."""
        head = await self.head()
        found = LENGTH.search(head)
        return head + await self.reader.readexactly(int(found[1]) if found else 0)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def left(self) -> None:
        """Waits until the other side has hung up."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


Play = Callable[[Line], Awaitable[None]]


@dataclass(slots=True)
class Server:
    """Plays one part on each connection, in order; when they are used up, the last again."""

    plays: Sequence[Play]
    url: str = ""
    requests: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    talks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.add(asyncio.ensure_future(self.talk(reader, writer)))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        play = self.plays[min(self.connections, len(self.plays) - 1)]
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await play(_Noted(reader, writer, self.requests))
        self.hung_up.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class _Noted(Line):
    """A line that keeps what was asked."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]
    ) -> None:
        super().__init__(reader, writer)
        self._requests = requests

    async def asked(self) -> bytes:
        request = await super().asked()
        self._requests.append(request)
        return request


def says(*answers: bytes) -> Play:
    """Each answer to a request of its own, then the server hangs up."""

    async def play(line: Line) -> None:
        for answer in answers:
            await line.asked()
            await line.say(answer)

    return play


async def always_ok(line: Line) -> None:
    while True:
        await line.asked()
        await line.say(OK)


@asynccontextmanager
async def serving(*plays: Play, context: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    server = Server(plays)
    async with await asyncio.start_server(server.begin, "127.0.0.1", 0, ssl=context) as running:
        port = running.sockets[0].getsockname()[1]
        server.url = f"http{'s' if context else ''}://127.0.0.1:{port}/v1"
        yield server
        await asyncio.gather(*server.talks)


@asynccontextmanager
async def client(
    url: str,
    *,
    idle_seconds: float = 15.0,
    again_seconds: float = 10.0,
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[HttpClient]:
    extra = {"make_ssl_context": lambda: context} if context else {}
    made = HttpClient(
        url,
        {"Accept": "*/*"},
        connect_timeout_s=10,
        keepalive_s=idle_seconds,
        reuse_retry_s=again_seconds,
        **extra,
    )
    try:
        yield made
    finally:
        await made.close()


class Sent(list[bytes]):
    """A request in pieces, which tells before each of them that it is about to be sent."""

    def __init__(self, pieces: Sequence[bytes], told: Callable[[bytes], None]) -> None:
        super().__init__(pieces)
        self._told = told
        self._measured = False

    def __iter__(self) -> Iterator[bytes]:
        measured, self._measured = self._measured, True
        for piece in super().__iter__():
            if measured:
                self._told(piece)
            yield piece


async def body(connection: Connection) -> bytes:
    pieces: list[bytes] = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


async def ask(
    asker: HttpClient, *words: bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    connection = await asker.post(headers or {}, words or (b"{}",))
    try:
        return connection.response.status, await body(connection)
    finally:
        connection.release()


async def test_a_request_says_where_to_with_what_and_how_long():
    async with serving(always_ok) as server, client(f"{server.url}/a b?c=d#e") as asker:
        assert await ask(asker, b"gr", b"eetings", headers={"X-Key": "one"}) == (200, b"ok")
    host = server.url.split("/")[2]
    assert server.requests == [
        f"POST /v1/a%20b?c=d HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nX-Key: one\r\n"
        "Content-Length: 9\r\n\r\ngreetings".encode()
    ]


@pytest.mark.parametrize(
    ("url", "host", "port", "named"),
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
def test_a_url_says_which_host_and_port_are_meant(url: str, host: str, port: int, named: str):
    there = parse_server_url(url)
    assert (there.host, there.port, there.host_header, there.target) == (host, port, named, "/v1")


@pytest.mark.parametrize(
    ("url", "proven"),
    [
        ("https://example.com./v1", "example.com"),
        ("https://example.com/v1", "example.com"),
        ("https://[fe80::1%25eth0]/v1", "fe80::1"),
    ],
)
def test_a_certificate_names_a_host_without_its_last_dot_and_without_a_zone(url: str, proven: str):
    assert parse_server_url(url).certificate_name == proven


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x", "http://", "http://a..b", "http://a b", "http://x:y", "http://x:70000",
            "http://me:word@x", f"http://{'m' * 64}", "http://[zz]/", "http://x%20y/", "http://x/\udcff"],
)  # fmt: skip
def test_what_is_no_url_of_a_server_is_refused(url: str):
    with pytest.raises(InvalidServerUrl):
        parse_server_url(url)


async def test_a_connection_is_kept_and_the_newest_is_used_again():
    both = asyncio.Barrier(2)

    async def together(line: Line) -> None:
        await line.asked()
        await both.wait()
        await line.say(OK)
        await always_ok(line)

    async with serving(together) as server, client(server.url) as asker:
        one, other = await asyncio.gather(asker.post({}, [b"1"]), asker.post({}, [b"2"]))
        for each in (one, other):
            await body(each)
            each.release()
        for _ in range(3):
            again = await asker.post({}, [b"3"])
            await body(again)
            again.release()
            assert again is other
        assert server.connections == 2


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
    ],
    ids=["HTTP/1.0", "close", "close among others", "more than it should"],
)
async def test_a_connection_that_can_carry_no_other_answer_is_not_kept(last: bytes):
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(last)
        await line.left()

    async with serving(play) as server, client(server.url) as asker:
        for _ in range(2):
            assert await ask(asker) == (200, b"ok")
            await server.hung_up.wait()
        assert server.connections == 2


async def test_words_that_nobody_asked_for_end_a_kept_connection():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(OK)
        await read.wait()
        await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await line.left()

    read = asyncio.Event()
    async with serving(play, always_ok) as server, client(server.url) as asker:
        assert await ask(asker) == (200, b"ok")
        read.set()
        await server.hung_up.wait()
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 2


async def test_words_that_nobody_asked_for_are_found_though_nobody_has_read_them():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(OK)
        lines.append(line)
        await line.left()

    lines: list[Line] = []
    async with serving(play, always_ok) as server, client(server.url) as asker:
        assert await ask(asker) == (200, b"ok")
        # It leaves at once, and nothing is waited for between here and the next request.
        lines[0].writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 2


async def test_a_connection_that_nobody_uses_is_closed_after_a_while():
    async with serving(always_ok) as server, client(server.url, idle_seconds=0) as asker:
        assert await ask(asker) == (200, b"ok")
        await server.hung_up.wait()
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 2


async def test_a_server_that_hung_up_between_two_requests_is_asked_on_a_new_connection():
    async with serving(says(OK), always_ok) as server, client(server.url) as asker:
        assert await ask(asker) == (200, b"ok")
        await server.hung_up.wait()
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 2


async def test_a_server_that_hangs_up_as_it_is_asked_again_is_asked_once_more():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(OK)
        await line.asked()

    async with serving(play, says(OK)) as server, client(server.url) as asker:
        assert await ask(asker, b"first") == (200, b"ok")
        assert await ask(asker, b"second") == (200, b"ok")
        assert [request[-6:] for request in server.requests[1:]] == [b"second", b"second"]


async def test_a_server_that_hangs_up_long_after_it_was_asked_may_have_begun_and_is_not_asked_again():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(OK)
        await line.asked()

    async with serving(play) as server, client(server.url, again_seconds=0) as asker:
        assert await ask(asker) == (200, b"ok")
        with pytest.raises(ResponseError, match="broke the connection before it answered"):
            await ask(asker)
        assert len(server.requests) == 2


async def test_it_is_asked_once_more_only_once():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(OK)
        await line.asked()

    async def mute(line: Line) -> None:
        await line.asked()

    async with serving(play, mute) as server, client(server.url) as asker:
        assert await ask(asker) == (200, b"ok")
        with pytest.raises(ResponseError, match="broke the connection before it answered"):
            await ask(asker)
        assert len(server.requests) == 3


async def test_a_server_that_has_begun_to_answer_is_not_asked_again():
    async with serving(says(OK, b"H")) as server, client(server.url) as asker:
        assert await ask(asker) == (200, b"ok")
        with pytest.raises(ResponseError, match="broke the connection in the middle of its answer"):
            await ask(asker)
        assert len(server.requests) == 2


async def test_a_new_connection_that_breaks_is_not_tried_again():
    async def play(line: Line) -> None:
        await line.asked()

    async with serving(play) as server, client(server.url) as asker:
        with pytest.raises(ResponseError, match="before it answered"):
            await ask(asker)
        assert len(server.requests) == 1


async def test_who_is_cancelled_hangs_up():
    async def play(line: Line) -> None:
        await line.asked()
        heard.set()
        await line.left()

    heard = asyncio.Event()
    async with serving(play) as server, client(server.url) as asker:
        asking = asyncio.ensure_future(ask(asker))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.hung_up.wait()


async def test_who_does_not_read_to_the_end_hangs_up():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")
        await line.left()

    async with serving(play) as server, client(server.url) as asker:
        connection = await asker.post({}, [b"{}"])
        assert await connection.read() == b"ha"
        connection.release()
        await server.hung_up.wait()


async def test_closing_ends_what_is_kept_and_what_is_under_way():
    async def play(line: Line) -> None:
        await line.asked()
        heard.set()
        await line.left()

    heard = asyncio.Event()
    async with serving(always_ok, play) as server, client(server.url) as asker:
        kept = await asker.post({}, [b"{}"])
        asking = asyncio.ensure_future(ask(asker))
        await heard.wait()
        assert await body(kept) == b"ok"
        kept.release()
        await asker.close()
        with pytest.raises(ResponseError, match="before it answered"):
            await asking
        assert (kept.is_closing, server.connections) == (True, 2)


async def test_an_answer_that_we_cut_ourselves_is_not_taken_for_whole():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 200 OK\r\n\r\nha")
        await line.left()

    async with serving(play) as server, client(server.url) as asker:
        connection = await asker.post({}, [b"{}"])
        assert await connection.read() == b"ha"
        await asker.close()
        with pytest.raises(ResponseError, match="in the middle of its answer"):
            await connection.read()
        connection.release()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD: Mapping[str, tuple[bytes, int, bytes]] = {
    "by length": (OK, 200, b"ok"),
    "nothing": (HEAD + b"Content-Length: 0\r\n\r\n", 200, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified, with the length of what is not sent": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        304,
        b"",
    ),
    "without a reason": (b"HTTP/1.1 404\r\ncontent-length:1\r\n\r\nx", 404, b"x"),
    "line feeds alone": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok"),
    "blank lines before": (b"\r\n\r\n" + OK, 200, b"ok"),
    "headers without a value": (HEAD + b"X:\r\nY: \r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "a body of line breaks": (HEAD + b"Content-Length: 4\r\n\r\n\r\n\r\n", 200, b"\r\n\r\n"),
    "others before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "others before it that close and have no body": (
        b"HTTP/1.0 100 Continue\r\nContent-Length: 0\r\n\r\n"
        b"HTTP/1.1 103 Early\r\nConnection: close\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "chunks": (CHUNKED + b"2\r\nok\r\n00A;a=b;c\r\n and\r\nmore\r\n0\r\n\r\n", 200, b"ok and\r\nmore"),
    "chunks with sizes of many digits": (
        CHUNKED + b"%016x\r\nok\r\n%064x\r\n\r\n" % (2, 0),
        200,
        b"ok",
    ),
    "chunks with trailers": (
        HEAD + b"Transfer-Encoding: Chunked \r\n\r\n2 \r\nok\r\n0;x\r\nA: b\r\nConnection: close\r\n\r\n",
        200,
        b"ok",
    ),
    "chunks that end with line feeds alone": (CHUNKED + b"2\r\nok\n0\r\n\n", 200, b"ok"),
}
OPEN: Mapping[str, tuple[bytes, int, bytes]] = {
    "until it ends": (HEAD + b"\r\n" + b"ok and more", 200, b"ok and more"),
    "until it ends, with line breaks": (HEAD + b"\r\n" + b"ok\r\n\r\n", 200, b"ok\r\n\r\n"),
    "HTTP/1.0": (b"HTTP/1.0 500 Oh\r\nContent-Type: text/plain\r\n\r\nno", 500, b"no"),
}
SWITCHED: Mapping[str, bytes] = {
    "with words": b"HTTP/1.1 101 Switching\r\n\r\nno",
    "without words": b"HTTP/1.1 101 Switching\r\n\r\n",
    "by its headers": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nno",
    "with a length": b"HTTP/1.1 101 Switching\r\nContent-Length: 2\r\n\r\nno",
    "into a second answer": b"HTTP/1.1 101 Switching\r\n\r\n" + OK,
}
BAD: Mapping[str, tuple[bytes, str]] = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9\r\n\r\n", "did not answer in HTTP: 'SSH-2.0-OpenSSH_9'"),
    "RTSP": (b"RTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "did not answer in HTTP: 'RTSP/1.0 200 OK'"),
    "ICE": (b"\r\nICE/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "did not answer in HTTP: 'ICE/1.0 200 OK'"),
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
    "no end of the head": (
        HEAD + b"X: y\r\n" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "a long head": (
        HEAD + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        "sent a response head of more than 65,536 bytes",
    ),
    "blank lines without end": (
        b"\r\n" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "answers before it without end": (
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        "sent a response head of more than 65,536 bytes",
    ),
    "no header after another answer": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nnothing\r\n\r\n",
        "sent an invalid response: Invalid header token",
    ),
    "a long head after another answer": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
        "sent a response head of more than 65,536 bytes",
    ),
    "a length in words": (
        HEAD + b"Content-Length: two\r\n\r\nok",
        "sent an invalid response: Invalid character in Content-Length",
    ),
    "a length below nothing": (
        HEAD + b"Content-Length: -2\r\n\r\nok",
        "sent an invalid response: Invalid character in Content-Length",
    ),
    "an empty length": (
        HEAD + b"Content-Length:\r\n\r\nok",
        "sent an invalid response: Empty Content-Length",
    ),
    "a length beyond all": (
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
    "a chunk of a size below nothing": (
        CHUNKED + b"-2\r\nok\r\n",
        "sent an invalid response: Invalid character in chunk size",
    ),
    "a chunk that is longer": (
        CHUNKED + b"2\r\nokay\r\n0\r\n\r\n",
        "sent an invalid response: Expected LF after chunk data",
    ),
    "a chunk of a size beyond all": (
        CHUNKED + b"1%016x\r\nok\r\n0\r\n\r\n" % 2,
        "sent an invalid response: Chunk size overflow",
    ),
    "a chunk of a size that never comes": (
        CHUNKED + b"1%015x\r\nok\r\n0\r\n\r\n" % 2,
        "broke the connection in the middle of its answer",
    ),
    "a size without end": (
        CHUNKED + b"0" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes around its body",
    ),
    "an extension without end": (
        CHUNKED + b"2;" + b"x" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes around its body",
    ),
    "trailers without end": (
        CHUNKED + b"0\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes around its body",
    ),
    "a trailer without end": (
        CHUNKED + b"0\r\nX: " + b"y" * 3 * MAX_HEAD_BYTES,
        "sent more than 65,536 bytes around its body",
    ),
    "no trailer": (CHUNKED + b"0\r\nnothing\r\n\r\n", "sent an invalid response: Invalid header token"),
    "half a head": (HEAD + b"Content-Le", "broke the connection in the middle of its answer"),
    "another answer alone": (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        "broke the connection in the middle of its answer",
    ),
    "half a body": (OK[:-1], "broke the connection in the middle of its answer"),
    "half a chunk": (CHUNKED + b"3\r\nok", "broke the connection in the middle of its answer"),
    "no last chunk": (CHUNKED + b"2\r\nok\r\n", "broke the connection in the middle of its answer"),
    "half a last chunk": (CHUNKED + b"2\r\nok\r\n0\r\n", "broke the connection in the middle of its answer"),
}
STRICTER: Mapping[str, tuple[bytes, str]] = {
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
    "an answer before it with a body": (
        b"HTTP/1.1 150 Wait\r\nContent-Length: 5\r\n\r\n" + OK,
        "interim status 150 with a body",
    ),
    "an answer before it with chunks": (
        b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n" + OK,
        "interim status 100 with a body",
    ),
    "a size that ends with a line feed alone": (
        CHUNKED + b"2\nok\r\n0\r\n\r\n",
        "Expected LF after chunk size",
    ),
}


@pytest.mark.parametrize(("said", "status", "words"), [*GOOD.values()], ids=[*GOOD])
async def test_an_answer_that_ends_is_read_and_its_connection_kept(said: bytes, status: int, words: bytes):
    async with serving(says(said, OK)) as server, client(server.url) as asker:
        assert await ask(asker) == (status, words)
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 1


@pytest.mark.parametrize(("said", "status", "words"), [*OPEN.values()], ids=[*OPEN])
async def test_an_answer_without_a_length_goes_on_until_the_server_hangs_up(
    said: bytes, status: int, words: bytes
):
    async with serving(says(said)) as server, client(server.url) as asker:
        assert await ask(asker) == (status, words)
        assert await ask(asker) == (status, words)
        assert server.connections == 2


@pytest.mark.parametrize(("said", "sentence"), [*BAD.values()], ids=[*BAD])
async def test_what_is_no_whole_answer_is_a_broken_one(said: bytes, sentence: str):
    async with serving(says(said)) as server, client(server.url) as asker:
        with pytest.raises(ResponseError, match=re.escape(sentence)):
            await ask(asker)


@pytest.mark.parametrize(("said", "sentence"), [*STRICTER.values()], ids=[*STRICTER])
async def test_what_our_own_parser_accepted_before_httptools_is_refused(said: bytes, sentence: str):
    """ADR 0043."""
    async with serving(says(said)) as server, client(server.url) as asker:
        with pytest.raises(ResponseError, match=re.escape(f"sent an invalid response: {sentence}")):
            await ask(asker)


@pytest.mark.parametrize("said", [*SWITCHED.values()], ids=[*SWITCHED])
async def test_an_answer_in_another_protocol_ends_with_its_head_and_its_connection_is_closed(said: bytes):
    """ADR 0043. The parser before httptools read the bytes of the other protocol as a body."""

    async def play(line: Line) -> None:
        await line.asked()
        await line.say(said)
        await line.left()

    async with serving(play) as server, client(server.url) as asker:
        assert await ask(asker) == (101, b"")
        assert await ask(asker) == (101, b"")
        assert server.connections == 2


@pytest.mark.parametrize(
    "excess", [b"x", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b"HTTP/1.1 200 OK", OK, OK + b"\r\n"]
)
@pytest.mark.parametrize(
    "said",
    [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"HTTP/1.1 204 No\r\n\r\n"],
    ids=["length", "chunks", "none"],
)
def test_a_connection_on_which_more_came_than_one_answer_is_never_kept(said: bytes, excess: bytes):
    whole = outcome([said])
    assert isinstance(whole, tuple)
    assert whole[-1] is True
    for cut in range(len(said) - 4, len(said + excess)):
        assert outcome([(said + excess)[:cut], (said + excess)[cut:]]) == (*whole[:-1], False)


def test_a_head_may_have_just_so_many_bytes_however_it_is_cut():
    for before in (b"", b"\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"):
        frame = before + HEAD + b"Content-Length: 2\r\nX: \r\n\r\n"
        for length, fits in ((MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)):
            said = frame.replace(b"X: ", b"X: " + b"y" * (length - len(frame))) + b"ok"
            for size in (len(said), 1_000, MAX_HEAD_BYTES, MAX_HEAD_BYTES - 1, length - 1):
                pieces = [said[at : at + size] for at in range(0, len(said), size)]
                assert isinstance(outcome(pieces), tuple) is fits


@pytest.mark.parametrize(
    "pieces", [[OK], [OK[:-1]], [OK, b"excess"], [b"HTTP/1.1 nothing"], [b""], []],
    ids=["whole", "cut", "with excess", "invalid", "empty", "unused"],
)  # fmt: skip
def test_an_answer_leaves_no_reference_cycle_behind(pieces: Sequence[bytes]):
    gc.collect()
    gc.disable()
    try:
        outcome(pieces)
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_an_answer_that_was_not_the_last_is_never_taken_for_it():
    said = BAD["no header after another answer"][0]
    async with serving(says(said)) as server, client(server.url) as asker:
        with pytest.raises(ResponseError, match="Invalid header token"):
            await asker.post({}, [b"{}"])


async def test_what_came_before_the_connection_broke_is_read_first():
    async with serving(says(OK[:-1])) as server, client(server.url) as asker:
        connection = await asker.post({}, [b"{}"])
        await server.hung_up.wait()
        assert await connection.read() == b"o"
        with pytest.raises(ResponseError):
            await connection.read()
        connection.release()


def outcome(pieces: Sequence[bytes]) -> object:
    """All that can be said of an answer, however it came."""
    answer = ResponseParser()
    try:
        for piece in pieces:
            answer.feed(piece)
        answer.close(orderly=True)
    except ResponseError as error:
        return str(error).partition(":")[0]
    return (
        answer.status,
        answer.reason,
        answer.headers,
        b"".join(answer.pieces),
        answer.is_complete,
        answer.keep_alive,
    )


CUTTABLE = [
    *(said for said, _, _ in (*GOOD.values(), *OPEN.values())),
    *(said for said, _ in (*BAD.values(), *STRICTER.values()) if len(said) < 1_000),
    *SWITCHED.values(),
    OK + b"excess",
    OK + b"\r\n",
    OK + OK,
]


@given(st.data())
def test_an_answer_cut_into_pieces_anywhere_reads_the_same(data: st.DataObject):
    said = data.draw(st.sampled_from(CUTTABLE))
    cuts = sorted({0, len(said), *data.draw(st.lists(st.integers(1, len(said)), max_size=8))})
    whole = outcome([said])
    assert outcome([said[a:b] for a, b in pairwise(cuts)]) == whole
    assert outcome([bytes([each]) for each in said]) == whole


async def test_a_long_request_arrives_whole():
    words = bytes(range(256)) * 80_000
    async with serving(always_ok) as server, client(server.url) as asker:
        assert await ask(asker, words[:100], words[100:]) == (200, b"ok")
        assert server.requests[0].endswith(words)
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 1


async def test_others_have_their_turn_between_the_pieces_of_a_long_request():
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen: list[int] = []
    words = Sent([b"x" * PIECE_BYTES] * 10, lambda _: seen.append(turns))
    async with serving(always_ok) as server, client(server.url) as asker:
        beside = asyncio.ensure_future(others())
        connection = await asker.post({}, words)
        assert await body(connection) == b"ok"
        connection.release()
        beside.cancel()
    assert len(seen) == len({*seen}) == 10


async def test_whoever_asks_is_told_that_a_long_request_moves_and_nothing_while_it_does_not():
    async def play(line: Line) -> None:
        await line.head()
        await reading.wait()
        await line.reader.readexactly(80 * PIECE_BYTES)
        await line.say(OK)

    reading = asyncio.Event()
    told: list[bool] = []
    async with serving(play) as server, client(server.url) as asker:
        asking = asyncio.ensure_future(asker.post({}, [b"x" * PIECE_BYTES] * 80, lambda: told.append(True)))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert len(told) < 80
        reading.set()
        connection = await asking
        assert await body(connection) == b"ok"
        connection.release()
        assert len(told) >= 80


async def test_whoever_asks_is_told_of_answers_that_are_not_the_last():
    async def play(line: Line) -> None:
        await line.asked()
        for _ in range(3):
            await line.say(b"HTTP/1.1 102 Processing\r\n\r\n")
            await told.wait()
            told.clear()
        await line.say(OK)

    told = asyncio.Event()
    async with serving(play) as server, client(server.url) as asker:
        connection = await asker.post({}, [b"{}"], told.set)
        assert await body(connection) == b"ok"
        connection.release()


async def test_a_driver_passes_on_that_its_request_moves():
    async def play(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 102 Processing\r\n\r\n")
        await heard.wait()
        await line.say(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    def hear(delta: ReplyDelta) -> None:
        if delta is KEEPALIVE:
            heard.set()

    heard = asyncio.Event()
    async with serving(play) as server:
        post = StreamingRequest(url=server.url, key_variable="SOME_KEY")
        with pytest.raises(ProviderError, match="HTTP 500"):
            await post.stream({}, [b"{}"], Unread(), hear, "")
        await post.close()


@pytest.mark.parametrize("words", [b"x" * 20_000_000, b"x" * 200_000, b"x"], ids=["long", "longer", "short"])
async def test_a_server_that_refuses_a_request_before_it_has_read_it_is_understood(words: bytes):
    async def refuse(line: Line) -> None:
        await line.head()
        await line.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong")

    async with serving(refuse) as server, client(server.url) as asker:
        for _ in range(20):
            assert await ask(asker, words) == (413, b"long")


async def test_an_answer_is_read_though_the_server_tore_the_connection_while_it_was_being_asked():
    def refuse() -> None:
        with listening, listening.accept()[0] as line:
            line.recv(65_536)
            line.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    listening = socket.create_server(("127.0.0.1", 0))
    refusing = threading.Thread(target=refuse)
    refusing.start()
    words = Sent([b"x", b"y" * 100_000], lambda piece: None if piece == b"x" else refusing.join())
    async with client(f"http://127.0.0.1:{listening.getsockname()[1]}") as asker:
        connection = await asker.post({}, words)
        assert (connection.response.status, await body(connection)) == (413, b"long")
        connection.release()


async def test_a_connection_with_half_a_request_on_it_is_not_kept():
    async def refuse(line: Line) -> None:
        await line.head()
        await line.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong")
        await line.left()

    async with serving(refuse) as server, client(server.url) as asker:
        assert await ask(asker, b"x" * 20_000_000) == (413, b"long")
        assert await ask(asker, b"x" * 20_000_000) == (413, b"long")
        assert server.connections == 2


@pytest.mark.parametrize("over", [True, False], ids=["says so", "hangs up"])
async def test_a_server_that_answers_and_listens_no_longer_is_understood(*, over: bool):
    async def play(line: Line) -> None:
        await line.head()
        for _ in range(1_000):  # until nothing more can be sent to us
            await asyncio.sleep(0)
        await line.say(
            b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 2\r\nConnection: close\r\n" if over else b"")
        )
        await line.say(b"\r\nok")
        if not over:
            line.writer.write_eof()
        await read.wait()

    read = asyncio.Event()
    async with serving(play) as server, client(server.url) as asker:
        assert await ask(asker, b"x" * 20_000_000) == (200, b"ok")
        read.set()


async def test_a_server_that_answers_while_it_listens_gets_all_of_the_request():
    async def play(line: Line) -> None:
        head = await line.head()
        await line.say(OK)
        found = LENGTH.search(head)
        await line.reader.readexactly(int(found[1]) if found else 0)
        heard.set()
        await always_ok(line)

    heard = asyncio.Event()
    async with serving(play) as server, client(server.url) as asker:
        assert await ask(asker, b"x" * 20_000_000) == (200, b"ok")
        await heard.wait()
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 1


async def test_a_server_has_to_wait_for_who_does_not_read():
    size = 40_000_000

    async def pour(line: Line) -> None:
        await line.asked()
        await line.say(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(40):
            await line.say(b"x" * 1_000_000)
        poured.set()
        await always_ok(line)

    poured = asyncio.Event()
    async with serving(pour) as server, client(server.url) as asker:
        connection = await asker.post({}, [b"{}"])
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert connection.reading_paused
        assert not poured.is_set()
        assert sum(map(len, connection.response.pieces)) < 4 * MAX_UNREAD_BYTES
        assert len(await body(connection)) == size
        connection.release()
        assert await ask(asker) == (200, b"ok")
        assert server.connections == 1


async def test_nobody_there_is_told_from_a_broken_connection():
    async with serving(always_ok) as gone:
        pass
    async with client(gone.url) as asker:
        with pytest.raises(Unreachable, match="Connection refused"):
            await ask(asker)


def test_reasons_are_said_in_words():
    assert (
        describe_os_error(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        == "Name or service not known"
    )
    assert (
        describe_os_error(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"))
        == "Connection refused"
    )
    assert describe_os_error(ConnectionResetError()) == "no TLS came about: the server hung up"
    assert (
        describe_os_error(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"
    )


async def test_a_name_is_asked_for_and_the_first_of_its_machines_that_answers_is_taken():
    async with serving(always_ok) as server:
        async with client(server.url.replace("127.0.0.1", "localhost")) as asker:
            answers = await asyncio.gather(*(ask(asker) for _ in range(20)))
        assert answers == [(200, b"ok")] * 20
        port = int(server.url.split(":")[2].partition("/")[0])
        nowhere: SocketAddress = (socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", 1))
        there: SocketAddress = (socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", port))
        with await connect_first([nowhere, nowhere, there, nowhere]) as found:
            assert found.getpeername() == ("127.0.0.1", port)
        with pytest.raises(OSError, match=r"^Connection refused$"):
            await connect_first([nowhere, nowhere])


async def test_a_server_that_says_nothing_while_it_should_greet_is_not_waited_for(tmp_path: Path):
    async def mute(line: Line) -> None:
        await line.left()

    async with serving(mute) as server:
        made = HttpClient(server.url.replace("http:", "https:"), {}, connect_timeout_s=0.05)
        with pytest.raises(Unreachable, match=r"no connection within 0\.05 s"):
            await ask(made)
        await made.close()


async def test_a_server_that_speaks_no_tls_is_said_to():
    async def plain(line: Line) -> None:
        await line.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await line.left()

    async with serving(plain) as server, client(server.url.replace("http:", "https:")) as asker:
        with pytest.raises(Unreachable, match="no TLS came about: wrong version number"):
            await ask(asker)


async def test_a_server_that_hangs_up_instead_of_greeting_is_said_to():
    async def leave(line: Line) -> None:
        await line.reader.read(1)

    async with serving(leave) as server, client(server.url.replace("http:", "https:")) as asker:
        with pytest.raises(Unreachable, match="no TLS came about: the server hung up"):
            await ask(asker)


def secured(folder: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's side, and that of somebody who trusts it."""
    made = create_certificate(folder, *names)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.file)
    trusting = ssl.create_default_context(cadata=made.text)
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return server, trusting


async def test_a_trusted_server_is_spoken_to_by_tls(tmp_path: Path):
    context, trusting = secured(tmp_path, "localhost")
    asked_for: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    async with serving(always_ok, context=context) as server:
        async with client(server.url.replace("127.0.0.1", "localhost"), context=trusting) as asker:
            assert await ask(asker) == (200, b"ok")
            assert await ask(asker, b"x" * 5_000_000) == (200, b"ok")
        assert (server.connections, asked_for) == (1, ["localhost"])


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path):
    context, trusting = secured(tmp_path, "elsewhere.example")
    async with serving(always_ok, context=context) as server:
        async with client(server.url.replace("127.0.0.1", "localhost"), context=trusting) as asker:
            with pytest.raises(Unreachable, match="its certificate is not trusted: Hostname mismatch"):
                await ask(asker)
        assert server.requests == []


class Unread:
    """A reading for answers that hold none."""

    has_stop_reason = False
    is_done = False

    def read_events(self, events: Sequence[bytes]) -> None:
        raise AssertionError(events)

    def read_document(self, data: bytes) -> None:
        raise AssertionError(data)


async def posted(url: str, key: str = "a-secret") -> ProviderError:
    post = StreamingRequest(url=url, key_variable="SOME_KEY")
    with pytest.raises(ProviderError) as caught:
        await post.stream({}, [b"{}"], Unread(), heard_nothing, key)
    await post.close()
    return caught.value


def heard_nothing(_: ReplyDelta) -> None:
    return


async def test_a_driver_says_that_a_certificate_is_not_trusted(tmp_path: Path):
    context, _ = secured(tmp_path, "localhost")
    async with serving(always_ok, context=context) as server:
        failure = await posted(server.url)
        assert (failure.reason, server.requests) == ("unreachable", [])
        assert str(failure) == (
            f"cannot reach {server.url}: its certificate is not trusted: self-signed certificate"
        )


@pytest.mark.parametrize(
    ("said", "reason", "sentence"),
    [
        (
            b"HTTP/1.1 401 No\r\nContent-Length: 9\r\n\r\nhalf",
            "auth",
            "refused the key (HTTP 401): check SOME_KEY",
        ),
        (b"", "incomplete", "broke the connection before it answered"),
        (b"a-secret\r\n\r\n", "incomplete", "did not answer in HTTP: '[key]'"),
        (
            b"HTTP/1.1 400 Bad\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
            "provider",
            "answered HTTP 400: Bad",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
            "provider",
            "answered packed (gzip), which was not asked for",
        ),
        (
            b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n",
            "provider",
            "answered HTTP 503: no reason given",
        ),
    ],
    ids=["half a refusal", "nothing", "no HTTP", "a packed refusal", "packed", "a refusal without words"],
)
async def test_a_driver_says_what_was_wrong_with_an_answer(said: bytes, reason: str, sentence: str):
    async with serving(says(said)) as server:
        failure = await posted(server.url)
    assert (failure.reason, str(failure)) == (reason, f"{server.url} {sentence}")


@pytest.mark.parametrize(
    ("said", "reason", "gate", "seconds", "sentence"),
    [
        (b"401 No\r\n\r\n{}", "auth", False, None, "refused the key (HTTP 401): check SOME_KEY"),
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
    ids=["no length", "too long a length", "no last chunk"],
)
async def test_a_refusal_counts_by_its_status_though_its_words_do_not_end(
    said: bytes, reason: str, gate: bool, seconds: float | None, sentence: str
):
    """Shows: M01."""

    async def play(line: Line) -> None:
        await line.asked()
        await line.say(b"HTTP/1.1 " + said)
        await line.left()

    async with serving(play) as server:
        failure = await posted(server.url)
    assert (failure.reason, failure.close_rate_limit_gate, failure.retry_after.seconds) == (
        reason,
        gate,
        seconds,
    )
    assert str(failure) == f"{server.url} {sentence}"


async def test_a_key_that_could_be_a_word_takes_no_words_with_it():
    async with serving(says(b"HTTP/1.1 400 Bad\r\nContent-Length: 17\r\n\r\nthe lock is stuck")) as server:
        assert str(await posted(server.url, "k")) == f"{server.url} answered HTTP 400: the lock is stuck"
        assert str(await posted(server.url, "the lock")) == f"{server.url} answered HTTP 400: [key] is stuck"
