"""One request to a model's server and the stream that answers it."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

import aiohttp
import msgspec

from retinue.domain.run import Reason
from retinue.domain.turn import Delta
from retinue.drivers.sse import MAX_EVENT, Events
from retinue.drivers.trouble import (
    AUTH,
    INCOMPLETE,
    NOWHERE,
    PASSING,
    UNREACHABLE,
    Pause,
    Trouble,
    by_name,
    by_status,
    quoted,
    trouble,
)
from retinue.errors import BadConfig

ALIVE = Delta()
"""Bytes came: the server lives, whether or not the model says anything."""
CONNECT_SECONDS = 15.0
LINGER_SECONDS = 2.0
"""How long to wait for the formal end of a stream whose reply is already whole."""
MAX_ERROR_BODY = 64 * 1024
_CREDENTIALS = re.compile(r"//[^/?#]*@")


class Reading(Protocol):
    """A provider's view of a stream: takes each event's data, and says when there is enough."""

    finished: bool
    """The server said why the reply ends: what follows is only counts."""
    over: bool
    """Nothing more is worth reading."""

    def take(self, data: bytes) -> None: ...
    def whole(self, data: bytes) -> None:
        """A server that does not stream sends the reply as one JSON document."""
        ...


class _Error(msgspec.Struct, gc=False):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None


class _ErrorBody(msgspec.Struct, gc=False):
    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


_ERROR = msgspec.json.Decoder(_ErrorBody)


class Post:
    """Connections to one server, opened on first use and kept alive."""

    def __init__(self, *, server: str, variable: str, connect_seconds: float = CONNECT_SECONDS) -> None:
        if _CREDENTIALS.search(server):
            raise BadConfig(f"a base URL must hold no password: put the key into {variable}")
        self._server = server
        self._variable = variable
        """The environment variable that holds the key: what a person is told to check."""
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._session: aiohttp.ClientSession | None = None

    def key(self, source: Callable[[], str] | str) -> str:
        """The key for this turn; one that no header can carry is refused before it is sent anywhere."""
        key = (source if isinstance(source, str) else source()).strip()
        if not key.isascii() or not key.isprintable():
            raise trouble(f"the key holds characters that no key has: check {self._variable}", AUTH)
        return key

    async def stream(
        self,
        headers: Mapping[str, str],
        body: list[bytes],
        reading: Reading,
        heard: Callable[[Delta], None],
        secret: str,
    ) -> None:
        """Sends the body and feeds the answer to `reading`; every failure is a Trouble."""
        try:
            async with self._opened().post(
                self._server,
                data=body[0] if len(body) == 1 else _Pieces(body),
                headers={**headers, "Content-Length": str(sum(map(len, body)))},
                allow_redirects=False,
            ) as response:
                try:
                    await self._answered(response, reading, heard, secret)
                finally:
                    if not response.content.at_eof():
                        response.close()
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError) as error:
            # A host that no name server could be asked for is found out only when one is asked.
            raise trouble(f"{self._server!r} is not a URL: mend the base URL", NOWHERE) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise trouble(
                f"cannot reach {self._server}: {quoted(str(error), secret)}", UNREACHABLE
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise trouble(
                f"{self._server} broke the connection ({type(error).__name__})", INCOMPLETE
            ) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                trust_env=False,
                headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
            )
        return self._session

    async def _answered(
        self,
        response: aiohttp.ClientResponse,
        reading: Reading,
        heard: Callable[[Delta], None],
        secret: str,
    ) -> None:
        if response.status != 200:  # noqa: PLR2004 — the only status that carries a reply
            raise await self._refused(response, secret)
        heard(ALIVE)
        kind = response.content_type
        if kind == "application/json":
            reading.whole(await _limited(response, MAX_EVENT))
        elif kind in {"text/html", "application/xhtml+xml"}:
            raise trouble(f"{self._server} answered with a web page instead of a reply", PASSING)
        else:
            await _read(response, reading, heard)

    async def _refused(self, response: aiohttp.ClientResponse, secret: str) -> Trouble:
        said, *names = _error_in(await _limited(response, MAX_ERROR_BODY))
        status = response.status
        fate = by_status(status)
        named = by_name(*names)
        if fate.gate and not named.retry:
            fate = named
        pause = _pause(response.headers)
        said = quoted(said, secret)
        if fate.reason is Reason.AUTH:
            return trouble(f"{self._server} refused the key (HTTP {status}): check {self._variable}", fate)
        if fate.reason is Reason.CONFIG:
            return trouble(f"model or URL not found: {self._server} (HTTP {status}) {said}".rstrip(), fate)
        return trouble(f"{self._server} answered HTTP {status}: {said or response.reason or ''}", fate, pause)


async def _read(response: aiohttp.ClientResponse, reading: Reading, heard: Callable[[Delta], None]) -> None:
    events = Events()
    content = response.content
    while not reading.finished and not reading.over:
        chunk = await content.readany()
        if not chunk:
            for data in events.rest():
                reading.take(data)
            return
        heard(ALIVE)
        for data in events.feed(chunk):
            reading.take(data)
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while not reading.over and (chunk := await content.readany()):
                for data in events.feed(chunk):
                    reading.take(data)
            if reading.finished and not content.at_eof():
                await content.readany()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return


async def _limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """A body, as far as anyone would want to read it."""
    pieces: list[bytes] = []
    size = 0
    while size < limit and (chunk := await response.content.readany()):
        pieces.append(chunk)
        size += len(chunk)
    return b"".join(pieces)


def _error_in(body: bytes) -> tuple[str, object, object]:
    """A server's own sentence about an error, its code and its type, in whichever of the usual forms."""
    try:
        found = _ERROR.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return body.decode("utf-8", "replace"), None, None
    if isinstance(found.error, _Error):
        return found.error.message or "", found.error.code, found.error.type
    return found.error or found.message or found.detail or "", None, None


def _pause(headers: Mapping[str, str]) -> Pause:
    """Retry-After in milliseconds, seconds or as a date; nonsense counts as nothing."""
    try:
        if "retry-after-ms" in headers:
            return Pause(seconds=_seconds(headers["retry-after-ms"]) / 1000)
        value = headers.get("Retry-After", "").strip()
        if not value:
            return Pause()
        if value[0].isdigit() or value[0] in "+-.":
            return Pause(seconds=_seconds(value))
        at = parsedate_to_datetime(value)
    except ValueError:
        return Pause()
    return Pause(at=at if at.tzinfo else at.replace(tzinfo=UTC))


def _seconds(value: str) -> float:
    seconds = float(value)
    if math.isnan(seconds):
        raise ValueError(value)
    return seconds


class _Pieces:
    """A body sent piece by piece: aiohttp would otherwise hold up the loop with one huge write."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
