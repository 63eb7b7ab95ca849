"""Routes and parsed requests."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext


class NoFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
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
    query: type[msgspec.Struct] = NoFields
    body: type[msgspec.Struct] = NoFields
    response: Any = None
    """Type of the response; None means JSON of any shape."""
    success_status: int = 200
    is_stream: bool = False
    is_idempotent: bool = False
    """True if the route honours an Idempotency-Key."""
    extra_errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """Additional error statuses and their meanings."""
    error_codes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Replacement error codes, where the route has its own."""
