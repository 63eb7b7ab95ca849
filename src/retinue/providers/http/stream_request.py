"""One request to a model's server and the stream that answers it."""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

import msgspec

from retinue.domain.model_turn import Delta
from retinue.domain.run import Reason
from retinue.errors import BadConfig
from retinue.providers.errors import (
    AUTH,
    INCOMPLETE,
    NOWHERE,
    PASSING,
    UNREACHABLE,
    UNSAID,
    Pause,
    Trouble,
    by_name,
    by_status,
    quoted,
    trouble,
)
from retinue.providers.http.client import Client, Connection
from retinue.providers.http.connect import NoUrl, Unreachable
from retinue.providers.http.parser import Answer, Broken
from retinue.providers.http.sse import MAX_EVENT, Events
from retinue.providers.stream_timeout import MOVED

ALIVE = Delta()
"""Bytes came: the server lives, whether or not the model says anything."""
CONNECT_SECONDS = 15.0
LINGER_SECONDS = 2.0
"""How long to wait for the formal end of a stream whose reply is already whole."""
REFUSAL_SECONDS = 1.0
"""How long to wait for the words of a refusal."""
MAX_ERROR_BODY = 64 * 1024
_ELSEWHERE = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = re.compile(r"//[^/?#]*@")
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


class Reading(Protocol):
    """A provider's view of a stream: takes the data of its events as they come, tells what they say, and says when there
    is enough."""

    finished: bool
    """The server said why the reply ends: what follows is only counts."""
    over: bool
    """Nothing more is worth reading."""

    def take(self, events: Sequence[bytes]) -> None: ...
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
        if "?" in server or "#" in server:
            # The rest of the path would be sent as a part of it. It is not quoted: there may be a key in it.
            raise BadConfig(
                "a base URL ends with its path, and this one holds '?' or '#': write it as https://host/path"
            )
        self._server = server
        self._variable = variable
        """The environment variable that holds the key: what a person is told to check."""
        self._connect_seconds = connect_seconds
        self._client: Client | None = None

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
            connection = await self._opened().post(headers, body, lambda: heard(MOVED))
            try:
                await self._answered(connection, reading, heard, secret)
            finally:
                connection.leave()
        except Unreachable as error:
            raise trouble(
                f"cannot reach {self._server}: {quoted(str(error), secret)}", UNREACHABLE
            ) from error
        except Broken as error:
            raise trouble(f"{self._server} {quoted(str(error), secret)}", INCOMPLETE) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _opened(self) -> Client:
        if self._client is None:
            try:
                self._client = Client(self._server, _HEADERS, connect_seconds=self._connect_seconds)
            except NoUrl as error:
                raise trouble(f"{self._server!r} is not a URL: mend the base URL", NOWHERE) from error
        return self._client

    async def _answered(
        self,
        connection: Connection,
        reading: Reading,
        heard: Callable[[Delta], None],
        secret: str,
    ) -> None:
        answer = connection.answer
        if answer.status != 200:  # noqa: PLR2004 — the only status that carries a reply
            raise await self._refused(connection, secret)
        heard(ALIVE)
        if packed := _packed(answer):
            raise trouble(
                f"{self._server} answered packed ({quoted(packed)}), which was not asked for", PASSING
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            reading.whole(await _document(connection, heard))
        elif kind in {"text/html", "application/xhtml+xml"}:
            raise trouble(f"{self._server} answered with a web page instead of a reply", PASSING)
        else:
            await _read(connection, reading, heard)

    async def _refused(self, connection: Connection, secret: str) -> Trouble:
        answer = connection.answer
        said, *names = _error_in(b"" if _packed(answer) else await _complaint(connection))
        status = answer.status
        fate = by_status(status)
        named = by_name(*names)
        if fate.gate and not named.retry:
            fate = named
        pause = _pause(answer.headers)
        said = quoted(said, secret)
        if fate.reason is Reason.AUTH:
            return trouble(f"{self._server} refused the key (HTTP {status}): check {self._variable}", fate)
        if fate.reason is Reason.CONFIG:
            return trouble(f"model or URL not found: {self._server} (HTTP {status}) {said}".rstrip(), fate)
        if status in _ELSEWHERE:
            to = quoted(answer.headers.get("location", ""), secret)
            way = f"to {to}, which was not asked: if you trust it," if to else "and does not say where to:"
            return trouble(f"{self._server} has moved (HTTP {status}) {way} mend the base URL", fate)
        said = said or quoted(answer.reason, secret) or UNSAID
        return trouble(f"{self._server} answered HTTP {status}: {said}", fate, pause)


async def _read(connection: Connection, reading: Reading, heard: Callable[[Delta], None]) -> None:
    events = Events()
    while not reading.finished and not reading.over:
        chunk = await connection.read()
        if not chunk:
            reading.take(events.rest())
            return
        heard(ALIVE)
        reading.take(events.feed(chunk))
    if reading.over and connection.over:
        return
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while not reading.over and (chunk := await connection.read()):
                reading.take(events.feed(chunk))
            if reading.finished and not connection.over:
                await connection.read()
    except (TimeoutError, Broken, Trouble):
        return


def _packed(answer: Answer) -> str:
    """How the body is packed, which we never ask for; empty: it is not."""
    said = answer.headers.get("content-encoding", "")
    return "" if said.lower() == "identity" else said


async def _document(connection: Connection, heard: Callable[[Delta], None]) -> bytes:
    """A reply that is not streamed, as far as anyone would want to read it."""
    pieces: list[bytes] = []
    size = 0
    while size < MAX_EVENT and (chunk := await connection.read()):
        heard(ALIVE)
        pieces.append(chunk)
        size += len(chunk)
    return b"".join(pieces)


async def _complaint(connection: Connection) -> bytes:
    """The words of a refusal, as far as they come soon: its status alone says what matters."""
    pieces: list[bytes] = []
    size = 0
    with suppress(TimeoutError, Broken):
        async with asyncio.timeout(REFUSAL_SECONDS):
            while size < MAX_ERROR_BODY and (chunk := await connection.read()):
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
        value = headers.get("retry-after", "").strip()
        if not value:
            return Pause()
        if value[0].isdigit() or value[0] in "+-.":
            return Pause(seconds=_seconds(value))
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return Pause()
    return Pause(at=at if at.tzinfo else at.replace(tzinfo=UTC))


def _seconds(value: str) -> float:
    seconds = float(value)
    if math.isnan(seconds):
        raise ValueError(value)
    return seconds
