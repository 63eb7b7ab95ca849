"""The HTTP transport of an MCP server: posts messages and reads the messages sent in response."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

from retinue.errors import Failed, NotFound
from retinue.http.client import Connection, HttpClient
from retinue.http.connect import InvalidServerUrl, Unreachable
from retinue.http.network import DIRECT, NetworkSettings
from retinue.http.parser import ResponseError, ResponseParser
from retinue.http.sse import EventParser, EventTooLong

MAX_RESPONSE_BYTES = 32_000_000
"""Limit for the response to one message."""
CONNECT_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 2.0

_OK, _ACCEPTED = 200, 202
_SESSION_HEADER = "Mcp-Session-Id"
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}
_STATUS_MESSAGES: Mapping[int, str] = {
    401: "it requires a valid key (bearer_env, headers)",
    403: "access is denied (bearer_env, headers)",
    404: "there is no server at this URL",
    405: "it accepts no messages at this URL",
    429: "it limits the rate of requests",
}


class StreamableHttpTransport:
    """Connections to one MCP server, opened on first use.

    Redirects are refused, because the key would be sent along. A request is never sent twice, because a tool
    may have been called.
    """

    def __init__(self, url: str, headers: Mapping[str, str], network: NetworkSettings = DIRECT) -> None:
        self._url = url
        self._headers = headers
        self._network = network
        self._session_id = ""
        """The session id assigned by the server; empty before that."""
        self._protocol_version = ""
        self._client: HttpClient | None = None

    async def post(self, message: bytes, *, protocol_version: str) -> AsyncGenerator[bytes]:
        """Send a message and yield each message of the response as it arrives.

        `protocol_version` is the negotiated version, empty before that.

        Raises:
            NotFound: the server has ended the session.
            Failed: the server cannot be reached or sends an invalid response.
        """
        had_session, self._protocol_version = bool(self._session_id), protocol_version
        try:
            async with self._request("POST", message) as connection:
                response = connection.response
                self._session_id = response.headers.get(_SESSION_HEADER.lower(), self._session_id)
                if response.status == 404 and had_session:  # noqa: PLR2004  (the protocol's status for a session that has ended)
                    self._session_id = ""
                    raise NotFound(f"{self._url} has ended the session")
                self._check_head(response)
                async for each in _read_messages(self._url, connection):
                    yield each
        except Unreachable as error:
            raise Failed(f"{self._url} cannot be reached: {error}") from error
        except (ResponseError, EventTooLong) as error:
            raise Failed(f"{self._url} {error}") from error

    async def close(self) -> None:
        """End the session at the server, ignoring failures, and close the connections."""
        if self._client is None:
            return
        with suppress(Unreachable, ResponseError, TimeoutError):
            if self._session_id:
                async with asyncio.timeout(CLOSE_TIMEOUT_S), self._request("DELETE"):
                    pass
        await self._client.close()
        self._client, self._session_id = None, ""

    def _check_head(self, response: ResponseParser) -> None:
        if response.status in (_OK, _ACCEPTED):
            return
        if 300 <= response.status < 400:  # noqa: PLR2004  (a redirect)
            raise Failed(
                f"{self._url} redirects, and redirects are not followed. Use the URL that it redirects to"
            )
        explanation = _STATUS_MESSAGES.get(response.status, "this is not an MCP response")
        proxy = None if self._client is None else self._client.forward_proxy
        note = "" if proxy is None else f". The answer came through {proxy}"
        raise Failed(f"{self._url} answered with status {response.status}: {explanation}{note}")

    @asynccontextmanager
    async def _request(self, method: str, *body: bytes) -> AsyncGenerator[Connection]:
        headers = {_SESSION_HEADER: self._session_id} if self._session_id else {}
        if self._protocol_version:
            headers["MCP-Protocol-Version"] = self._protocol_version
        connection = await self._open_client().request(method, headers, body)
        try:
            yield connection
        finally:
            connection.release()

    def _open_client(self) -> HttpClient:
        if self._client is None:
            names = {name.lower() for name in self._headers}
            defaults = {name: value for name, value in _HEADERS.items() if name.lower() not in names}
            headers = {**defaults, **self._headers}
            try:
                self._client = HttpClient(
                    self._url,
                    headers,
                    connect_timeout_s=CONNECT_TIMEOUT_S,
                    reuse_retry_s=0,
                    network=self._network,
                )
            except InvalidServerUrl as error:
                raise Failed(f"{self._url} is not a valid URL") from error
        return self._client


async def _read_messages(url: str, connection: Connection) -> AsyncGenerator[bytes]:
    content_type = connection.response.headers.get("content-type", "").partition(";")[0].strip().lower()
    events = EventParser() if content_type == "text/event-stream" else None
    size, document = 0, bytearray()
    while chunk := await connection.read():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise Failed(f"{url} answered with more than {MAX_RESPONSE_BYTES // 1_000_000} MB")
        if events is None:
            document += chunk
            continue
        for each in events.feed(chunk):
            yield each
    if document:
        yield bytes(document)
