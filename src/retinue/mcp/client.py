"""The protocol: what is asked of a server, by whatever way, and what its answers mean."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.domain.mcp_tool import HINTS, Offer
from retinue.domain.sanitize import shown
from retinue.errors import Failed

VERSION = "2025-06-18"
SPOKEN = frozenset({"2024-11-05", "2025-03-26", VERSION, "2025-11-25"})
"""Versions in which tools are listed and called as we do it."""

MOST_TOOLS = 1_000
MOST_PAGES = 50
"""Of one list of tools."""
_QUOTED = 500
_PONG: Mapping[str, Any] = {"result": {}}
_UNKNOWN_METHOD = {"error": {"code": -32601, "message": "this client only lists and calls tools"}}


class Lost(Failed):
    """The server is gone, or was ended; nobody knows what it did with what it was asked. What it said last stands
    behind what is known."""

    def __init__(self, sentence: str, last_words: str = "") -> None:
        super().__init__(f"{sentence}{last_words}")
        self.sentence = sentence
        self.last_words = last_words


_NOTHING = msgspec.Raw(b"{}")


class Message(msgspec.Struct, gc=False):
    """A request, a notification or an answer, by which of these are there."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = _NOTHING
    error: Any = None

    def reply(self) -> Mapping[str, Any] | None:
        """What a request of the server's is answered with; None: it is none."""
        if self.method is None or self.id is None:
            return None
        return {"id": self.id, **(_PONG if self.method == "ping" else _UNKNOWN_METHOD)}


_MESSAGE = msgspec.json.Decoder(Message)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def read(raw: bytes) -> Message | None:
    """None: it is no message of the protocol."""
    try:
        return _MESSAGE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def written(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **message})


class Client(ABC):
    """Speaks with one server while it is there."""

    farewell = ""
    """What becomes of it when it does not answer in time, as the end of a sentence."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.gone: Lost | None = None
        """Why there is nobody at the other end; None while there is."""
        self.spoken = ""
        """The version of the protocol that was agreed on; empty before that."""

    @property
    def last_words(self) -> str:
        return ""

    @abstractmethod
    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result; Failed with the server's own words, Lost when there is nobody any more."""

    @abstractmethod
    async def tell(self, method: str, params: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def lost(self, why: str) -> None:
        """There will be no more answers."""

    @abstractmethod
    async def end(self, *, patience: float = 0.0) -> None:
        """Returns when nothing of it is left here."""

    async def begin(self, *, version: str) -> None:
        """Introduces us. Failed says why this server cannot be spoken with."""
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
        self.spoken = spoken
        await self.tell("notifications/initialized", {})

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

    def result(self, answer: Message) -> dict[str, Any]:
        if answer.error is not None:
            said: Any = answer.error.get("message") if isinstance(answer.error, dict) else answer.error  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (as it was said)
            raise Failed(f"the MCP server {self._name} refused: {_quoted(said)}")
        try:
            return _OBJECT.decode(answer.result)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Failed(f"the MCP server {self._name} answered with what is no result") from error


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
