"""Parse a request: check its rights, then its path, headers, query and body, before a handler runs."""

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from retinue.errors import UsageError
from retinue.server.auth import ApiCaller
from retinue.server.connection_limits import ConnectionLimits
from retinue.server.error_responses import HttpError
from retinue.server.routing import ApiRequest, Route
from retinue.storage import strict_json
from retinue.storage.strict_yaml import ParseError

REF_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
"""Form of an id or name in a path. Anything else never reaches the file system."""
IDEMPOTENCY_KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,200}")
JSON_CONTENT_TYPE = re.compile(r'application/json(\s*;\s*charset="?utf-8"?)?', re.IGNORECASE)
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
OUT_OF_RANGE_PREFIX = "Number out of range"
"""Start of msgspec's message for a number out of range."""
BODILESS_METHODS = ("GET", "HEAD", "DELETE")
MAX_NUMBER_DIGITS = 19
"""Number of digits of the largest event number."""


async def parse_request(route: Route, request: Request) -> ApiRequest[Any, Any]:
    """Parse a request for its route.

    Raises:
        HttpError, UsageError: The request is not valid for the route.
    """
    caller = _authorize(route, request)
    return ApiRequest(
        ref=_parse_ref(request),
        query=_parse_query(route, request),
        body=await _parse_body(route, request),
        idempotency_key=_parse_idempotency_key(request),
        last_event_id=_parse_last_event_id(request.headers.get("last-event-id", ""))
        if route.is_stream
        else None,
        rights=caller.rights,
        caller_name=caller.name,
    )


def _authorize(route: Route, request: Request) -> ApiCaller:
    caller: ApiCaller | None = request.state.caller
    if caller is None or route.right not in caller.rights:
        rights_text = ", ".join(sorted(caller.rights)) if caller else "none"
        raise HttpError(
            403,
            f"This requires the permission {route.right}, and your token has {rights_text}. "
            f"Create a token with `retinue tokens add NAME --rights {route.right}`.",
            right=str(route.right),
        )
    return caller


def _parse_ref(request: Request) -> str:
    ref: str = request.path_params.get("ref", "")
    if "ref" in request.path_params and not REF_PATTERN.fullmatch(ref):
        raise HttpError(404, "Invalid name. Use letters, digits and . _ : -, at most 200 characters.")
    return ref


def _parse_query(route: Route, request: Request) -> Any:
    items = request.query_params.multi_items()
    query = dict(items)
    if len(query) != len(items):
        raise UsageError("The query has a repeated parameter. Send it once.")
    if any(CONTROL_CHARACTERS.search(text) for pair in items for text in pair):
        raise UsageError("The query contains invisible characters. Remove them.")
    try:
        return msgspec.convert(query, route.query, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"The query is invalid: {error}") from error


def _parse_idempotency_key(request: Request) -> str:
    key = request.headers.get("idempotency-key")
    if key is not None and not IDEMPOTENCY_KEY_PATTERN.fullmatch(key):
        raise UsageError("An Idempotency-Key must have 1 to 200 visible characters, without spaces.")
    return key or ""


def _parse_last_event_id(header: str) -> int | None:
    """Return the number of a Last-Event-ID; None for anything that is not an event number."""
    return int(header) if header.isascii() and header.isdigit() and len(header) <= MAX_NUMBER_DIGITS else None


async def _parse_body(route: Route, request: Request) -> Any:
    if request.method in BODILESS_METHODS:
        return None
    content_type = request.headers.get("content-type")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpError(415, "Content-Encoding is not supported. Send the body without it.")
    if content_type is not None and not JSON_CONTENT_TYPE.fullmatch(content_type):
        raise HttpError(415, "The body must be JSON. Send it with Content-Type: application/json.")
    raw = await _read_body(request)
    if not raw and not any(each.required for each in msgspec.structs.fields(route.body)):
        return route.body()
    if content_type is None:
        raise HttpError(415, "The body must be JSON. Send it with Content-Type: application/json.")
    return decode_body(raw, route.body)


async def _read_body(request: Request) -> bytes:
    """Read the body, at most until it exceeds the limit."""
    limits: ConnectionLimits = request.state.limits
    too_large = HttpError(
        413, f"The body is too large: the limit is {limits.max_body_bytes} bytes", most=limits.max_body_bytes
    )
    content_length = request.headers.get("content-length", "")
    if content_length.isdigit() and (
        len(content_length) > MAX_NUMBER_DIGITS or int(content_length) > limits.max_body_bytes
    ):
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limits.max_body_bytes:
                    raise too_large
    except TimeoutError as error:
        raise HttpError(408, f"The body took too long: the limit is {limits.body_seconds:g} s") from error
    return bytes(raw)


def decode_body(raw: bytes, body_type: type[msgspec.Struct]) -> Any:
    """Decode a body; duplicate keys, deep nesting, invalid numbers and unknown fields are errors."""
    try:
        text = raw.decode()
        strict_json.parse_json(text)
        return msgspec.json.decode(raw, type=body_type)
    except ParseError as error:
        raise UsageError(_syntax_error_text(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The body is not UTF-8 at byte {error.start}. Send it as UTF-8.") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(_decode_error_text(error, raw)) from error


def _syntax_error_text(error: ParseError) -> str:
    if not error.problem.startswith("is "):
        return f"In the body, {error.problem}"
    return f"The body {error.problem} (line {error.line})"


def _decode_error_text(error: Exception, raw: bytes) -> str:
    if not isinstance(error, msgspec.ValidationError) and SURROGATE_ESCAPE.search(raw):
        return "The body contains a lone surrogate (\\ud800 to \\udfff)"
    if (text := str(error)).startswith(OUT_OF_RANGE_PREFIX):
        return f"The body contains a number that is too large{text.removeprefix(OUT_OF_RANGE_PREFIX)}"
    return f"The body is invalid: {text}"
