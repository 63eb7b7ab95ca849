"""An MCP client independent of the transport: requests, responses and the list of tools."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from retinue.domain.mcp import HINT_NAMES, McpTool
from retinue.domain.sanitize import safe_name
from retinue.errors import Failed

PROTOCOL_VERSION = "2025-06-18"
SUPPORTED_VERSIONS = frozenset({"2024-11-05", "2025-03-26", PROTOCOL_VERSION, "2025-11-25"})
"""Protocol versions in which tools are listed and called in the way implemented here."""

MAX_TOOLS = 1_000
MAX_PAGES = 50
"""Limit for one list of tools."""
_MAX_QUOTED_CHARS = 500
_PONG: Mapping[str, Any] = {"result": {}}
_UNKNOWN_METHOD = {"error": {"code": -32601, "message": "this client only lists and calls tools"}}


class ConnectionLost(Failed):
    """The server has ended or was ended; the outcome of open requests is unknown.

    The end of its standard error is appended to the message.
    """

    def __init__(self, sentence: str, stderr_suffix: str = "") -> None:
        super().__init__(f"{sentence}{stderr_suffix}")
        self.sentence = sentence
        self.stderr_suffix = stderr_suffix


_EMPTY_OBJECT = msgspec.Raw(b"{}")


class RpcMessage(msgspec.Struct, gc=False):
    """A JSON-RPC request, notification or response, depending on which fields are set."""

    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = _EMPTY_OBJECT
    error: Any = None

    def automatic_reply(self) -> Mapping[str, Any] | None:
        """Return the reply to a request of the server, or None if this is not a request."""
        if self.method is None or self.id is None:
            return None
        return {"id": self.id, **(_PONG if self.method == "ping" else _UNKNOWN_METHOD)}


_MESSAGE_DECODER = msgspec.json.Decoder(RpcMessage)
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])


def decode_message(raw: bytes) -> RpcMessage | None:
    """Decode a message, or return None if it is not one."""
    try:
        return _MESSAGE_DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_message(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **message})


class McpClient(ABC):
    """A client of one running server."""

    timeout_suffix = ""
    """End of the error message on a timeout: what happens to the server; empty if it keeps running."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost_error: ConnectionLost | None = None
        """Why the connection is lost; None while it is open."""
        self.protocol_version = ""
        """The negotiated protocol version; empty before that."""

    @property
    def stderr_tail(self) -> str:
        return ""

    @abstractmethod
    async def send_request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            Failed: the server reported an error.
            ConnectionLost: the server is gone.
        """

    @abstractmethod
    async def send_notification(self, method: str, params: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def mark_lost(self, reason: str) -> None:
        """Mark the connection as lost and fail all open requests."""

    @abstractmethod
    async def close(self, *, grace_s: float = 0.0) -> None:
        """Close the connection; return when nothing of the server is left on this machine."""

    async def initialize(self, *, version: str) -> None:
        """Negotiate the protocol version; raise Failed if the server's is not supported."""
        result = await self.send_request(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {},
                "clientInfo": {"name": "retinue", "version": version},
            },
        )
        server_version = result.get("protocolVersion")
        if server_version not in SUPPORTED_VERSIONS:
            raise Failed(
                f"The MCP server {self._name} uses protocol version {_shorten_server_text(server_version)}, "
                f"which is not supported. Supported versions: {', '.join(sorted(SUPPORTED_VERSIONS))}."
            )
        self.protocol_version = server_version
        await self.send_notification("notifications/initialized", {})

    async def list_tools(self) -> list[McpTool]:
        """Return the tools that the server offers now."""
        tools: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.send_request("tools/list", {"cursor": cursor} if cursor else {})
            items: Any = page.get("tools")
            if not isinstance(items, list):
                raise Failed(f"The MCP server {self._name} did not return a list of tools.")
            tools += [_parse_tool(each) for each in cast("list[Any]", items)]
            cursor = page.get("nextCursor")
            if len(tools) > MAX_TOOLS or not (isinstance(cursor, str) and cursor):
                break
        if len(tools) > MAX_TOOLS or cursor:
            raise Failed(f"The MCP server {self._name} offers more than {MAX_TOOLS:,} tools.")
        return tools

    async def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.send_request("tools/call", {"name": tool, "arguments": arguments})

    def parse_result(self, response: RpcMessage) -> dict[str, Any]:
        if response.error is not None:
            error: Any = response.error
            error_text: Any = error.get("message") if isinstance(error, dict) else error  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  (as received)
            raise Failed(f"The MCP server {self._name} reported an error: {_shorten_server_text(error_text)}")
        try:
            return _OBJECT_DECODER.decode(response.result)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Failed(f"The MCP server {self._name} returned an invalid result.") from error


def format_stderr_suffix(stderr_tail: str) -> str:
    """Return the end of an error message about a lost server."""
    return f"; end of its standard error: {stderr_tail}" if stderr_tail else ""


def _parse_tool(item: Any) -> McpTool:
    """Parse one tool as the server describes it; whether it is acceptable is checked elsewhere."""
    fields: dict[str, Any] = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    schema: Any = fields.get("inputSchema")
    annotations: Any = fields.get("annotations")
    hints: dict[str, Any] = cast("dict[str, Any]", annotations) if isinstance(annotations, dict) else {}
    return McpTool(
        name=str(fields.get("name") or ""),
        description=str(fields.get("description") or ""),
        schema=cast("dict[str, Any]", schema) if isinstance(schema, dict) else {},
        hints={hint: hints[hint] for hint in HINT_NAMES if isinstance(hints.get(hint), bool)},
    )


def _shorten_server_text(value: Any) -> str:
    text = safe_name(str(value))
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"
