"""The ASGI application: requests are parsed, routed, and answered with JSON."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from retinue.errors import (
    Conflict,
    DiskError,
    NotFound,
    Refused,
    RetinueError,
    SessionLocked,
    UnusableAgent,
    UsageError,
    UserUnavailable,
)
from retinue.server import static_page
from retinue.server.context import ServerContext
from retinue.server.error_responses import INTERNAL_ERROR_MESSAGE, HttpError, error_body
from retinue.server.json_encoding import encode_json
from retinue.server.middleware import SecurityMiddleware, http_error_response
from retinue.server.request_parsing import parse_request
from retinue.server.routing import Route

HTTP_STATUSES: Sequence[tuple[type[RetinueError], int]] = (
    (UnusableAgent, 400),
    (NotFound, 404),
    (UsageError, 400),
    (Conflict, 409),
    (SessionLocked, 409),
    (UserUnavailable, 409),
    (Refused, 403),
    (DiskError, 503),
)
"""HTTP status of each error type. The first match counts; any other error is 500."""


def create_asgi_app(
    context: ServerContext, routes: Sequence[Route], *, static: Path = static_page.STATIC_FOLDER
) -> ASGIApp:
    """Create the application with its routes, behind the security middleware.

    `static` is the folder with the files of the page.
    """
    paths: dict[str, dict[str, Route]] = {}
    for each in routes:
        paths.setdefault(each.path, {})[each.method] = each
    api_routes = [
        StarletteRoute(path, _make_endpoint(context, by_method), methods=list(by_method))
        for path, by_method in paths.items()
    ]
    app = Starlette(
        routes=[*api_routes, *static_page.page_routes(context, static)],
        exception_handlers={
            HTTPException: _on_routing_error,
            HttpError: _on_http_error,
            Exception: _on_unhandled_error,
        },
    )
    app.router.redirect_slashes = False
    return SecurityMiddleware(context, app)


def _make_endpoint(
    context: ServerContext, by_method: Mapping[str, Route]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        route = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            api_request = await parse_request(route, request)
            if request.method == "HEAD" and route.is_stream:
                return Response(media_type="text/event-stream")
            value = await route.handler(context, api_request)
        except RetinueError as error:
            return error_response(
                _http_status(error), route.error_codes.get(error.code, error.code), str(error)
            )
        return value if isinstance(value, Response) else json_response(value, route.success_status)

    return endpoint


def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)  # noqa: S101  (registered for this type only)
    return http_error_response(error)


def _on_unhandled_error(_request: Request, _error: Exception) -> Response:
    """Respond without details: the middleware, which receives the error next, logs them."""
    return http_error_response(HttpError(500, INTERNAL_ERROR_MESSAGE))


def _on_routing_error(_request: Request, error: Exception) -> Response:
    """Respond to an unknown path, or to a method that the path does not allow."""
    if isinstance(error, HTTPException) and error.status_code == 405:  # noqa: PLR2004  (HTTP's)
        allowed = ", ".join(sorted((error.headers or {})["Allow"].split(", ")))
        return http_error_response(
            HttpError(405, f"Method not allowed. Use {allowed}.", headers={"allow": allowed})
        )
    return http_error_response(HttpError(404, "Path not found. GET /api/openapi.json lists all paths."))


def json_response(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type="application/json")


def error_response(status: int, code: str, message: str, **details: Any) -> Response:
    return Response(error_body(code, message, details), status, media_type="application/json")


def _http_status(error: RetinueError) -> int:
    return next((status for error_type, status in HTTP_STATUSES if isinstance(error, error_type)), 500)
