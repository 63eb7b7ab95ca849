"""The HTTP server: uvicorn on a Unix socket for the command line and a TCP port for the page."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from retinue import daemon_client
from retinue.errors import Failed
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.limited_connection import LimitedConnection, track_responses

DEFAULT_PORT = 8765
BACKLOG = 512
SEND_BUFFER_BYTES = 256 * 1024
"""Kernel send buffer per connection; the default would hold megabytes per slow client."""


class ApiServer(uvicorn.Server):
    """uvicorn's server without signal handling (the daemon's task) and periodic wake-ups."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits | None = None) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                track_responses(app),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                # The connection's own timeout ends first.
                timeout_keep_alive=ceil(limits.keep_alive_seconds + limits.head_seconds) + 1,
                timeout_graceful_shutdown=2,
            )
        )
        self.config.load()
        self.config.http_protocol_class = _limited_protocol_class(self.config.http_protocol_class, limits)
        # Do not log invalid requests: strangers could fill the disk with them.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    @asynccontextmanager
    async def serve_sockets(self, *sockets: socket.socket) -> AsyncGenerator[None]:
        """Serve these sockets while the context is open."""
        self.lifespan = self.config.lifespan_class(self.config)
        listeners = list(sockets)
        await self.startup(sockets=listeners)
        try:
            yield
        finally:
            await self.shutdown(sockets=listeners)


def _limited_protocol_class(
    protocol_class: type[asyncio.Protocol], limits: ConnectionLimits
) -> type[asyncio.Protocol]:
    """Return what uvicorn calls to create the protocol of a connection: its own, behind the limits."""
    open_connections: set[LimitedConnection] = set()

    def make_connection(**arguments: Any) -> LimitedConnection:
        def make_protocol(state: dict[str, Any]) -> asyncio.Protocol:
            return protocol_class(**(arguments | {"app_state": state}))

        return LimitedConnection(make_protocol, limits, open_connections)

    return cast("type[asyncio.Protocol]", make_connection)  # uvicorn only calls it


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
