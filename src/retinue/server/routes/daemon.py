"""Routes about the daemon itself: how it is, a new link for the page, and its end."""

import os
from collections import Counter
from typing import Any

from retinue import __version__
from retinue.domain.api_permission import Right
from retinue.domain.model_selection import shows_only
from retinue.domain.run import iso
from retinue.server.context import House
from retinue.server.response_schemas import Health, Link, Looking, Stopping
from retinue.server.routing import Route, Wish
from retinue.sessions.lookup import LATELY

Anything = Wish[Any, Any]


async def health(house: House, _wish: Anything) -> dict[str, Any]:
    app = house.app
    live = Counter(str(run.status) for run in await app.runs(live=True))
    return {
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner,
        "settings": app.config.fingerprint(),
        "url": house.url,
        "started_at": iso(house.started_at),
        "sandbox": str(await app.level()),
        "model": app.config.default_model(),
        "demonstration": shows_only(app.config.default_model()),
        "seq": await app.last_seq(),
        "counts": {
            "sessions": len(await app.sessions(age=LATELY)),
            "queued": live["queued"],
            "running": live["running"],
            "waiting": live["waiting"],
            "approvals": len(await app.approvals()),
            "inbox": await app.unheard(),
        },
    }


async def look(house: House, _wish: Anything) -> dict[str, Any]:
    """Every command that works runs asks this first: it must cost nothing, whatever the home holds."""
    app = house.app
    return {
        "looking": house.look(),
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner,
        "settings": app.config.fingerprint(),
        "seq": await app.last_seq(),
    }


async def link(house: House, _wish: Anything) -> dict[str, Any]:
    return {"url": f"{house.url}/enter/{house.keys.link()}"}


async def stop(house: House, _wish: Anything) -> dict[str, Any]:
    house.stop()
    return {"pid": os.getpid(), "owner": house.app.owner, "version": __version__}


ROUTES = (
    Route(
        method="GET",
        path="/api/health",
        right=Right.READ,
        does=health,
        says="How the daemon is, and how much is going on.",
        gives=Health,
    ),
    Route(
        method="POST",
        path="/api/look",
        right=Right.RUN,
        does=look,
        says="Something was left for the daemon: it looks at once.",
        gives=Looking,
    ),
    Route(
        method="POST",
        path="/api/links",
        right=Right.ADMIN,
        does=link,
        says="A link that opens the page, once.",
        gives=Link,
    ),
    Route(
        method="POST",
        path="/api/stop",
        right=Right.ADMIN,
        does=stop,
        says="The daemon drains and ends.",
        gives=Stopping,
    ),
)
