"""Ask a server, with its key, for the models that it offers."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from retinue.domain.model_turn import Model
from retinue.domain.providers import ANTHROPIC
from retinue.errors import BadConfig, ModelFailed
from retinue.http.client import Connection, HttpClient
from retinue.http.connect import InvalidServerUrl, Unreachable
from retinue.http.parser import ResponseError
from retinue.providers.anthropic import API_VERSION
from retinue.providers.errors import NO_REASON_GIVEN, sanitize_server_text
from retinue.providers.interface import ProviderSettings, ServerAccess, lacks_key, server_access
from retinue.providers.key_command import KeyCommand
from retinue.providers.offered_models import OfferedModel
from retinue.providers.refusals import parse_refusal
from retinue.providers.retry_policy import AUTH, MISCONFIGURED, REJECTED, UNREACHABLE, provider_error

REQUEST_TIMEOUT_S = 30.0
_MAX_BYTES = 16 << 20
_MAX_MODELS = 10_000
_MAX_ID_CHARS = 200
_HEADERS = {"User-Agent": "retinue", "Accept": "application/json", "Accept-Encoding": "identity"}
_AUTH_STATUSES = (401, 403)
_WINDOW_FIELDS = (
    "context_length",
    "max_model_len",
    "context_window",
    "max_context_length",
    "max_input_tokens",
)
"""Fields in which servers name the context window of a model."""


async def fetch_offered_models(
    provider: str, settings: ProviderSettings, now: Callable[[], datetime]
) -> list[OfferedModel]:
    """Ask a provider's server for its models.

    Raises:
        BadConfig: The server has no address or no key, or must not be reached as configured.
        ModelFailed: It cannot be reached, or gives no list.
    """
    server = settings.providers[provider]
    access = server_access(Model(provider=provider, name="MODEL"), settings)
    if lacks_key(provider, settings):
        raise BadConfig(f"No API key for {provider}. Set {server.key_variable}.")
    key = server.api_key
    if access.key_command:
        key = await KeyCommand(access.key_command, _ignore_secret, now).fetch()
    if not key.isascii() or not key.isprintable():
        raise BadConfig(
            f"The API key of {provider} contains invalid characters. Check {server.key_variable}."
        )
    base_url = access.base_url.rstrip("/")
    is_anthropic = server.kind == ANTHROPIC
    url = f"{base_url.removesuffix('/v1')}/v1/models?limit=1000" if is_anthropic else f"{base_url}/models"
    headers = {**_key_headers(key, access, is_anthropic=is_anthropic), **access.headers}
    return _parse_models(await _get_document(url, headers, access, key), url)


def _key_headers(key: str, access: ServerAccess, *, is_anthropic: bool) -> dict[str, str]:
    version = {"anthropic-version": API_VERSION} if is_anthropic else {}
    if not key:
        return version
    if access.key_header:
        return {**version, access.key_header: key}
    return {**version, "x-api-key": key} if is_anthropic else {"Authorization": f"Bearer {key}"}


async def _get_document(url: str, headers: Mapping[str, str], access: ServerAccess, key: str) -> bytes:
    try:
        client = HttpClient(url, _HEADERS, connect_timeout_s=REQUEST_TIMEOUT_S / 2, network=access.network)
    except InvalidServerUrl as error:
        raise provider_error(f"{url!r} is not a valid URL. Correct the base URL", MISCONFIGURED) from error
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            connection = await client.request("GET", headers)
            body = await _read_body(connection, url)
    except TimeoutError as error:
        raise provider_error(f"{url} did not answer within {REQUEST_TIMEOUT_S:g} s", UNREACHABLE) from error
    except Unreachable as error:
        raise provider_error(
            f"cannot reach {url}: {sanitize_server_text(str(error), key)}", UNREACHABLE
        ) from error
    except ResponseError as error:
        raise provider_error(f"{url} {sanitize_server_text(str(error), key)}", REJECTED) from error
    finally:
        await client.close()
    status = connection.response.status
    if status in _AUTH_STATUSES:
        raise provider_error(f"{url} rejected the API key (HTTP {status}). Check {access.key_variable}", AUTH)
    if status != 200:  # noqa: PLR2004 — the only status with a list
        reason = sanitize_server_text(parse_refusal(status, body).message, key) or NO_REASON_GIVEN
        raise provider_error(f"{url} answered HTTP {status}: {reason}", REJECTED)
    return body


async def _read_body(connection: Connection, url: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await connection.read():
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_BYTES:
            raise provider_error(f"{url} sent more than {_MAX_BYTES >> 20} MiB", REJECTED)
    return b"".join(pieces)


def _parse_models(body: bytes, url: str) -> list[OfferedModel]:
    """Return the models of a list, also of one without the usual object around it, sorted by name."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        document = None
    if isinstance(document, dict):
        fields = cast("Mapping[str, Any]", document)
        document = fields.get("data", fields.get("models"))
    if not isinstance(document, list):
        raise ModelFailed(f"{url} sent no list of models", reason=REJECTED.reason)
    rows = [
        cast("Mapping[str, Any]", row)
        for row in cast("list[Any]", document)[:_MAX_MODELS]
        if isinstance(row, dict)
    ]
    models = {
        name: OfferedModel(name=name, context_window=_window(row)) for row in rows if (name := _name(row))
    }
    return [models[name] for name in sorted(models)]


def _name(row: Mapping[str, Any]) -> str:
    name = row.get("id") or row.get("name")
    return sanitize_server_text(name)[:_MAX_ID_CHARS] if isinstance(name, str) else ""


def _window(row: Mapping[str, Any]) -> int | None:
    for field in _WINDOW_FIELDS:
        value = row.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
            return value
    return None


def _ignore_secret(_secret: str) -> None: ...  # nothing is written that the key could appear in
