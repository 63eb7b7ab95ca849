"""Client for the daemon of a home: small HTTP requests over its socket, and its event stream."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

SOCKET_NAME = "daemon.sock"
REQUEST_TIMEOUT_S = 5.0
MAX_SOCKET_PATH_BYTES = 104
"""Kernel limit for the path of a socket."""


async def ping_daemon(home: Path) -> dict[str, Any] | None:
    """Ask the daemon for its state and let it check for requests; None if there is no daemon.

    A socket without a listener belongs to a dead daemon. A daemon without `accepts_runs` is about to exit.
    """
    return await request_json(home, "POST", "/api/wake")


async def stop_daemon(home: Path) -> dict[str, Any] | None:
    return await request_json(home, "POST", "/api/stop")


async def request_json(
    home: Path, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the daemon's JSON answer; None if there is no daemon or no valid answer."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S), _open_request(home, method, path, body) as reader:
            headers = await reader.readuntil(b"\r\n\r\n")
            length = _find_header(headers, b"content-length")
            raw = await (reader.read() if length is None else reader.readexactly(int(length)))
            return json.loads(raw) if headers.split(b" ", 2)[1][:1] == b"2" else None
    except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
        return None


async def stream_events(home: Path, *, after: int, deltas: str) -> AsyncGenerator[dict[str, Any]]:
    """Yield the daemon's events until it exits.

    Args:
        after: Durable events with a larger number are included.
        deltas: Id of a session whose text deltas are included, `all` or `none`.

    The first event is empty: from then on none is missed. Events with `live` set are sent once and never
    repeated.
    """
    path = f"/api/events?after={after}&deltas={deltas}"
    with suppress(OSError, EOFError, asyncio.LimitOverrunError):
        async with _open_request(home, "GET", path, None) as reader:
            headers = await reader.readuntil(b"\r\n\r\n")
            if headers.split(b" ", 2)[1][:1] != b"2":
                return
            has_id = False
            async for line in _read_lines(
                reader, chunked=_find_header(headers, b"transfer-encoding") == b"chunked"
            ):
                if line.startswith(b"retry:"):
                    yield {}
                elif line.startswith(b"id:"):
                    has_id = True
                elif line.startswith(b"data: "):
                    yield json.loads(line[6:]) | {"live": not has_id}
                elif not line:
                    has_id = False


async def _read_lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncGenerator[bytes]:
    """Yield the lines of a streamed response; chunk boundaries may be anywhere."""
    remainder = b""
    while data := await (_read_chunk(reader) if chunked else reader.read(1 << 16)):
        *complete, remainder = (remainder + data).split(b"\n")
        for line in complete:
            yield line.rstrip(b"\r")


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    await reader.readexactly(2)
    return data


@asynccontextmanager
async def _open_request(
    home: Path, method: str, path: str, body: Mapping[str, Any] | None
) -> AsyncGenerator[asyncio.StreamReader]:
    raw = json.dumps({} if body is None else body).encode()
    with socket_path(home) as socket_file:
        reader, writer = await asyncio.open_unix_connection(socket_file)
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


def _find_header(headers: bytes, name: bytes) -> bytes | None:
    for line in headers.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


@contextmanager
def socket_path(home: Path) -> Generator[str]:
    """Yield a path of the socket that is short enough.

    In a deep folder, the socket is reached through an open descriptor of the folder.
    """
    path = os.fspath(home / SOCKET_NAME)
    if len(os.fsencode(path)) < MAX_SOCKET_PATH_BYTES:
        yield path
        return
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)
