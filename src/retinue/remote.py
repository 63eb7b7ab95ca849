"""Speaks to the daemon of a home over its socket: one line of JSON there, one line back."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

SOCKET = "daemon.sock"
PATIENCE_SECONDS = 5.0


async def told(home: Path, do: str, **more: Any) -> dict[str, Any] | None:
    """The daemon's answer; None where there is none. A socket that nobody listens on is a dead daemon's."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(address(home))
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


def address(home: Path) -> str:
    """A socket's name is short by law; from the folder itself it is always short enough."""
    path = os.fspath(home / SOCKET)
    if len(os.fsencode(path)) < LONGEST:
        return path
    relative = os.path.relpath(path)
    return relative if len(os.fsencode(relative)) < LONGEST else path


LONGEST = 104
