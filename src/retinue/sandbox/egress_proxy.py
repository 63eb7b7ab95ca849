"""Egress proxy for a sandboxed CLI agent: connect only to the allowed hosts and forwarded ports.

The proxy runs outside the sandbox. The agent's network namespace contains nothing but the proxy's listening
sockets.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from retinue.errors import Failed
from retinue.isolated_python import script_command
from retinue.sandbox import netns_helper

PROXY_PORT = 3128
"""Port of the proxy, unless the agent needs that port for something else."""
_MAX_HEAD_BYTES = 65_536
_CHUNK_BYTES = 65_536
_TIMEOUT_S = 30.0
_RESPONSE = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def proxy_port(forwards: Collection[int]) -> int:
    return next(port for port in range(PROXY_PORT, PROXY_PORT + len(forwards) + 1) if port not in forwards)


def proxy_variables(port: int) -> dict[str, str]:
    """Return the proxy environment variables under every name that programs read."""
    url = f"http://127.0.0.1:{port}"
    names = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
    direct = "127.0.0.1,localhost,::1"
    return {
        **dict.fromkeys(names, url),
        "NO_PROXY": direct,
        "no_proxy": direct,
        "NODE_USE_ENV_PROXY": "1",
    }


@asynccontextmanager
async def open_egress(pid: int, hosts: Collection[str], forwards: Sequence[int]) -> AsyncGenerator[None]:
    """Open the network of a process to these hosts (`host:port`) and to these ports of our loopback."""
    listeners = await _open_listeners(pid, (proxy_port(forwards), *forwards))
    allowed = frozenset(each.lower() for each in hosts)
    async with AsyncExitStack() as stack:
        for listener, port in zip(listeners, (None, *forwards), strict=True):
            relay = _PortForwarder(port) if port is not None else _EgressProxy(allowed)
            stack.push_async_callback(relay.close)
            server = await asyncio.start_server(relay.accept, sock=listener, limit=_MAX_HEAD_BYTES)
            stack.callback(server.close)
        yield


async def _open_listeners(pid: int, ports: Sequence[int]) -> list[socket.socket]:
    """Open listening sockets inside another network namespace.

    A helper process does it: a process that enters another network namespace cannot come back.
    """
    receiver, sender = socket.socketpair()
    try:
        with receiver:
            with sender:
                process = await asyncio.create_subprocess_exec(
                    *script_command(str(Path(netns_helper.__file__).resolve()), str(pid), *map(str, ports)),
                    stdin=asyncio.subprocess.DEVNULL, stdout=sender.fileno(), stderr=asyncio.subprocess.PIPE, env={},
                )  # fmt: skip
            _, stderr = await process.communicate()
            if process.returncode != 0:
                reason = stderr.decode(errors="replace").strip()[-300:]
                raise Failed(f"the program was not started: its network cannot be set up ({reason})")
            _, fds, _, _ = socket.recv_fds(receiver, 16, len(ports))
    except OSError as error:
        raise Failed(f"the program was not started: its network cannot be set up ({error})") from error
    listeners = [socket.socket(fileno=fd) for fd in fds]
    for each in listeners:
        each.setblocking(False)
    return listeners


class _Relay:
    """Base of the relays: tracks open connections, so that all end with the agent."""

    def __init__(self) -> None:
        self._open_writers: set[asyncio.StreamWriter] = set()

    async def close(self) -> None:
        for each in tuple(self._open_writers):
            each.close()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open_writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                await self.serve(reader, writer)
        finally:
            self._open_writers.discard(writer)
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def connect(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        first_bytes: bytes = b"",
    ) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                remote_reader, remote_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            await self.on_connect_failed(writer)
            return
        self._open_writers.add(remote_writer)
        try:
            if first_bytes:
                remote_writer.write(first_bytes)
            else:
                await self.on_connected(writer)
            async with asyncio.TaskGroup() as copies:
                copies.create_task(_copy_stream(reader, remote_writer))
                copies.create_task(_copy_stream(remote_reader, writer))
        finally:
            self._open_writers.discard(remote_writer)
            remote_writer.close()

    async def on_connected(self, writer: asyncio.StreamWriter) -> None:
        """Called when the remote side is connected."""

    async def on_connect_failed(self, writer: asyncio.StreamWriter) -> None:
        """Called when the remote side cannot be reached."""


class _PortForwarder(_Relay):
    """Forward connections to one port of our loopback."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.connect(reader, writer, "127.0.0.1", self._port)


class _EgressProxy(_Relay):
    """HTTP proxy for a few hosts: `CONNECT host:port`, or a request with an absolute URL."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        super().__init__()
        self._allowed_hosts = allowed_hosts

    async def on_connected(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def on_connect_failed(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_RESPONSE % b"502 Bad Gateway")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, headers = head.partition(b"\r\n")
        method, _, target = line.decode("latin-1").partition(" ")
        target, _, version = target.rpartition(" ")
        is_plain_http = target.startswith("http://")
        address, slash, path = target.removeprefix("http://").partition("/")
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "80")
        if (
            (method != "CONNECT" and not is_plain_http)
            or not port.isdecimal()
            or f"{host}:{port}".lower() not in self._allowed_hosts
        ):
            writer.write(_RESPONSE % b"403 Forbidden")
            return
        first_bytes = (
            f"{method} {slash or '/'}{path} {version}\r\n".encode("latin-1") + _with_connection_close(headers)
            if is_plain_http
            else b""
        )
        await self.connect(reader, writer, host, int(port), first_bytes)


def _with_connection_close(headers: bytes) -> bytes:
    """Force one request per connection, so that the next request is checked again."""
    lines = [
        line
        for line in headers.split(b"\r\n")
        if not line.lower().startswith((b"connection:", b"proxy-connection:", b"proxy-authorization:"))
    ]
    return b"\r\n".join([b"Connection: close", *lines])


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_CHUNK_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
