"""An MCP client over HTTP: posts each message and reads its response from the reply stream."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from retinue.errors import NotFound
from retinue.mcp.client import ConnectionLost, McpClient, RpcMessage, decode_message, encode_message


class MessageTransport(Protocol):
    """Posts messages to a server."""

    def post(self, message: bytes, *, protocol_version: str) -> AsyncGenerator[bytes]:
        """Post a message and yield the messages of the response as they arrive.

        `protocol_version` is the negotiated version. Raises NotFound if the server has ended the session.
        """
        ...

    async def close(self) -> None: ...


class HttpMcpClient(McpClient):
    """An MCP client that receives only responses to its own messages."""

    def __init__(self, name: str, transport: MessageTransport) -> None:
        super().__init__(name)
        self._transport = transport
        self._last_id = 0

    async def send_request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self.lost_error is not None:
            raise self.lost_error
        self._last_id += 1
        request_id = self._last_id
        try:
            response = await self._request_response(
                encode_message({"id": request_id, "method": method, "params": params}), request_id
            )
        except NotFound as error:
            raise self._set_lost_error(str(error)) from error
        if response is None:
            raise self._set_lost_error("its response ended before it was complete")
        return self.parse_result(response)

    async def send_notification(self, method: str, params: Mapping[str, Any]) -> None:
        await self._post_message(encode_message({"method": method, "params": params}))

    def mark_lost(self, reason: str) -> None:
        self._set_lost_error(reason)

    async def close(self, *, grace_s: float = 0.0) -> None:  # noqa: ARG002  (the server is not ours: nothing to wait for)
        await self._transport.close()

    def _set_lost_error(self, reason: str) -> ConnectionLost:
        self.lost_error = self.lost_error or ConnectionLost(
            f"Lost connection to the MCP server {self._name}: {reason}"
        )
        return self.lost_error

    async def _request_response(self, message: bytes, request_id: int) -> RpcMessage | None:
        """Return the response to one request, or None if it did not come.

        Requests of the server in between are answered.
        """
        async with aclosing(
            self._transport.post(message, protocol_version=self.protocol_version)
        ) as messages:
            async for raw in messages:
                received = decode_message(raw)
                if received is not None and (reply := received.automatic_reply()) is not None:
                    await self._post_message(encode_message(reply))
                elif received is not None and received.method is None and received.id == request_id:
                    return received
        return None

    async def _post_message(self, message: bytes) -> None:
        async with aclosing(
            self._transport.post(message, protocol_version=self.protocol_version)
        ) as messages:
            async for _ in messages:
                pass
