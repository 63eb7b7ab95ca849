"""The table of routes: everything that can be asked over HTTP stands here, and nothing else can."""

from collections.abc import Sequence

from retinue.surfaces.web import events, machine
from retinue.surfaces.web.route import Route

ROUTES: Sequence[Route] = (*machine.ROUTES, *events.ROUTES)
