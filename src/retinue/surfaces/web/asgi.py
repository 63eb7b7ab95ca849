"""The application as the server calls it: a request becomes a wish, its route does it, and the answer is JSON."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from retinue.errors import Conflict, Held, NobodyHere, NoRoom, NotFound, Refused, RetinueError, Usage
from retinue.surfaces.web.house import House
from retinue.surfaces.web.route import Nothing, Route, Wish

STATUS: Sequence[tuple[type[RetinueError], int]] = (
    (NotFound, 404),
    (Usage, 400),
    (Conflict, 409),
    (Held, 409),
    (NobodyHere, 409),
    (Refused, 403),
    (NoRoom, 503),
)
"""What an error is over HTTP; the first that fits counts, and any other is 500."""


def application(house: House, routes: Sequence[Route]) -> Starlette:
    return Starlette(
        routes=[Path(each.path, _endpoint(house, each), methods=[each.method]) for each in routes]
    )


def _endpoint(house: House, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            value = await route.does(house, await _wish(route, request))
        except RetinueError as error:
            return failed(_status(error), route.codes.get(error.code, error.code), str(error))
        return value if isinstance(value, Response) else answered(value, route.status)

    return endpoint


async def _wish(route: Route, request: Request) -> Wish[Any, Any]:
    return Wish(
        ref=request.path_params.get("ref", ""),
        query=_read(route.query, dict(request.query_params), "the query"),
        body=await _body(route, request),
        key=request.headers.get("idempotency-key", ""),
        last_event=_last_event(request.headers.get("last-event-id", "")) if route.streams else None,
    )


async def _body(route: Route, request: Request) -> Any:
    if request.method in ("GET", "HEAD", "DELETE"):
        return None
    raw = await request.body()
    if not raw and route.takes is Nothing:
        return None
    try:
        return msgspec.json.decode(raw, type=route.takes)
    except msgspec.MsgspecError as error:
        raise Usage(f"the body cannot be understood: {error}") from error


def _last_event(said: str) -> int | None:
    """Only what a stream has said itself; anything else is another server's, and counts for nothing."""
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else None  # noqa: PLR2004  (64 bits)


def _read(kind: type[msgspec.Struct], said: Mapping[str, str], what: str) -> Any:
    try:
        return msgspec.convert(said, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Usage(f"{what} cannot be understood: {error}") from error


def answered(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value).encode(), status, media_type="application/json")


def failed(status: int, code: str, message: str, **details: Any) -> Response:
    return answered({"error": {"code": code, "message": message, "details": details}}, status)


def _status(error: RetinueError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)
