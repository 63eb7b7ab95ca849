"""Requests to a model's server: POST by HTTP/1.1, on connections that are kept from one to the next."""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from retinue.providers.http.connect import Dial, Unreachable, trusting_the_system, where, why
from retinue.providers.http.parser import Answer, Broken

IDLE_SECONDS = 15.0
"""How long a connection is kept that nobody uses."""
AGAIN_SECONDS = 1.0
"""How soon a kept connection breaks if the server had closed it before the request: later it may have been at work."""
ONE_WRITE = 64 * 1024
"""Bytes of a body that leaves together with its head."""
PIECE = 256 * 1024
"""Bytes of a longer body that are handed over before others have their turn."""
MOST_WAITING = 256 * 1024
"""Bytes that came and nobody took, before the server has to wait."""
_REFUSED = 300


class Connection(asyncio.Protocol):
    """One connection, and the request on it. Whoever asked reads the answer and then leaves."""

    __slots__ = ("_ended", "_full", "_poll", "_pool", "_raw", "_sent", "_transport", "_trouble", "_waiter", "_waiting",
                 "answer", "paused", "since")  # fmt: skip

    def __init__(self, pool: "Client", raw: socket.socket | None) -> None:
        self.answer = Answer()
        self.since = 0.0
        """When it was last used."""
        self._pool = pool
        self._raw = raw
        """The socket, if what comes from it is the answer as it stands."""
        self._poll = None if raw is None else _listening(raw)
        self._transport = cast("asyncio.Transport", None)
        self._waiter: asyncio.Future[None] | None = None
        self._trouble: Broken | None = None
        self._waiting = 0
        self.paused = False
        """The server has to wait until what came is taken."""
        self._ended = False
        """The server has said that it says no more."""
        self._full = False
        self._sent = True

    @property
    def over(self) -> bool:
        """All of the answer came and was taken."""
        answer = self.answer
        return answer.ended and not answer.pieces

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether something came that nobody asked for, the end included. What comes by TLS may be for TLS alone."""
        return self._poll is not None and bool(self._poll.poll(0))

    async def ask(self, head: bytes, body: Sequence[bytes], size: int, moved: Callable[[], None]) -> None:
        """Sends a request and waits for the head of its answer."""
        answer = self.answer = Answer()
        self._waiting = 0
        if size < ONE_WRITE:
            self._transport.write(b"".join((head, *body)))
        else:
            await self._send(head, body, moved)
        while not answer.status:
            await self._change()
            moved()

    async def read(self) -> bytes:
        """What came of the body since the last time; nothing when it has ended."""
        answer = self.answer
        while not answer.pieces:
            if answer.ended:
                return b""
            await self._change()
        pieces, answer.pieces = answer.pieces, []
        self._waiting = 0
        if self.paused:
            self.paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def leave(self) -> None:
        """Keeps the connection for the next request if this one is done with, else closes it."""
        answer = self.answer
        if answer.ended and answer.keep and self._sent and not self.paused:
            self._pool.keep(self)
        else:
            self.drop()

    def drop(self) -> None:
        # What is still to be sent is of no use to anybody, and a farewell by TLS would have to be waited for.
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.made(self)

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        try:
            answer.feed(data)
        except Broken as error:
            self._trouble = error
            self._transport.abort()
        else:
            self._waiting += len(data)
            if answer.ended:
                # Nothing that comes now may be taken for the next answer.
                if not answer.keep:
                    self._transport.abort()
            elif self._waiting > MOST_WAITING and not self.paused:
                self.paused = True
                self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    def eof_received(self) -> None:
        # Closing by itself, the transport would first send what is left to send, which may take for ever.
        self._ended = True
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self)
        if self._trouble is None:
            try:
                if exc is not None and self._raw is not None:
                    self._rescue(self._raw)
                self.answer.closed(orderly=self._ended)
            except Broken as error:
                error.__cause__ = exc
                self._trouble = error
        self._wake()

    def _rescue(self, raw: socket.socket) -> None:
        """A server that refuses a long request closes before it has read it all, and then sending fails before its
        answer is read. What has come until now can still be had."""
        try:
            while data := raw.recv(PIECE):
                self.answer.feed(data)
        except OSError:
            return

    async def _send(self, head: bytes, body: Sequence[bytes], moved: Callable[[], None]) -> None:
        """A long request, piece by piece. The rest is not sent to a server that has refused it already."""
        self._sent = False
        self._transport.write(head)
        for piece in _cut(body):
            self._transport.write(piece)
            await asyncio.sleep(0)
            while self._full and not self._refused():
                await self._change()
            if self._refused():
                return
            moved()
        self._sent = True

    def _refused(self) -> bool:
        return self.answer.status >= _REFUSED or self._transport.is_closing()

    async def _change(self) -> None:
        """Waits until something happens to this connection."""
        if self._trouble is not None:
            raise self._trouble
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


class Client:
    """Connections to one server, opened on use. NoUrl when there can be none."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_seconds: float,
        idle_seconds: float = IDLE_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
        context: Callable[[], ssl.SSLContext] = trusting_the_system,
    ) -> None:
        self._where = there = where(url)
        self._head = f"POST {there.target} HTTP/1.1\r\nHost: {there.named}\r\n{_lines(headers)}"
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._again_seconds = again_seconds
        self._context = context
        self._dial = Dial(there.host, there.port)
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        """Those that nobody uses, the newest last."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._gone = asyncio.Event()

    async def post(
        self, headers: Mapping[str, str], body: Sequence[bytes], moved: Callable[[], None] = lambda: None
    ) -> Connection:
        """The connection on which the answer comes, as soon as its head is there. Unreachable, or Broken. Until then
        `moved` is called whenever a piece of a long request has gone, or something came."""
        size = sum(map(len, body))
        head = f"{self._head}{_lines(headers)}Content-Length: {size}\r\n\r\n".encode("latin-1")
        connection = self._kept()
        if connection is not None:
            clock = asyncio.get_running_loop().time
            since = clock()
            try:
                return await _asked(connection, head, body, size, moved)
            except Broken:
                # A server may close a connection at the very moment at which we use it again.
                if connection.answer.begun or clock() - since > self._again_seconds:
                    raise
        return await _asked(await self._opened(), head, body, size, moved)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for each in self._open:
            each.drop()
        if self._open:
            await self._gone.wait()

    def made(self, connection: Connection) -> None:
        self._open.add(connection)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._closed and not self._open:
            self._gone.set()

    def keep(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.since = loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._sweep)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closing and not connection.stale:
                return connection
            connection.drop()
        return None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        old = loop.time() - self._idle_seconds
        for each in self._idle:
            if each.since <= old:
                each.drop()
        left = [each for each in self._idle if each.since > old]
        if left:
            self._timer = loop.call_at(left[0].since + self._idle_seconds, self._sweep)
        self._idle = left

    async def _opened(self) -> Connection:
        there = self._where
        try:
            async with asyncio.timeout(self._connect_seconds):
                raw = await self._dial.socket()
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self, None if there.secure else raw),
                    sock=raw,
                    ssl=self._context() if there.secure else None,
                    server_hostname=there.proven if there.secure else None,
                )
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:
                raise Unreachable(f"no connection within {self._connect_seconds:g} s") from error
            raise Unreachable(why(error)) from error
        if self._closed:
            connection.drop()
        return connection


async def _asked(
    connection: Connection, head: bytes, body: Sequence[bytes], size: int, moved: Callable[[], None]
) -> Connection:
    try:
        await connection.ask(head, body, size, moved)
    except BaseException:
        connection.drop()
        raise
    return connection


def _listening(raw: socket.socket) -> select.poll:
    """What says at once whether anything has come, the end included."""
    poll = select.poll()
    poll.register(raw, select.POLLIN)
    return poll


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {said}\r\n" for name, said in headers.items()])


def _cut(body: Sequence[bytes]) -> Iterator[memoryview]:
    for part in body:
        view = memoryview(part)
        for at in range(0, len(view), PIECE):
            yield view[at : at + PIECE]
