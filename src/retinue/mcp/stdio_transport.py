"""A server at the other end of two pipes: requests by number, each answered once, or told why it is not."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from retinue.errors import Failed
from retinue.mcp.client import Client, Lost, quoted, read, written

MOST_UNASKED = 32_000_000
"""Bytes that are no answer, since something was last asked: a server that does not stop talking is ended."""


class Line(Protocol):
    """A way to a program that runs."""

    @property
    def last_words(self) -> str: ...
    def send(self, line: bytes) -> None: ...
    def stop(self, why: str) -> None:
        """Ends it at once, without waiting for that."""
        ...

    async def end(self, *, patience: float = 0.0) -> None:
        """Returns when nothing of it lives."""
        ...


class Piped(Client):
    """The line calls `heard` and `lost`; nothing here waits in a task of its own."""

    farewell = ", and was ended with all that it had started"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.line: Line | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._unasked = 0

    @property
    def last_words(self) -> str:
        return "" if self.line is None else self.line.last_words

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Who stops waiting tells the server so."""
        if self.gone is not None:
            raise self.gone
        self._count += 1
        self._unasked = 0
        number = self._count
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send({"id": number, "method": method, "params": params})
        try:
            return await answer
        except asyncio.CancelledError:
            if method != "initialize":
                given_up = {"requestId": number, "reason": "nobody waits for it"}
                self._send({"method": "notifications/cancelled", "params": given_up})
            raise
        finally:
            self._waiting.pop(number, None)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def heard(self, line: bytes) -> None:
        """One line of the server's. What is no message of the protocol is passed over, and so is an answer for which
        nobody waits any more."""
        message = read(line)
        if message is not None and (reply := message.reply()) is not None:
            self._send(reply)
        number = None if message is None or message.method is not None else message.id
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if message is None or waiting is None or waiting.done():
            self._noise(line)
            return
        try:
            waiting.set_result(self.result(message))
        except Failed as error:
            waiting.set_exception(error)

    def lost(self, why: str) -> None:
        gone = Lost(f"the MCP server {self._name} is gone: {why}", quoted(self.last_words))
        self.gone = self.gone or gone
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(gone)

    async def end(self, *, patience: float = 0.0) -> None:
        if self.line is not None:
            await self.line.end(patience=patience)

    def _noise(self, line: bytes) -> None:
        self._unasked += len(line)
        if self._unasked > MOST_UNASKED and self.line is not None:
            self.line.stop("it does not stop talking")

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.line is not None:
            self.line.send(written(message))
