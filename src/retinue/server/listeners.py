"""The server: two ways in, a socket for the command line and a port for the page, before one application."""

import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from retinue import daemon_client
from retinue.errors import Failed
from retinue.server.connection_limits import Limits, Line

PORT = 8765
BACKLOG = 512
UNREAD = 256 * 1024
"""Bytes that the kernel keeps for each who does not read; left alone, it would keep megabytes."""


class Server(uvicorn.Server):
    """uvicorn's, which ends when it is told to and wakes for nothing else; signals are the daemon's."""

    def __init__(self, app: ASGIApp, limits: Limits | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Line,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
            )
        )
        self._limits = limits or Limits()
        # What strangers send is no reason to write: they would fill the disk with it.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @asynccontextmanager
    async def listening(self, *sockets: socket.socket) -> AsyncGenerator[None]:
        """Serves these sockets while this lasts."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        self.lifespan.state |= {"limits": self._limits, "lines": set[Line]()}
        listeners = list(sockets)
        await self.startup(sockets=listeners)
        try:
            yield
        finally:
            await self.shutdown(sockets=listeners)


def local_socket(home: Path) -> socket.socket:
    """The command line's way in, for this user only."""
    with suppress(FileNotFoundError):
        (home / daemon_client.SOCKET).unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with daemon_client.address(home) as place:
            found.bind(place)
    finally:
        os.umask(before)
    found.listen(BACKLOG)
    return found


def page_socket(host: str, port: int | None) -> socket.socket:
    """The page's way in. A port that nobody asked for gives way to another where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for each in (PORT, 0) if port is None else (port,):
        # Named as TCP, or asyncio leaves it to the kernel to wait 40 ms before the body of an answer.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
        try:
            found.bind((host, each))
        except OSError as error:
            found.close()
            if port is not None or each == 0:
                raise Failed(
                    f"{host}:{each} cannot be listened on: {error.strerror}; --port names another"
                ) from error
        else:
            found.listen(BACKLOG)
            return found
    raise AssertionError


def url_of(host: str, page: socket.socket) -> str:
    """Where the page is, as a browser of this machine is told."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (named, not bound)
    return f"http://{f'[{name}]' if ':' in name else name}:{page.getsockname()[1]}"
