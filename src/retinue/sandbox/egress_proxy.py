"""The hatch of a cell's network: all that a guest reaches is behind it, and it lets through only to the hosts that were
named. It stands on our side: the guest has no other network than the one that holds the hatch."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from retinue.errors import Failed
from retinue.sandbox import netns_helper

PROXY = 3128
"""The port of the proxy, unless the guest needs that one for something else."""
_HEAD = 65_536
_PIECE = 65_536
_SECONDS = 30.0
_REFUSAL = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def proxy_port(forwards: Collection[int]) -> int:
    return next(port for port in range(PROXY, PROXY + len(forwards) + 1) if port not in forwards)


def variables(port: int) -> dict[str, str]:
    """How programs are told of a proxy: each in its own way."""
    url = f"http://127.0.0.1:{port}"
    both = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
    direct = "127.0.0.1,localhost,::1"
    return {
        **dict.fromkeys(both, url),
        "NO_PROXY": direct,
        "no_proxy": direct,
        "NODE_USE_ENV_PROXY": "1",
    }


@asynccontextmanager
async def opened(pid: int, hosts: Collection[str], forwards: Sequence[int]) -> AsyncGenerator[None]:
    """While this lasts, the network of that process has a hatch to these hosts (`host:port`), and to these ports of our
    own loopback."""
    hatches = await _hatches(pid, (proxy_port(forwards), *forwards))
    allowed = frozenset(each.lower() for each in hosts)
    async with AsyncExitStack() as stack:
        for hatch, port in zip(hatches, (None, *forwards), strict=True):
            serve = _Through(port) if port is not None else _Proxy(allowed)
            stack.push_async_callback(serve.gone)
            server = await asyncio.start_server(serve.came, sock=hatch, limit=_HEAD)
            stack.callback(server.close)
        yield


async def _hatches(pid: int, ports: Sequence[int]) -> list[socket.socket]:
    """Made inside by a process of its own: whoever goes into another network cannot come back."""
    ours, theirs = socket.socketpair()
    try:
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", str(Path(netns_helper.__file__).resolve()), str(pid), *map(str, ports),
                    stdin=asyncio.subprocess.DEVNULL, stdout=theirs.fileno(), stderr=asyncio.subprocess.PIPE, env={},
                )  # fmt: skip
            _, said = await process.communicate()
            if process.returncode != 0:
                why = said.decode(errors="replace").strip()[-300:]
                raise Failed(f"the program was not started: its network cannot be made ({why})")
            _, fds, _, _ = socket.recv_fds(ours, 16, len(ports))
    except OSError as error:
        raise Failed(f"the program was not started: its network cannot be made ({error})") from error
    found = [socket.socket(fileno=fd) for fd in fds]
    for each in found:
        each.setblocking(False)
    return found


class _Connections:
    """Those that are open; all of them end with the guest."""

    def __init__(self) -> None:
        self._open: set[asyncio.StreamWriter] = set()

    async def gone(self) -> None:
        for each in tuple(self._open):
            each.close()

    async def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                await self.serve(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def joined(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        first: bytes = b"",
    ) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            await self.alone(writer)
            return
        self._open.add(far_writer)
        try:
            if first:
                far_writer.write(first)
            else:
                await self.welcome(writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pumped(reader, far_writer))
                both.create_task(_pumped(far_reader, writer))
        finally:
            self._open.discard(far_writer)
            far_writer.close()

    async def welcome(self, writer: asyncio.StreamWriter) -> None:
        """Said when the other side is there."""

    async def alone(self, writer: asyncio.StreamWriter) -> None:
        """Said when it cannot be reached."""


class _Through(_Connections):
    """A port of our own loopback, as it is."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.joined(reader, writer, "127.0.0.1", self._port)


class _Proxy(_Connections):
    """An HTTP proxy for a few hosts: `CONNECT host:port`, or a request that names its whole address."""

    def __init__(self, allowed: Collection[str]) -> None:
        super().__init__()
        self._allowed = allowed

    async def welcome(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def alone(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_REFUSAL % b"502 Bad Gateway")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        method, _, target = line.decode("latin-1").partition(" ")
        target, _, version = target.rpartition(" ")
        plain = target.startswith("http://")
        place, slash, path = target.removeprefix("http://").partition("/")
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "80")
        if (
            (method != "CONNECT" and not plain)
            or not port.isdecimal()
            or f"{host}:{port}".lower() not in self._allowed
        ):
            writer.write(_REFUSAL % b"403 Forbidden")
            return
        first = (
            f"{method} {slash or '/'}{path} {version}\r\n".encode("latin-1") + _closing(rest)
            if plain
            else b""
        )
        await self.joined(reader, writer, host, int(port), first)


def _closing(head: bytes) -> bytes:
    """One request a connection: the next one is judged anew."""
    lines = [
        line
        for line in head.split(b"\r\n")
        if not line.lower().startswith((b"connection:", b"proxy-connection:", b"proxy-authorization:"))
    ]
    return b"\r\n".join([b"Connection: close", *lines])


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
