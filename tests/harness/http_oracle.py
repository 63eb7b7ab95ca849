"""Random HTTP responses, and what our client and aiohttp read from the same bytes."""

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from retinue.http.client import HttpClient
from retinue.http.connect import Unreachable
from retinue.http.parser import ResponseError, ResponseParser

TIMEOUT_S = 20.0
HANG_TIMEOUT_S = 0.3
"""aiohttp waits forever for the end of some invalid responses; a response that comes later is not compared."""
STRICTER = (
    "with status 0", "HTTP/2.0", "HTTP/0.9", "Transfer-Encoding", "interim status", "Unexpected whitespace after header value",
    "Invalid header value char", "Invalid header field char", "Expected LF after CR", "Unexpected space after start line",
)  # fmt: skip
"""Parts of our errors for responses that aiohttp accepts; see ADR 0043."""

STATUS_LINES = (
    *(b"HTTP/1.1 200 OK",) * 6,
    b"HTTP/1.1 404 Not Found",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 Not Modified",
    b"HTTP/1.1 500",
    b"HTTP/1.1 200 ",
    b"HTTP/1.1 302 Found",
    b"HTTP/1.1 200 \xe9t\xe9",
)
ODD_STATUS_LINES = (
    b"HTTP/1.1 099 Odd", b"HTTP/1.1 2000 OK", b"HTTP/2.0 200 OK", b"http/1.1 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 101 Up",
)  # fmt: skip
HEADERS = (
    b"Content-Type: text/plain", b"X-Empty:", b"X: a\tb ", b"Connection: close", b"Connection: keep-alive", b"X-Y: \xff\xfe",
    b"Set-Cookie: a=b; c", b"Location: /x", b"X : y", b"X: a\r\n b", b"no colon", b"X: a\0b", b"Content-Length: 5",
    b"Content-Length: 05", b"Content-Length: +5", b"Content-Length: 5, 5", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked", b"Content-Encoding: identity", b"Upgrade: h2c",
    b": x", b"X: " + b"y" * 5_000,
)  # fmt: skip
INTERIM = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"\r\n")
BODIES = (
    b"",
    b"hello",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"x" * 3_000,
    bytes(range(256)),
)
FRAGMENTS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"0", b"ffffffffffffffff", b"5", b"\r\n\r\n", b"\x80", b"chunked",
    b"0\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n",
)  # fmt: skip


def random_response(rng: random.Random) -> list[bytes]:
    """Return a response, mostly well-formed, cut into the pieces in which it is sent."""
    body = rng.choice(BODIES)
    framing, content = _frame_body(rng, body)
    headers = [rng.choice(HEADERS[:8]) for _ in range(rng.randrange(3))] + framing
    if rng.random() < 0.15:
        headers.append(rng.choice(HEADERS))
    rng.shuffle(headers)
    line_end = b"\n" if rng.random() < 0.05 else b"\r\n"
    interim = b"".join(rng.choices(INTERIM, k=rng.randrange(3))) if rng.random() < 0.2 else b""
    status_line = rng.choice(STATUS_LINES if rng.random() < 0.95 else ODD_STATUS_LINES)
    response = interim + line_end.join([status_line, *headers, b"", b""]) + content
    if rng.random() < 0.1:
        response += rng.choice(BODIES)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
        response = _mutate(rng, response)
    return cut(rng, response)


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))})
    return [data[start:end] for start, end in pairwise(cuts)]


def _frame_body(rng: random.Random, body: bytes) -> tuple[list[bytes], bytes]:
    kind = rng.randrange(3)
    if kind == 0:
        return [b"Content-Length: %d" % max(0, len(body) + rng.choice((*(0,) * 10, 1, -1)))], body
    if kind == 1:
        return [], body
    content = b""
    while body:
        size = rng.randrange(1, len(body) + 1)
        extension = rng.choice((b"", b"", b"", b";a=b", b" ", b";x"))
        number = b"%X" % size if rng.random() < 0.5 else b"%04x" % size
        content += number + extension + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    trailer = rng.choice((b"", b"", b"", b"X: y\r\n", b"Content-Length: 3\r\n"))
    return [b"Transfer-Encoding: chunked"], content + rng.choice(
        (b"0", b"000", b"0;x=y")
    ) + b"\r\n" + trailer + b"\r\n"


