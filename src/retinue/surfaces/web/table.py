"""The table of routes: everything that can be asked over HTTP stands here, and nothing else can."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from retinue.domain.right import Right
from retinue.surfaces.web import agents, events, machine, people, runs, sessions, talk, watchers
from retinue.surfaces.web.describe import document
from retinue.surfaces.web.house import House
from retinue.surfaces.web.route import Nothing, Route, Wish


@cache
def openapi() -> dict[str, Any]:
    """The document of this table, made when somebody first asks for it."""
    return document(ROUTES)


async def described(_house: House, _wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return openapi()


ROUTES: Sequence[Route] = (
    *machine.ROUTES,
    *agents.ROUTES,
    *sessions.ROUTES,
    *talk.ROUTES,
    *runs.ROUTES,
    *people.ROUTES,
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
