"""Speaks to the daemon of a home over its socket: one line of JSON there, one line back."""

import asyncio
import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SOCKET = "daemon.sock"
PATIENCE_SECONDS = 5.0


async def told(home: Path, do: str, **more: Any) -> dict[str, Any] | None:
    """The daemon's answer; None where there is none. A socket that nobody listens on is a dead daemon's."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with address(home) as place:
                reader, writer = await asyncio.open_unix_connection(place)
            try:
                writer.write(json.dumps({"do": do} | more).encode() + b"\n")
                await writer.drain()
                return json.loads(await reader.readline())
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
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


LONGEST = 104
