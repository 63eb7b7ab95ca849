"""The protocol: requests by number over one line to a server, each answered once, or told why it is not."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast

import msgspec

from retinue.domain.offer import HINTS, Offer
from retinue.domain.safe import shown
from retinue.errors import Failed

VERSION = "2025-06-18"
SPOKEN = frozenset({"2024-11-05", "2025-03-26", VERSION, "2025-11-25"})
"""Versions in which tools are listed and called as we do it."""

MOST_TOOLS = 1_000
MOST_PAGES = 50
"""Of one list of tools."""
MOST_UNASKED = 32_000_000
"""Bytes that are no answer, since something was last asked: a server that does not stop talking is ended."""
_QUOTED = 500
_PONG: Mapping[str, Any] = {"result": {}}
_UNKNOWN_METHOD = {"error": {"code": -32601, "message": "this client only lists and calls tools"}}


class Line(Protocol):
    """A way to a server that runs."""

    @property
    def last_words(self) -> str: ...
    def send(self, line: bytes) -> None: ...
    def stop(self, why: str) -> None:
        """Ends it at once, without waiting for that."""
        ...

    async def end(self, *, patience: float = 0.0) -> None:
        """Returns when nothing of it lives."""
        ...


class Lost(Failed):
    """The server is gone, or was ended; nobody knows what it did with what it was asked. What it said last stands
    behind what is known."""

    def __init__(self, sentence: str, last_words: str) -> None:
        super().__init__(f"{sentence}{last_words}")
        self.sentence = sentence
        self.last_words = last_words


_NOTHING = msgspec.Raw(b"{}")


class _Message(msgspec.Struct, gc=False):
    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = _NOTHING
    error: Any = None


_MESSAGE = msgspec.json.Decoder(_Message)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Client:
    """Speaks with one server while it lives. The line calls `heard` and `lost`; nothing here waits in a task of its
    own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line: Line | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._unasked = 0
        self.gone: Lost | None = None
        """Why there is nobody at the other end; None while there is."""

    async def begin(self, line: Line, *, version: str) -> None:
        """Introduces us. Failed says why this server cannot be spoken with."""
        self._line = line
        said = await self.ask(
            "initialize",
            {
                "protocolVersion": VERSION,
                "capabilities": {},
                "clientInfo": {"name": "retinue", "version": version},
            },
        )
        spoken = said.get("protocolVersion")
        if spoken not in SPOKEN:
            raise Failed(f"the MCP server {self._name} speaks {_quoted(spoken)}, which is not known here")
        self.tell("notifications/initialized", {})

    async def offers(self) -> list[Offer]:
        """The tools that the server offers now."""
        found: list[Offer] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self.ask("tools/list", {"cursor": cursor} if cursor else {})
            listed: Any = page.get("tools")
            if not isinstance(listed, list):
                raise Failed(f"the MCP server {self._name} answered with no list of tools")
            found += [_offer(each) for each in cast("list[Any]", listed)]
            cursor = page.get("nextCursor")
            if len(found) > MOST_TOOLS or not (isinstance(cursor, str) and cursor):
                break
        if len(found) > MOST_TOOLS or cursor:
            raise Failed(f"the MCP server {self._name} offers more than {MOST_TOOLS:,} tools")
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.ask("tools/call", {"name": tool, "arguments": arguments})

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result; Failed with the server's own words, Lost when there is nobody any more. Who stops waiting tells
        the server so."""
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
                self.tell("notifications/cancelled", {"requestId": number, "reason": "nobody waits for it"})
            raise
        finally:
            self._waiting.pop(number, None)

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def heard(self, line: bytes) -> None:
        """One line of the server's. What is no message of the protocol is passed over, and so is an answer for which
        nobody waits any more."""
        try:
            message = _MESSAGE.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._noise(line)
            return
        if message.method is not None and message.id is not None:
            answer = _PONG if message.method == "ping" else _UNKNOWN_METHOD
            self._send({"id": message.id, **answer})
        waiting = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if message.method is not None or waiting is None or waiting.done():
            self._noise(line)
            return
        try:
            waiting.set_result(self._result(message))
        except Failed as error:
            waiting.set_exception(error)

    def _noise(self, line: bytes) -> None:
        self._unasked += len(line)
        if self._unasked > MOST_UNASKED and self._line is not None:
            self._line.stop("it does not stop talking")

    def lost(self, why: str) -> None:
        """There will be no more answers."""
        words = "" if self._line is None else self._line.last_words
        gone = Lost(f"the MCP server {self._name} is gone: {why}", quoted(words))
        self.gone = self.gone or gone
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(gone)

    def _result(self, message: _Message) -> dict[str, Any]:
        if message.error is not None:
            said: Any = message.error.get("message") if isinstance(message.error, dict) else message.error  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (as it was said)
            raise Failed(f"the MCP server {self._name} refused: {_quoted(said)}")
        try:
            return _OBJECT.decode(message.result)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Failed(f"the MCP server {self._name} answered with what is no result") from error

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._line is not None:
            self._line.send(msgspec.json.encode({"jsonrpc": "2.0", **message}))


def quoted(last_words: str) -> str:
    """The end of a sentence about a server that is gone."""
    return f"; its last words: {last_words}" if last_words else ""


def _offer(said: Any) -> Offer:
    """As it stands; whether it can be a tool is judged elsewhere."""
    facts: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    schema: Any = facts.get("inputSchema")
    claims: Any = facts.get("annotations")
    hints: dict[str, Any] = cast("dict[str, Any]", claims) if isinstance(claims, dict) else {}
    return Offer(
        name=str(facts.get("name") or ""),
        description=str(facts.get("description") or ""),
        schema=cast("dict[str, Any]", schema) if isinstance(schema, dict) else {},
        hints={hint: hints[hint] for hint in HINTS if isinstance(hints.get(hint), bool)},
    )


def _quoted(said: Any) -> str:
    text = shown(str(said))
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
