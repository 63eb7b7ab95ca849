"""All routes of the API."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.openapi import build_openapi_document
from retinue.server.routes import agents, approvals, daemon, events, inbox, messages, runs, sessions, watchers
from retinue.server.routing import ApiRequest, EmptyFields, Route, collect_routes, route


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the routes, built on first use."""
    return build_openapi_document(ROUTES)


@route(
    "GET",
    "/api/openapi.json",
    right=ApiPermission.READ,
    summary="This document.",
    response=dict[str, Any],
)
async def get_openapi_document(
    _context: ServerContext, _request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return openapi_document()


ROUTES: Sequence[Route] = (
    *collect_routes(daemon, agents, sessions, messages, runs, inbox, approvals, watchers, events),
    get_openapi_document,
)
