"""Routes about the daemon itself: how it is, a new link for the page, and its end."""

import os
from collections import Counter
from typing import Any

from retinue import __version__
from retinue.domain.run import iso
from retinue.surfaces.web.house import House
from retinue.surfaces.web.route import Right, Route, Wish

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
        "demonstration": False,
        "seq": await app.ledger.look(lambda tx: tx.last_seq()),
        "counts": {
            "sessions": len(await app.sessions()),
            "queued": live["queued"],
            "running": live["running"],
            "waiting": live["waiting"],
            "approvals": len(await app.approvals()),
        },
    }


async def look(house: House, _wish: Anything) -> dict[str, Any]:
    house.look()
    return {"looking": True}


async def link(house: House, _wish: Anything) -> dict[str, Any]:
    return {"url": f"{house.url}/enter/{house.keys.link()}"}


async def stop(house: House, _wish: Anything) -> dict[str, Any]:
    house.stop()
    return {"pid": os.getpid(), "owner": house.app.owner, "version": __version__}


ROUTES = (
    Route(method="GET", path="/api/health", right=Right.READ, does=health, says="How the daemon is."),
    Route(
        method="POST",
        path="/api/look",
        right=Right.RUN,
        does=look,
        says="Something was left for the daemon: it looks at once.",
    ),
    Route(
        method="POST",
        path="/api/links",
        right=Right.ADMIN,
        does=link,
        says="A link that opens the page, once.",
    ),
    Route(method="POST", path="/api/stop", right=Right.ADMIN, does=stop, says="The daemon drains and ends."),
)
