"""The connection to one configured MCP server, opened on first use and again after it was lost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from retinue.domain.mcp import (
    McpServerConfig,
    McpTool,
    PinnedTool,
    ToolComparison,
    TrustState,
    compare_with_pins,
    qualified_tool_name,
)
from retinue.errors import Failed, Refused
from retinue.mcp.client import ConnectionLost, McpClient, format_stderr_suffix
from retinue.mcp.tool_result import result_text

SHUTDOWN_GRACE_S = 1.0
"""Time for a server to exit by itself when it is no longer needed."""
OUTCOME_UNKNOWN = "the outcome is unknown"

OpenClient = Callable[[McpServerConfig], Awaitable[McpClient]]
"""Start the server's program or prepare its HTTP transport; the protocol is not initialized yet."""
OnToolChanged = Callable[[ToolComparison], None]
"""Called with a tool that no longer matches its pinned description."""


class McpConnection:
    """A configured server, shared by all callers; requests are told apart by id."""

    def __init__(
        self,
        server: McpServerConfig,
        open_client: OpenClient,
        *,
        version: str,
        on_tool_changed: OnToolChanged,
    ) -> None:
        self._server = server
        self._open_client = open_client
        self._version = version
        self._on_tool_changed = on_tool_changed
        self._started_client: McpClient | None = None
        """The client to close."""
        self._ready_client: McpClient | None = None
        """The same client, once it is initialized."""
        self._stderr_tail = ""
        self._lock = asyncio.Lock()

    async def list_tools(self) -> list[McpTool]:
        """Return the tools the server offers now."""
        async with self._request_timeout():
            return (await self._connect_and_list())[1]

    async def call_tool(self, pinned: PinnedTool, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its text.

        Before each call, the tool is compared with the pinned description.

        Raises:
            Refused: the tool is not as it was trusted.
            Failed: the call failed, timed out, or the server was lost.
        """
        tool = pinned.tool.name
        name = qualified_tool_name(self._server.name, tool)
        async with self._request_timeout() as error_details:
            client, tools = await self._connect_and_list()
            (comparison,) = compare_with_pins([each for each in tools if each.name == tool], {tool: pinned})
            if comparison.trust_state is not TrustState.TRUSTED:
                self._on_tool_changed(comparison)
                raise Refused(refusal_message(self._server.name, comparison))
            error_details.append(f"; it was running {name}, and {OUTCOME_UNKNOWN}")
            try:
                result = await client.call_tool(tool, arguments)
            except ConnectionLost as error:
                raise Failed(f"{error.sentence}{error_details[0]}{error.stderr_suffix}") from error
        return result_text(result)

    async def close(self) -> None:
        async with self._lock:
            await self._close_client(SHUTDOWN_GRACE_S)

    async def _connect_and_list(self) -> tuple[McpClient, list[McpTool]]:
        """Return a connected client and the server's tools.

        Reconnects once if the connection turns out to be lost. Repeating is safe, as nothing has been called
        yet.
        """
        client = await self._ensure_connected()
        try:
            return client, await client.list_tools()
        except ConnectionLost:
            client = await self._ensure_connected()
            return client, await client.list_tools()

    async def _ensure_connected(self) -> McpClient:
        """Return the connected client or connect; concurrent callers share one start."""
        async with self._lock:
            if self._ready_client is not None and self._ready_client.lost_error is None:
                return self._ready_client
            await self._close_client(0)
            self._started_client = await self._open_client(self._server)
            try:
                await self._started_client.initialize(version=self._version)
            except BaseException:
                await self._close_client(0)
                raise
            self._ready_client = self._started_client
            return self._ready_client

    @asynccontextmanager
    async def _request_timeout(self) -> AsyncGenerator[list[str]]:
        """Apply the server's timeout to the block.

        Text added to the yielded list is appended to the error message. On a timeout, a server process
        that Retinue started is ended, and the next call starts it again. A remote server may be busy with
        other clients and is left alone.
        """
        timeout_s, error_details = self._server.timeout_seconds, list[str]()
        try:
            async with asyncio.timeout(timeout_s):
                yield error_details
        except TimeoutError as error:
            reason = f"it did not answer within {timeout_s:g} s"
            if self._ready_client is None or self._ready_client.timeout_suffix:
                reason = await self._end_after_timeout(reason)
            message = f"MCP server {self._server.name}: {reason}{''.join(error_details)}{format_stderr_suffix(self._stderr_tail)}"
            raise Failed(message) from error

    async def _end_after_timeout(self, reason: str) -> str:
        """End the client after a timeout; concurrent callers get the same error."""
        client = self._ready_client
        reason = f"{reason}{'' if client is None else client.timeout_suffix}"
        if client is not None:
            client.mark_lost(reason)
        async with self._lock:
            if self._ready_client is client:
                await self._close_client(0)
        return reason

    async def _close_client(self, grace_s: float) -> None:
        """Close the client. If interrupted, the next caller finishes the job."""
        self._ready_client = None
        if self._started_client is not None:
            await self._started_client.close(grace_s=grace_s)
            self._stderr_tail = self._started_client.stderr_tail
            self._started_client = None


def refusal_message(server: str, comparison: ToolComparison) -> str:
    """Return why a tool is not called, and what the user can do about it."""
    name = qualified_tool_name(server, comparison.name)
    if comparison.trust_state is TrustState.GONE:
        return f"{name} was not called, because its server no longer offers it."
    reason = comparison.problem or "its description has changed since the user trusted it"
    return f"{name} was not called: {reason}. The user can review and trust it with `retinue mcp trust {server}`."
