"""The HTTP server: uvicorn on a Unix socket for the command line and a TCP port for the page."""

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
from retinue.server.connection_limits import ConnectionLimits, LimitedConnection

DEFAULT_PORT = 8765
BACKLOG = 512
SEND_BUFFER_BYTES = 256 * 1024
"""Kernel send buffer per connection; the default would hold megabytes per slow client."""


class ApiServer(uvicorn.Server):
    """uvicorn's server without signal handling (the daemon's task) and periodic wake-ups."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedConnection,
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
        self._limits = limits or ConnectionLimits()
        # Do not log invalid requests: strangers could fill the disk with them.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @asynccontextmanager
    async def serve_sockets(self, *sockets: socket.socket) -> AsyncGenerator[None]:
        """Serve these sockets while the context is open."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        self.lifespan.state |= {"limits": self._limits, "lines": set[LimitedConnection]()}
        listeners = list(sockets)
        await self.startup(sockets=listeners)
        try:
            yield
        finally:
            await self.shutdown(sockets=listeners)


def open_unix_socket(home: Path) -> socket.socket:
    """Open the Unix socket for the command line, accessible to this user only."""
    with suppress(FileNotFoundError):
        (home / daemon_client.SOCKET_NAME).unlink()
    unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_umask = os.umask(0o177)
    try:
        with daemon_client.socket_path(home) as socket_path:
            unix_socket.bind(socket_path)
    finally:
        os.umask(previous_umask)
    unix_socket.listen(BACKLOG)
    return unix_socket


def open_tcp_socket(host: str, port: int | None) -> socket.socket:
    """Open the TCP port of the page. Without an explicit port, fall back to a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (DEFAULT_PORT, 0) if port is None else (port,):
        # asyncio sets TCP_NODELAY only for an explicit IPPROTO_TCP; otherwise bodies arrive 40 ms late.
        tcp_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            tcp_socket.bind((host, candidate))
        except OSError as error:
            tcp_socket.close()
            if port is not None or candidate == 0:
                raise Failed(
                    f"Cannot listen on {host}:{candidate}: {error.strerror}. Choose another port with --port."
                ) from error
        else:
            tcp_socket.listen(BACKLOG)
            return tcp_socket
    raise AssertionError


def page_url(host: str, tcp_socket: socket.socket) -> str:
    """Return the URL of the page for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (named, not bound)
    return f"http://{f'[{name}]' if ':' in name else name}:{tcp_socket.getsockname()[1]}"
