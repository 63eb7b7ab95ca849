"""A streaming request to a model's server, and the errors it can end with."""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

from retinue.domain.model_turn import ReplyDelta
from retinue.domain.run import Reason
from retinue.errors import BadConfig
from retinue.http.client import Connection, HttpClient
from retinue.http.connect import InvalidServerUrl, Misconfigured, Unreachable
from retinue.http.network import NetworkSettings
from retinue.http.parser import ResponseError, ResponseParser
from retinue.http.sse import MAX_EVENT_BYTES, EventParser, EventTooLong
from retinue.providers.errors import NO_REASON_GIVEN, ProviderError, RetryAfter, sanitize_server_text
from retinue.providers.refusals import parse_refusal
from retinue.providers.retry_policy import (
    AUTH,
    INCOMPLETE,
    MISCONFIGURED,
    REJECTED,
    SERVER_ERROR,
    UNREACHABLE,
    policy_for_status,
    provider_error,
)
from retinue.providers.stream_timeout import KEEPALIVE

BYTES_RECEIVED = ReplyDelta()
"""Bytes of the response arrived, whether or not they contain output."""
CONNECT_TIMEOUT_S = 15.0
LINGER_TIMEOUT_S = 2.0
"""Time to wait for the end of a stream whose reply is already complete."""
ERROR_BODY_TIMEOUT_S = 1.0
"""Time to wait for the body of an error response."""
MAX_ERROR_BODY_BYTES = 64 * 1024
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS_PATTERN = re.compile(r"//[^/?#]*@")
_HEADERS = {
    "User-Agent": "retinue",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


class ReplyReader(Protocol):
    """A provider's stream parser: takes event data, emits deltas and detects the end of the reply."""

    has_stop_reason: bool
    """The server has sent the stop reason; only token counts follow."""
    is_done: bool
    """Nothing more needs to be read."""

    def read_events(self, events: Sequence[bytes]) -> None: ...
    def read_document(self, data: bytes) -> None:
        """Read the reply of a server that does not stream, sent as one JSON document."""
        ...


class StreamingRequest:
    """Connections to one server, opened on first use and kept alive."""

    def __init__(
        self,
        *,
        url: str,
        key_variable: str,
        network: NetworkSettings,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        if _CREDENTIALS_PATTERN.search(url):
            raise BadConfig(f"A base URL must not contain a password. Put the key into {key_variable}")
        if "?" in url or "#" in url:
            # The request path would become part of the query. The URL is not quoted, as it may contain a key.
            raise BadConfig("A base URL must not contain '?' or '#'. Write it as https://host/path")
        self._url = url
        self._key_variable = key_variable
        """The environment variable that holds the key, named in error messages."""
        self._network = network
        self._connect_timeout_s = connect_timeout_s
        self._client: HttpClient | None = None

    def resolve_key(self, source: Callable[[], str] | str) -> str:
        """Return the key for this request; raise if it has characters that a header cannot carry."""
        key = (source if isinstance(source, str) else source()).strip()
        if not key.isascii() or not key.isprintable():
            raise provider_error(f"the API key contains invalid characters. Check {self._key_variable}", AUTH)
        return key

    async def stream(
        self,
        headers: Mapping[str, str],
        body: list[bytes],
        reader: ReplyReader,
        on_delta: Callable[[ReplyDelta], None],
        secret: str,
    ) -> None:
        """Send the body and feed the response to the reader; every failure is a ProviderError."""
        try:
            connection = await self._open_client().post(headers, body, lambda: on_delta(KEEPALIVE))
            try:
                await self._read_response(connection, reader, on_delta, secret)
            finally:
                connection.release()
        except Unreachable as error:
            raise provider_error(
                f"cannot reach {self._url}: {sanitize_server_text(str(error), secret)}",
                MISCONFIGURED if isinstance(error, Misconfigured) else UNREACHABLE,
            ) from error
        except ResponseError as error:
            raise provider_error(
                f"{self._url} {sanitize_server_text(str(error), secret)}", INCOMPLETE
            ) from error
        except EventTooLong as error:
            raise provider_error(f"the model's server {error}", REJECTED) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open_client(self) -> HttpClient:
        if self._client is None:
            try:
                self._client = HttpClient(
                    self._url, _HEADERS, network=self._network, connect_timeout_s=self._connect_timeout_s
                )
            except InvalidServerUrl as error:
                raise provider_error(
                    f"{self._url!r} is not a valid URL. Correct the base URL", MISCONFIGURED
                ) from error
        return self._client

    async def _read_response(
        self,
        connection: Connection,
        reader: ReplyReader,
        on_delta: Callable[[ReplyDelta], None],
        secret: str,
    ) -> None:
        response = connection.response
        if response.status != 200:  # noqa: PLR2004 — the only status with a reply
            raise await self._refusal_error(connection, secret)
        on_delta(BYTES_RECEIVED)
        if encoding := _content_encoding(response):
            raise provider_error(
                f"{self._url} sent a compressed response ({sanitize_server_text(encoding)}), which was not requested",
                SERVER_ERROR,
            )
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "application/json":
            reader.read_document(await _read_document(connection, on_delta))
        elif content_type in {"text/html", "application/xhtml+xml"}:
            raise provider_error(f"{self._url} answered with a web page instead of a reply", SERVER_ERROR)
        else:
            await _read_stream(connection, reader, on_delta)

    async def _refusal_error(self, connection: Connection, secret: str) -> ProviderError:
        response = connection.response
        body = b"" if _content_encoding(response) else await _read_error_body(connection)
        refusal = parse_refusal(response.status, body)
        status = response.status
        policy = policy_for_status(status)
        retry_after = _parse_retry_after(response.headers)
        message = sanitize_server_text(refusal.message, secret)
        via = self._client.forward_proxy if self._client is not None else None
        note = f". The answer came through {via}" if via is not None else ""
        if policy.reason is Reason.AUTH:
            return provider_error(
                f"{self._url} rejected the API key (HTTP {status}). Check {self._key_variable}{note}", policy
            )
        if policy.reason is Reason.CONFIG:
            return provider_error(
                f"model or URL not found: {self._url} (HTTP {status}) {message}".rstrip() + note,
                policy,
                refusal=refusal,
            )
        if status in _REDIRECT_STATUSES:
            target = sanitize_server_text(response.headers.get("location", ""), secret)
            explanation = (
                f"to {target}. Redirects are not followed. If you trust it, change"
                if target
                else "without naming a new address. Change"
            )
            return provider_error(f"{self._url} redirects (HTTP {status}) {explanation} the base URL", policy)
        message = message or sanitize_server_text(response.reason, secret) or NO_REASON_GIVEN
        return provider_error(
            f"{self._url} answered HTTP {status}: {message}{note}", policy, retry_after, refusal=refusal
        )


async def _read_stream(
    connection: Connection, reader: ReplyReader, on_delta: Callable[[ReplyDelta], None]
) -> None:
    events = EventParser()
    while not reader.has_stop_reason and not reader.is_done:
        chunk = await connection.read()
        if not chunk:
            reader.read_events(events.finish())
            return
        on_delta(BYTES_RECEIVED)
        reader.read_events(events.feed(chunk))
    if reader.is_done and connection.is_complete:
        return
    try:
        async with asyncio.timeout(LINGER_TIMEOUT_S):
            while not reader.is_done and (chunk := await connection.read()):
                reader.read_events(events.feed(chunk))
            if reader.has_stop_reason and not connection.is_complete:
                await connection.read()
    except (TimeoutError, ResponseError, EventTooLong, ProviderError):
        return


def _content_encoding(response: ResponseParser) -> str:
    """Return the content encoding of the body, which is never requested, or "" if there is none."""
    encoding = response.headers.get("content-encoding", "")
    return "" if encoding.lower() == "identity" else encoding


async def _read_document(connection: Connection, on_delta: Callable[[ReplyDelta], None]) -> bytes:
    """Read a reply that is not streamed, up to a limit."""
    pieces: list[bytes] = []
    size = 0
    while size < MAX_EVENT_BYTES and (chunk := await connection.read()):
        on_delta(BYTES_RECEIVED)
        pieces.append(chunk)
        size += len(chunk)
    return b"".join(pieces)


async def _read_error_body(connection: Connection) -> bytes:
    """Read the body of an error response as far as it arrives soon; the status alone is enough."""
    pieces: list[bytes] = []
    size = 0
    with suppress(TimeoutError, ResponseError):
        async with asyncio.timeout(ERROR_BODY_TIMEOUT_S):
            while size < MAX_ERROR_BODY_BYTES and (chunk := await connection.read()):
                pieces.append(chunk)
                size += len(chunk)
    return b"".join(pieces)


def _parse_retry_after(headers: Mapping[str, str]) -> RetryAfter:
    """Parse Retry-After in milliseconds, seconds or as a date; invalid values are ignored."""
    try:
        if "retry-after-ms" in headers:
            return RetryAfter(seconds=_parse_seconds(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "").strip()
        if not value:
            return RetryAfter()
        if value[0].isdigit() or value[0] in "+-.":
            return RetryAfter(seconds=_parse_seconds(value))
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return RetryAfter()
    return RetryAfter(at=at if at.tzinfo else at.replace(tzinfo=UTC))


def _parse_seconds(value: str) -> float:
    seconds = float(value)
    if math.isnan(seconds):
        raise ValueError(value)
    return seconds