def _mutate(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    length = rng.choice((1, 1, 1, 2, 5, 20))
    kind = rng.randrange(5)
    if kind == 0:
        return data[:at] + data[at + length :]
    if kind == 1:
        return data[:at] + rng.choice(FRAGMENTS) + data[at:]
    if kind == 2:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 3:
        return data[:at] + data[at : at + length] * 2 + data[at + length :]
    return data[:at]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a client read: a response, or an error."""

    status: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    body: bytes = b""
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Oracle:
    """A server on loopback that sends given bytes to two clients."""

    url: str = ""
    pieces: Sequence[bytes] = ()
    session: aiohttp.ClientSession | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write_eof()
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def find_disagreement(self, pieces: Sequence[bytes]) -> str:
        """Return how the two clients read the same bytes differently, or an empty text.

        aiohttp refuses bytes after a response, and we close the connection: it gets only the response. It
        accepts some responses that we refuse for a known reason.
        """
        ours = await self._read(pieces, self._read_ours, TIMEOUT_S)
        if not ours.error:
            response = _without_excess(b"".join(pieces))
            theirs = await self._read([response], self._read_aiohttp, TIMEOUT_S)
            return "" if ours == theirs else f"{ours} and {theirs}"
        theirs = await self._read(pieces, self._read_aiohttp, HANG_TIMEOUT_S)
        if theirs.error or any(each in ours.error for each in STRICTER):
            return ""
        return f"{ours} and {theirs}"

    async def _read(
        self, pieces: Sequence[bytes], read: Callable[[], Awaitable[Reading]], timeout_s: float
    ) -> Reading:
        self.pieces = pieces
        try:
            async with asyncio.timeout(timeout_s):
                reading = await read()
        except TimeoutError:
            reading = Reading(error="no end")
        await asyncio.gather(*self.tasks)
        self.tasks.clear()
        return reading

    async def _read_ours(self) -> Reading:
        client = HttpClient(self.url, {"Accept-Encoding": "identity"}, connect_timeout_s=TIMEOUT_S)
        try:
            connection = await client.request("GET", {})
            body = bytearray()
            while piece := await connection.read():
                body += piece
            response = connection.response
            return Reading(
                status=response.status,
                headers=_shown_headers(response.headers.get, "latin-1"),
                body=bytes(body),
            )
        except (Unreachable, ResponseError) as error:
            return Reading(error=str(error))
        finally:
            await client.close()

    async def _read_aiohttp(self) -> Reading:
        assert self.session is not None
        try:
            async with self.session.get(self.url, allow_redirects=False) as response:
                body = await response.read()
                return Reading(
                    status=response.status, headers=_shown_headers(response.headers.get, "utf-8"), body=body
                )
        except (aiohttp.ClientError, ValueError) as error:
            return Reading(error=f"{type(error).__name__}: {error}")


def _without_excess(data: bytes) -> bytes:
    """Return the bytes of the first response."""
    response = ResponseParser()
    for end, each in enumerate(data, start=1):
        response.feed(bytes([each]))
        if response.is_complete:
            return data[:end]
    return data


def _shown_headers(get: Callable[[str], str | None], encoding: str) -> tuple[tuple[str, bytes], ...]:
    """Return the bytes of the headers that decide how a response is used."""
    names = ("content-type", "location", "content-encoding")
    found = [(name, value) for name in names if (value := get(name)) is not None]
    return tuple((name, value.encode(encoding, "surrogateescape")) for name, value in found)


@asynccontextmanager
async def open_oracle() -> AsyncGenerator[Oracle]:
    oracle = Oracle()
    async with (
        await asyncio.start_server(oracle.accept, "127.0.0.1", 0) as server,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
        ) as session,
    ):
        oracle.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        oracle.session = session
        yield oracle


async def _compare_many(cases: int, seed: int) -> int:
    """Compare random responses and print each disagreement; return how many there were."""
    found = 0
    async with open_oracle() as oracle:
        for number in range(cases):
            pieces = random_response(random.Random(f"{seed}-{number}"))
            if disagreement := await oracle.find_disagreement(pieces):
                found += 1
                sys.stdout.write(f"case {number} of seed {seed}: {pieces}\n  {disagreement}\n")
    sys.stdout.write(f"{cases} responses, {found} read differently\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our HTTP client with aiohttp on random responses.")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return 1 if asyncio.run(_compare_many(options.cases, options.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())
