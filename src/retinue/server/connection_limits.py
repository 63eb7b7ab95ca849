"""The line: one connection, from the kernel's socket to a request. Whoever says too much, too slowly or too many things
at once is cut off here, before anything of ours is asked."""

import asyncio
import os
import socket
import struct
from enum import StrEnum
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from retinue.domain.value import value
from retinue.server.error_responses import Turned


class Way(StrEnum):
    """By which way in a request came. The listener knows it, and no header says it."""

    SOCKET = "socket"
    """The socket in the home: the kernel vouches that it is the same user."""
    PAGE = "page"
    """The port: anybody, until a key says who."""


@value
class Limits:
    """How much a connection may say, and how slowly."""

    url: int = 8_192
    headers: int = 100
    head: int = 32_768
    """Bytes from the first of a request to the end of its headers."""
    body: int = 4 * 1024 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    stall_seconds: float = 30.0
    """How long somebody who is being answered may read nothing at all."""
    linger_seconds: float = 1.0
    """How long one who is turned away while still speaking is listened to, so that the answer reaches them."""
    connections: int = 256
    """By each way in: a crowd before the page does not keep the command line out."""


class Line(HttpToolsProtocol):
    """uvicorn's, behind limits. `app_state` brings them and all lines there are; each request's state says its way."""

    way: Way = Way.PAGE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: Limits = self.app_state["limits"]
        self._lines: set[Line] = self.app_state["lines"]
        self.since = self.loop.time()
        self.answering = False
        self._deaf = False
        """Nothing more is heard: the connection ends with what is being said."""
        self._in_head = True
        self._head = 0
        self._owed = False
        """A request has begun and is not whole."""
        self._leaving = False
        self._why: Turned | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._unread = 0

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        self.way = Way.SOCKET if peer.family == socket.AF_UNIX else Way.PAGE
        if self.way is Way.SOCKET and _user(peer) != os.geteuid():
            self._deaf = True
            transport.abort()
        elif not self._has_room():
            self._turn(Turned(503, "too many connections are open: close some, or try again in a moment"))
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        for timer in (self._deadline, self._watch):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _has_room(self) -> bool:
        """Where there is none, whoever has been silent longest gives way; one that is being answered never does."""
        crowd = [each for each in self._lines if each.way is self.way]
        if len(crowd) < self._limits.connections:
            self._lines.add(self)
            return True
        silent = [each for each in crowd if not each.answering]
        if not silent:
            return False
        longest = min(silent, key=lambda each: each.since)
        self._lines.discard(longest)
        longest.transport.abort()
        self._lines.add(self)
        return True

    # what is said

    def data_received(self, data: bytes) -> None:
        if self._in_head and not self._deaf:
            room = self._limits.head - self._head
            self._head += len(data)
            if data[:room]:
                super().data_received(data[:room])
            data = data[room:]
            if data and self._in_head and not self._deaf:
                self._turn(Turned(431, f"the head of a request is at most {self._limits.head} bytes"))
        if data and not self._deaf:
            super().data_received(data)
        if self._in_head and not self._deaf and not self.answering and self.timeout_keep_alive_task is None:
            self._await_head()

    def on_message_begin(self) -> None:
        if self.answering:  # a second request before the first is answered: it is not heard, as HTTP allows
            self.cycle.keep_alive = False
            self._deaf = True
            raise _Enough
        self._owed = True
        super().on_message_begin()
        self.scope["state"] = {**self.app_state, "way": self.way, "abort": self.transport.abort}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url:
            self._stop(Turned(414, f"an address is at most {self._limits.url} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            self._stop(Turned(431, f"a request has at most {self._limits.headers} headers"))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._forget_deadline()
        if not self.url.startswith(b"/"):
            self._stop(Turned(400, "the target of a request is a path that begins with /"))
        self.answering = True
        super().on_headers_complete()
        self.cycle.transport = _Leaving(self)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._owed, self._in_head, self._head = False, True, 0

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        self.answering = False
        super().on_response_complete()
        if self._owed:  # nobody wanted the rest of what it says
            self.leave()

    def _unsupported_upgrade_warning(self) -> None:
        """No other protocol is spoken here: the request was answered as what it is, and nothing more is heard."""
        self._deaf = True
        self.cycle.keep_alive = False

    # turning away, and leaving

    def _stop(self, why: Turned) -> None:
        self._why = why
        raise _Enough

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (it has one message for everything)
        if not self._deaf:
            self._turn(self._why or Turned(400, "this is not HTTP that can be understood"))

    def _turn(self, why: Turned) -> None:
        self._deaf = True
        self._forget_deadline()
        if self.answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(why.raw())
        self.leave()

    def leave(self) -> None:
        """Closes, once what was said is read. Whoever is still speaking is heard out for a moment, into nothing: closed
        before that, the kernel would take the answer away from them."""
        self._deaf = True
        self._watch_reading()
        if self._leaving or self.transport.is_closing():
            return
        self._leaving = True
        if self._owed and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._deadline = self.loop.call_later(self._limits.linger_seconds, self.transport.close)
        else:
            self.transport.close()

    # time

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.head_seconds, self._slow)

    def _slow(self) -> None:
        self._deadline = None
        if self._head:
            self._turn(Turned(408, f"a request has {self._limits.head_seconds:g} s to say its headers"))
        else:
            self.transport.close()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._watch is not None and not self.transport.is_closing():
            self._watch.cancel()
            self._watch = None

    def _watch_reading(self) -> None:
        if self._watch is None:
            self._unread = self.transport.get_write_buffer_size()
            self._watch = self.loop.call_later(self._limits.stall_seconds, self._looked)

    def _looked(self) -> None:
        """Whoever read nothing since the last look is cut off, and what was kept for them is free."""
        self._watch = None
        if self.transport.get_write_buffer_size() >= self._unread:
            self.transport.abort()
        else:
            self._watch_reading()


class _Enough(Exception):
    """Ends the reading of a request."""


class _Leaving(asyncio.Transport):
    """What the answer to one request is written to: it leaves by the line's own way of leaving."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self._line.transport.write(data)

    def is_closing(self) -> bool:
        return self._line.transport.is_closing()

    def close(self) -> None:
        self._line.leave()


def _user(peer: socket.socket) -> int:
    """Whose process is at the other end, by the kernel's word."""
    _pid, uid, _gid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid
