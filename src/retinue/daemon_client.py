"""Speaks to the daemon of a home over its socket: small HTTP requests, and the stream of its events."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

SOCKET = "daemon.sock"
PATIENCE_SECONDS = 5.0
LONGEST = 104
"""Bytes of a socket's name, by the kernel's law."""


async def hello(home: Path) -> dict[str, Any] | None:
    """What the daemon of this home says of itself, and it looks whether something was left for it; None: there is none.
    A socket that nobody listens on is a dead daemon's. One that is not `looking` is about to leave."""
    return await told(home, "POST", "/api/look")


async def stop(home: Path) -> dict[str, Any] | None:
    return await told(home, "POST", "/api/stop")


async def told(
    home: Path, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The daemon's answer; None where there is none, or none that can be understood."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), _asked(home, method, path, body) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _header(head, b"content-length")
            raw = await (reader.read() if length is None else reader.readexactly(int(length)))
            return json.loads(raw) if head.split(b" ", 2)[1][:1] == b"2" else None
    except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
        return None


async def events(home: Path, *, after: int, deltas: str) -> AsyncGenerator[dict[str, Any]]:
    """What happens in the daemon from then on, until it is gone: durable events past the number `after`, and the words
    of one session, of `all` or of `none` as they come. The first one is empty: from then on nothing is missed. `live`
    are those that are told once and never again."""
    path = f"/api/events?after={after}&deltas={deltas}"
    with suppress(OSError, EOFError, asyncio.LimitOverrunError):
        async with _asked(home, "GET", path, None) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split(b" ", 2)[1][:1] != b"2":
                return
            numbered = False
            async for line in _lines(reader, chunked=_header(head, b"transfer-encoding") == b"chunked"):
                if line.startswith(b"retry:"):
                    yield {}
                elif line.startswith(b"id:"):
                    numbered = True
                elif line.startswith(b"data: "):
                    yield json.loads(line[6:]) | {"live": not numbered}
                elif not line:
                    numbered = False


async def _lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncGenerator[bytes]:
    """The lines of an answer that goes on; events are cut into chunks anywhere."""
    rest = b""
    while piece := await (_chunk(reader) if chunked else reader.read(1 << 16)):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    await reader.readexactly(2)
    return data


@asynccontextmanager
async def _asked(
    home: Path, method: str, path: str, body: Mapping[str, Any] | None
) -> AsyncGenerator[asyncio.StreamReader]:
    raw = json.dumps({} if body is None else body).encode()
    with address(home) as place:
        reader, writer = await asyncio.open_unix_connection(place)
    try:
        lines = [f"{method} {path} HTTP/1.1", "host: daemon", "connection: close"]
        if method != "GET":
            lines += ["content-type: application/json", f"content-length: {len(raw)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if method == "GET" else raw))
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


@contextmanager
def address(home: Path) -> Generator[str]:
    """Where the socket is. Its name is short by law, so one in a deep folder is reached through the folder itself."""
    path = os.fspath(home / SOCKET)
    if len(os.fsencode(path)) < LONGEST:
        yield path
        return
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
