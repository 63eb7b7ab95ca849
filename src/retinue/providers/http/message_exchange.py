"""Messages posted to an address one by one, and the messages that come back to each: how an MCP server elsewhere is
reached. It stands with the drivers because HTTP enters here."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import aiohttp

from retinue.errors import Failed, NotFound, RetinueError
from retinue.providers.http.sse import Events

MAX_BYTES = 32_000_000
"""Of what comes back to one message."""
CONNECT_SECONDS = 15.0
GOODBYE_SECONDS = 2.0

_OK, _ACCEPTED = 200, 202
_SESSION = "Mcp-Session-Id"
_STATUSES: Mapping[int, str] = {
    401: "it wants a key, or another one (bearer_env, headers)",
    403: "it does not let us in (bearer_env, headers)",
    404: "there is nothing at that address",
    405: "it takes no messages at that address",
    429: "it is asked too often",
}


class Mailbox:
    """Connections to one address, opened on first use. The address is never left: what leads elsewhere is refused,
    because our key would go along."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._visit = ""
        """How the server knows us again; empty: it has not said."""
        self._spoken = ""
        self._session: aiohttp.ClientSession | None = None

    async def post(self, message: bytes, *, spoken: str) -> AsyncGenerator[bytes]:
        """Each message that comes back, as it comes. `spoken` is the version of the protocol that was agreed on, empty
        before that. NotFound: the server does not know us any more."""
        known, self._spoken = bool(self._visit), spoken
        try:
            async with self._opened().post(
                self._url, data=message, headers=self._about_us(), allow_redirects=False
            ) as response:
                self._visit = response.headers.get(_SESSION, self._visit)
                if response.status == 404 and known:  # noqa: PLR2004  (the protocol's word for a session that is over)
                    self._visit = ""
                    raise NotFound(f"{self._url} has forgotten us")
                _accepted(self._url, response)
                async for each in _messages(self._url, response):
                    yield each
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise Failed(f"{self._url} is no address that can be reached") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Failed(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Says goodbye, if the server knows us; whether it hears that is its own affair."""
        if self._session is None:
            return
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            if self._visit:
                async with (
                    asyncio.timeout(GOODBYE_SECONDS),
                    self._session.delete(self._url, headers=self._about_us(), allow_redirects=False),
                ):
                    pass
        await self._session.close()
        self._session, self._visit = None, ""

    def _about_us(self) -> dict[str, str]:
        visit = {_SESSION: self._visit} if self._visit else {}
        return visit | ({"MCP-Protocol-Version": self._spoken} if self._spoken else {})

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                trust_env=False,
                headers={
                    "User-Agent": "retinue",
                    **self._headers,
                    "Accept": "application/json, text/event-stream",
                    "Accept-Encoding": "identity",
                    "Content-Type": "application/json",
                },
            )
        return self._session


def _accepted(url: str, response: aiohttp.ClientResponse) -> None:
    if response.status in (_OK, _ACCEPTED):
        return
    if 300 <= response.status < 400:  # noqa: PLR2004  (it leads elsewhere)
        raise Failed(f"{url} leads elsewhere: write the address that it leads to")
    why = _STATUSES.get(response.status, "it does not answer as an MCP server does")
    raise Failed(f"{url} answered with status {response.status}: {why}")


async def _messages(url: str, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    events = Events() if response.content_type == "text/event-stream" else None
    size, whole = 0, bytearray()
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_BYTES:
            raise Failed(f"{url} answered with more than {MAX_BYTES // 1_000_000} MB")
        if events is None:
            whole += piece
            continue
        try:
            found = events.feed(piece)
        except RetinueError as error:
            raise Failed(f"{url} answered with an event that has no end") from error
        for each in found:
            yield each
    if whole:
        yield bytes(whole)
