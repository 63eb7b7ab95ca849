"""The HTTP transport of an MCP server: posts messages and reads the messages sent in response."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import aiohttp

from retinue.domain.http_framing import is_supported_transfer_encoding
from retinue.errors import Failed, NotFound
from retinue.http.sse import EventParser, EventTooLong

MAX_RESPONSE_BYTES = 32_000_000
"""Limit for the response to one message."""
CONNECT_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 2.0

_OK, _ACCEPTED = 200, 202
_SESSION_HEADER = "Mcp-Session-Id"
_STATUS_MESSAGES: Mapping[int, str] = {
    401: "it requires a valid key (bearer_env, headers)",
    403: "access is denied (bearer_env, headers)",
    404: "there is no server at this URL",
    405: "it accepts no messages at this URL",
    429: "it limits the rate of requests",
}


class StreamableHttpTransport:
    """Connections to one MCP server, opened on first use.

    Redirects are refused, because the key would be sent along.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._session_id = ""
        """The session id assigned by the server; empty before that."""
        self._protocol_version = ""
        self._http_session: aiohttp.ClientSession | None = None

    async def post(self, message: bytes, *, protocol_version: str) -> AsyncGenerator[bytes]:
        """Send a message and yield each message of the response as it arrives.

        `protocol_version` is the negotiated version, empty before that.

        Raises:
            NotFound: the server has ended the session.
            Failed: the server cannot be reached or sends an invalid response.
        """
        had_session, self._protocol_version = bool(self._session_id), protocol_version
        try:
            async with self._open_session().post(
                self._url, data=message, headers=self._session_headers(), allow_redirects=False
            ) as response:
                self._session_id = response.headers.get(_SESSION_HEADER, self._session_id)
                if response.status == 404 and had_session:  # noqa: PLR2004  (the protocol's status for a session that has ended)
                    self._session_id = ""
                    raise NotFound(f"{self._url} has ended the session")
                _check_head(self._url, response)
                async for each in _read_messages(self._url, response):
                    yield each
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise Failed(f"{self._url} is not a valid URL") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Failed(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """End the session at the server, ignoring failures, and close the connections."""
        if self._http_session is None:
            return
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            if self._session_id:
                async with (
                    asyncio.timeout(CLOSE_TIMEOUT_S),
                    self._http_session.delete(
                        self._url, headers=self._session_headers(), allow_redirects=False
                    ),
                ):
                    pass
        await self._http_session.close()
        self._http_session, self._session_id = None, ""

    def _session_headers(self) -> dict[str, str]:
        session_header = {_SESSION_HEADER: self._session_id} if self._session_id else {}
        return session_header | (
            {"MCP-Protocol-Version": self._protocol_version} if self._protocol_version else {}
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._http_session is None:
            self._http_session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                headers={
                    "User-Agent": "retinue",
                    **self._headers,
                    "Accept": "application/json, text/event-stream",
                    "Accept-Encoding": "identity",
                    "Content-Type": "application/json",
                },
            )
        return self._http_session


def _check_head(url: str, response: aiohttp.ClientResponse) -> None:
    if not is_supported_transfer_encoding(response.headers.getall("Transfer-Encoding", ())):
        raise Failed(f"{url} answered with an unsupported transfer encoding")
    if response.status in (_OK, _ACCEPTED):
        return
    if 300 <= response.status < 400:  # noqa: PLR2004  (a redirect)
        raise Failed(f"{url} redirects, and redirects are not followed. Use the URL that it redirects to")
    explanation = _STATUS_MESSAGES.get(response.status, "this is not an MCP response")
    raise Failed(f"{url} answered with status {response.status}: {explanation}")


async def _read_messages(url: str, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    events = EventParser() if response.content_type == "text/event-stream" else None
    size, document = 0, bytearray()
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise Failed(f"{url} answered with more than {MAX_RESPONSE_BYTES // 1_000_000} MB")
        if events is None:
            document += chunk
            continue
        try:
            messages = events.feed(chunk)
        except EventTooLong as error:
            raise Failed(f"{url} sent an event that is too large") from error
        for each in messages:
            yield each
    if document:
        yield bytes(document)
