"""Routes and parsed requests.

A route is declared at its handler, in a module of `routes`:

    @route("GET", "/api/runs/{ref}", right=ApiPermission.READ, summary="…", response=RunDetails)
    async def get_run(context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]) -> dict[str, Any]: ...
"""

from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct, field

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext


class EmptyFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An empty body or query."""


Q = TypeVar("Q")
B = TypeVar("B")


class ApiRequest(Struct, Generic[Q, B], frozen=True, kw_only=True):
    """A parsed request: path, query and body in the types that its route declares."""

    ref: str = ""
    """The id or name in the path: a session, run, approval or agent."""
    query: Q
    body: B
    idempotency_key: str = ""
    """The Idempotency-Key: repeated requests with the same key are executed once."""
    last_event_id: int | None = None
    """The Last-Event-ID of a stream that resumes."""
    rights: frozenset[ApiPermission] = frozenset()
    caller_name: str = "person"


RouteHandler = Callable[[ServerContext, ApiRequest[Any, Any]], Awaitable[Any]]


class Route(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """Path, with `{ref}` for an id or name."""
    right: ApiPermission
    handler: RouteHandler
    summary: str
    """Summary in the OpenAPI document, one sentence."""
    query: type[msgspec.Struct] = EmptyFields
    body: type[msgspec.Struct] = EmptyFields
    response: Any = None
    """Type of the response; None means JSON of any shape."""
    request_example: Any = None
    response_example: Any = None
    """Examples in the OpenAPI document; tests check them against the types."""
    success_status: int = 200
    is_stream: bool = False
    is_idempotent: bool = False
    """True if the route honours an Idempotency-Key."""
    extra_errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """Additional error statuses and their meanings."""
    error_codes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Replacement error codes, where the route has its own."""


_EMPTY_FIELDS = cast("type[Any]", EmptyFields)


def route(  # noqa: PLR0913  (the parts of a declaration)
    method: str,
    path: str,
    *,
    right: ApiPermission,
    summary: str,
    query: type[Q] = _EMPTY_FIELDS,
    body: type[B] = _EMPTY_FIELDS,
    response: Any = None,
    request_example: Any = None,
    response_example: Any = None,
    success_status: int = 200,
    is_stream: bool = False,
    is_idempotent: bool = False,
    extra_errors: Mapping[int, str] | None = None,
    error_codes: Mapping[str, str] | None = None,
) -> Callable[[Callable[[ServerContext, ApiRequest[Q, B]], Awaitable[Any]]], Route]:
    """Declare a handler as a route; `Route` describes the arguments.

    The decorated name is the route: `collect_routes` finds it in its module.
    """

    def decorate(handler: Callable[[ServerContext, ApiRequest[Q, B]], Awaitable[Any]]) -> Route:
        return Route(
            method=method,
            path=path,
            right=right,
            handler=handler,
            summary=summary,
            query=cast("type[msgspec.Struct]", query),
            body=cast("type[msgspec.Struct]", body),
            response=response,
            request_example=request_example,
            response_example=response_example,
            success_status=success_status,
            is_stream=is_stream,
            is_idempotent=is_idempotent,
            extra_errors=extra_errors or {},
            error_codes=error_codes or {},
        )

    return decorate


def collect_routes(*modules: ModuleType) -> tuple[Route, ...]:
    """Return the routes that these modules declare, in the order of their declaration."""
    return tuple(each for module in modules for each in vars(module).values() if isinstance(each, Route))
