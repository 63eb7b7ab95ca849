"""Reading a request: its rights, its names, its query and its body are judged before any route sees them."""

import asyncio
import re
from typing import Any

import msgspec
from starlette.requests import Request

from retinue.errors import Usage
from retinue.server.auth import Caller
from retinue.server.connection_limits import Limits
from retinue.server.error_responses import Turned
from retinue.server.routing import Route, Wish
from retinue.storage import strict_json
from retinue.storage.strict_yaml import Mistake

REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
"""How a thing is named in an address; whatever is not so names nothing, and no folder is asked about it."""
KEY = re.compile(r"[\x21-\x7e]{1,200}")
JSON = re.compile(r'application/json(\s*;\s*charset="?utf-8"?)?', re.IGNORECASE)
UNSEEN = re.compile(r"[\x00-\x1f\x7f]")
HALF = re.compile(rb"\\u[dD][89a-fA-F]")
OUT_OF_RANGE = "Number out of range"
"""How msgspec begins its word on what no number of ours can hold."""
BODILESS = ("GET", "HEAD", "DELETE")
BIGGEST = 19
"""Digits of the largest number that an event can have."""


async def read(route: Route, request: Request) -> Wish[Any, Any]:
    """The wish that a request is; Turned or Usage where it is none."""
    caller = _may(route, request)
    return Wish(
        ref=_ref(request),
        query=_query(route, request),
        body=await _body(route, request),
        key=_key(request),
        last_event=_last_event(request.headers.get("last-event-id", "")) if route.streams else None,
        rights=caller.rights,
        by=caller.by,
    )


def _may(route: Route, request: Request) -> Caller:
    caller: Caller | None = request.state.caller
    if caller is None or route.right not in caller.rights:
        has = ", ".join(sorted(caller.rights)) if caller else "none"
        raise Turned(
            403,
            f"this needs the right {route.right}, and your key has {has}: "
            f"`retinue tokens add NAME --rights {route.right}` makes one that has it",
            right=str(route.right),
        )
    return caller


def _ref(request: Request) -> str:
    found: str = request.path_params.get("ref", "")
    if "ref" in request.path_params and not REF.fullmatch(found):
        raise Turned(
            404, "no name of anything here is written so: letters, digits and . _ : - are, 200 at most"
        )
    return found


def _query(route: Route, request: Request) -> Any:
    said = request.query_params.multi_items()
    query = dict(said)
    if len(query) != len(said):
        raise Usage("the query says something twice: say it once")
    if any(UNSEEN.search(each) for pair in said for each in pair):
        raise Usage("the query has characters in it that nobody sees: leave them out")
    try:
        return msgspec.convert(query, route.query, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise Usage(f"the query cannot be understood: {error}") from error


def _key(request: Request) -> str:
    said = request.headers.get("idempotency-key")
    if said is not None and not KEY.fullmatch(said):
        raise Usage("an Idempotency-Key is 1 to 200 characters that can be seen, without spaces")
    return said or ""


def _last_event(said: str) -> int | None:
    """Only what a stream has said itself; anything else is another server's, and counts for nothing."""
    return int(said) if said.isascii() and said.isdigit() and len(said) <= BIGGEST else None


async def _body(route: Route, request: Request) -> Any:
    if request.method in BODILESS:
        return None
    kind = request.headers.get("content-type")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Turned(415, "a body is taken as it is: send it without Content-Encoding")
    if kind is not None and not JSON.fullmatch(kind):
        raise Turned(415, "a body is JSON: send it with Content-Type: application/json")
    raw = await _heard(request)
    if not raw and not any(each.required for each in msgspec.structs.fields(route.takes)):
        return route.takes()
    if kind is None:
        raise Turned(415, "a body is JSON, and says so: send it with Content-Type: application/json")
    return understood(raw, route.takes)


async def _heard(request: Request) -> bytes:
    """All of the body, or as much as shows that it is too large."""
    limits: Limits = request.state.limits
    whole = Turned(413, f"a body is at most {limits.body} bytes", most=limits.body)
    said = request.headers.get("content-length", "")
    if said.isdigit() and (len(said) > BIGGEST or int(said) > limits.body):
        raise whole
    raw = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                raw += piece
                if len(raw) > limits.body:
                    raise whole
    except TimeoutError as error:
        raise Turned(408, f"a body has {limits.body_seconds:g} s to arrive: send it faster") from error
    return bytes(raw)


def understood(raw: bytes, kind: type[msgspec.Struct]) -> Any:
    """A body as its route takes it: nothing said twice, nothing deep, no numbers that are none, nothing unknown."""
    try:
        text = raw.decode()
        strict_json.read(text)
        return msgspec.json.decode(raw, type=kind)
    except Mistake as mistake:
        raise Usage(_mistaken(mistake)) from mistake
    except UnicodeDecodeError as error:
        raise Usage(f"the body is not UTF-8 at byte {error.start}: send it as UTF-8") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Usage(_misunderstood(error, raw)) from error


def _mistaken(mistake: Mistake) -> str:
    if not mistake.problem.startswith("is "):
        return f"in the body {mistake.problem}"
    return f"the body {mistake.problem} (line {mistake.line})"


def _misunderstood(error: Exception, raw: bytes) -> str:
    if not isinstance(error, msgspec.ValidationError) and HALF.search(raw):
        return "in the body a character is cut in two: a \\ud800 to \\udfff stands without its other half"
    if (said := str(error)).startswith(OUT_OF_RANGE):
        return f"in the body a number is too large{said.removeprefix(OUT_OF_RANGE)}"
    return f"the body cannot be understood: {said}"
