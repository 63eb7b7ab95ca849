"""The table of routes: everything that can be asked over HTTP stands here, and nothing else can."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from retinue.domain.api_permission import Right
from retinue.server.context import House
from retinue.server.openapi import document
from retinue.server.routes import agents, daemon, events, inbox, messages, runs, sessions, watchers
from retinue.server.routing import Nothing, Route, Wish


@cache
def openapi() -> dict[str, Any]:
    """The document of this table, made when somebody first asks for it."""
    return document(ROUTES)


async def described(_house: House, _wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return openapi()


ROUTES: Sequence[Route] = (
    *daemon.ROUTES,
    *agents.ROUTES,
    *sessions.ROUTES,
    *messages.ROUTES,
    *runs.ROUTES,
    *inbox.ROUTES,
    *watchers.ROUTES,
    *events.ROUTES,
    Route(
        method="GET",
        path="/api/openapi.json",
        right=Right.READ,
        does=described,
        says="This document.",
        gives=dict[str, Any],
    ),
)
