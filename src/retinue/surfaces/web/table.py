"""The table of routes: everything that can be asked over HTTP stands here, and nothing else can."""

from collections.abc import Sequence

from retinue.surfaces.web import agents, events, machine, people, runs, sessions, talk
from retinue.surfaces.web.route import Route

ROUTES: Sequence[Route] = (
    *machine.ROUTES,
    *agents.ROUTES,
    *sessions.ROUTES,
    *talk.ROUTES,
    *runs.ROUTES,
    *people.ROUTES,
    *events.ROUTES,
)
