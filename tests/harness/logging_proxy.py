"""An HTTP proxy on loopback that records what passes through it: CONNECT and requests with absolute URLs."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

AUTHENTICATE = (
    b"HTTP/1.1 407 Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n"
)


@dataclass(slots=True, kw_only=True)
class LoggingProxy:
    """A running proxy."""

    credentials: str = ""
    """`USER:PASSWORD` that it requires; empty: none."""
    answer: bytes | None = None
    """Sent to every request instead of connecting."""
    waits: bool = False
    """Whether it keeps the connection open after that."""
    connected: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    """Sent when a tunnel is open."""
    routes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Port on loopback per `host:port`; any other request goes to where it says."""
    url: str = ""
    heads: list[bytes] = field(default_factory=list[bytes])
    """Heads of the requests as received."""
    tunnelled: bytearray = field(default_factory=bytearray)
    """Everything that clients sent through tunnels."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    @property
    def requests(self) -> list[str]:
        """The method and target of each request."""
        return [head.partition(b" HTTP/")[0].decode() for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._serve_request(reader, writer)
        writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        expected = f"Proxy-Authorization: Basic {b64encode(self.credentials.encode()).decode()}\r\n".encode()
        if self.answer is not None or (self.credentials and expected not in head):
            writer.write(AUTHENTICATE if self.answer is None else self.answer)
            await writer.drain()
            if self.waits:
                await reader.read()
            return
        method, target, _ = head.decode("latin-1").split(" ", 2)
        address = target if method == "CONNECT" else target.removeprefix("http://").partition("/")[0]
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "80")
        route = self.routes.get(f"{host}:{port}")
        server_reader, server_writer = await asyncio.open_connection(
            host.strip("[]") if route is None else "127.0.0.1", route or int(port)
        )
        self.writers.append(server_writer)
        if method == "CONNECT":
            writer.write(self.connected)
        else:
            path = target.removeprefix(f"http://{address}") or "/"
            lines = head.replace(target.encode(), path.encode(), 1).split(b"\r\n")
            server_writer.write(
                b"\r\n".join(each for each in lines if not each.lower().startswith(b"proxy-"))
            )
        await asyncio.gather(
            copy_stream(reader, server_writer, self.tunnelled), copy_stream(server_reader, writer)
        )


async def copy_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: bytearray | None = None
) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            if log is not None:
                log += piece
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def open_proxy(
    *,
    credentials: str = "",
    answer: bytes | None = None,
    waits: bool = False,
    routes: Mapping[str, int] | None = None,
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[LoggingProxy]:
    proxy = LoggingProxy(credentials=credentials, answer=answer, waits=waits, routes=routes or {})
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(proxy.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    async with server:
        proxy.url = f"http{'s' if context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            for each in proxy.writers:
                each.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in proxy.writers:
                with suppress(OSError):
                    await each.wait_closed()
