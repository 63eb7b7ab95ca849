"""An MCP client over standard input and output: numbered requests, each resolved or failed once."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from retinue.errors import Failed
from retinue.mcp.client import ConnectionLost, McpClient, decode_message, encode_message, format_stderr_suffix

MAX_UNSOLICITED_BYTES = 32_000_000
"""Bytes outside of responses since the last request at which a server is ended."""


class ServerProcess(Protocol):
    """A running server process."""

    @property
    def stderr_tail(self) -> str: ...
    def send(self, line: bytes) -> None: ...
    def abort(self, reason: str) -> None:
        """Kill the process at once, without waiting for its end."""
        ...

    async def close(self, *, grace_s: float = 0.0) -> None:
        """End the process; return when none of its processes is alive."""
        ...


class StdioMcpClient(McpClient):
    """An MCP client for a server process.

    The process calls `receive_line` and `mark_lost`; the client runs no task of its own.
    """

    timeout_suffix = ", so it was stopped with all its child processes"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.process: ServerProcess | None = None
        self._pending_requests: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._unsolicited_bytes = 0

    @property
    def stderr_tail(self) -> str:
        return "" if self.process is None else self.process.stderr_tail

    async def send_request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and await its response; on cancellation, notify the server."""
        if self.lost_error is not None:
            raise self.lost_error
        self._last_id += 1
        self._unsolicited_bytes = 0
        request_id = self._last_id
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending_requests[request_id] = response
        self._send_message({"id": request_id, "method": method, "params": params})
        try:
            return await response
        except asyncio.CancelledError:
            if method != "initialize":
                cancellation = {
                    "requestId": request_id,
                    "reason": "the caller no longer waits for the result",
                }
                self._send_message({"method": "notifications/cancelled", "params": cancellation})
            raise
        finally:
            self._pending_requests.pop(request_id, None)

    async def send_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self._send_message({"method": method, "params": params})

    def receive_line(self, line: bytes) -> None:
        """Process one line of the server's output.

        Lines that are not messages, and responses to abandoned requests, are skipped.
        """
        message = decode_message(line)
        if message is not None and (reply := message.automatic_reply()) is not None:
            self._send_message(reply)
        request_id = None if message is None or message.method is not None else message.id
        pending = self._pending_requests.get(request_id) if isinstance(request_id, int) else None
        if message is None or pending is None or pending.done():
            self._count_unsolicited(line)
            return
        try:
            pending.set_result(self.parse_result(message))
        except Failed as error:
            pending.set_exception(error)

    def mark_lost(self, reason: str) -> None:
        error = ConnectionLost(
            f"Lost connection to the MCP server {self._name}: {reason}",
            format_stderr_suffix(self.stderr_tail),
        )
        self.lost_error = self.lost_error or error
        for pending in self._pending_requests.values():
            if not pending.done():
                pending.set_exception(error)

    async def close(self, *, grace_s: float = 0.0) -> None:
        if self.process is not None:
            await self.process.close(grace_s=grace_s)

    def _count_unsolicited(self, line: bytes) -> None:
        self._unsolicited_bytes += len(line)
        if self._unsolicited_bytes > MAX_UNSOLICITED_BYTES and self.process is not None:
            self.process.abort("it sent too much unrequested output")

    def _send_message(self, message: Mapping[str, Any]) -> None:
        if self.process is not None:
            self.process.send(encode_message(message))
