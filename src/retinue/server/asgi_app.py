"""The application as the server calls it: a request becomes a wish, its route does it, and the answer is JSON."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path as Folder
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp

from retinue.errors import Conflict, Held, NobodyHere, NoRoom, NotFound, Refused, RetinueError, Usage
from retinue.server import static_page
from retinue.server.context import House
from retinue.server.error_responses import DEFECT, Turned, shaped
from retinue.server.json_encoding import encoded
from retinue.server.middleware import Wall, turned_away
from retinue.server.request_parsing import read
from retinue.server.routing import Route

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


def application(house: House, routes: Sequence[Route], *, static: Folder = static_page.STATIC) -> ASGIApp:
    """Everything that can be asked, behind the wall; `static` is where the page's files are."""
    paths: dict[str, dict[str, Route]] = {}
    for each in routes:
        paths.setdefault(each.path, {})[each.method] = each
    asked = [Path(path, _endpoint(house, by), methods=list(by)) for path, by in paths.items()]
    inner = Starlette(
        routes=[*asked, *static_page.routes(house, static)],
        exception_handlers={HTTPException: _missed, Turned: _turned, Exception: _defect},
    )
    inner.router.redirect_slashes = False
    return Wall(house, inner)


def _endpoint(house: House, by_method: Mapping[str, Route]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        route = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            wish = await read(route, request)
            if request.method == "HEAD" and route.streams:
                return Response(media_type="text/event-stream")
            value = await route.does(house, wish)
        except RetinueError as error:
            return failed(_status(error), route.codes.get(error.code, error.code), str(error))
        return value if isinstance(value, Response) else answered(value, route.status)

    return endpoint


def _turned(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Turned)  # noqa: S101  (the table says so)
    return turned_away(error)


def _defect(_request: Request, _error: Exception) -> Response:
    """Nothing of it is told: the wall, which hears of it next, writes it down."""
    return turned_away(Turned(500, DEFECT))


def _missed(_request: Request, error: Exception) -> Response:
    """An address that is not there, or one that cannot be asked for so."""
    if isinstance(error, HTTPException) and error.status_code == 405:  # noqa: PLR2004  (HTTP's)
        allowed = ", ".join(sorted((error.headers or {})["Allow"].split(", ")))
        return turned_away(
            Turned(405, f"this address can be asked for with {allowed}", headers={"allow": allowed})
        )
    return turned_away(Turned(404, "there is no such address: GET /api/openapi.json lists those there are"))


def answered(value: object, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


def failed(status: int, code: str, message: str, **details: Any) -> Response:
    return Response(shaped(code, message, details), status, media_type="application/json")


def _status(error: RetinueError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)
