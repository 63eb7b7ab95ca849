"""Routes for the daemon itself: health, wake-up, page links and shutdown."""

import os
from collections import Counter
from typing import Any

from retinue import __version__
from retinue.domain.api_permission import ApiPermission
from retinue.domain.model_selection import is_demo_model
from retinue.domain.run import iso_timestamp
from retinue.server.context import ServerContext
from retinue.server.response_schemas import DaemonInfo, Health, PageLink, StoppedDaemon
from retinue.server.routing import ApiRequest, Route
from retinue.sessions.lookup import LIST_MAX_AGE_S

AnyRequest = ApiRequest[Any, Any]


async def get_health(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    app = context.app
    live = Counter(str(run.status) for run in await app.list_runs(live=True))
    return {
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner_id,
        "settings": app.config.fingerprint(),
        "url": context.page_url,
        "started_at": iso_timestamp(context.started_at),
        "sandbox": str(await app.sandbox_level()),
        "model": app.config.default_model(),
        "demonstration": is_demo_model(app.config.default_model()),
        "seq": await app.last_event_seq(),
        "counts": {
            "sessions": len(await app.list_sessions(max_age_s=LIST_MAX_AGE_S)),
            "queued": live["queued"],
            "running": live["running"],
            "waiting": live["waiting"],
            "approvals": len(await app.list_approvals()),
            "inbox": await app.unread_count(),
        },
    }


async def wake_daemon(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    """Announce submitted work to the daemon.

    Every command that runs agents calls this first: its cost must not depend on the size of the home.
    """
    app = context.app
    return {
        "looking": context.wake(),
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner_id,
        "settings": app.config.fingerprint(),
        "seq": await app.last_event_seq(),
    }


async def create_page_link(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    return {"url": f"{context.page_url}/enter/{context.authenticator.create_link()}"}


async def stop_daemon(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    context.stop()
    return {"pid": os.getpid(), "owner": context.app.owner_id, "version": __version__}


ROUTES = (
    Route(
        method="GET",
        path="/api/health",
        right=ApiPermission.READ,
        handler=get_health,
        summary="Get the daemon's version, sandbox level, model and counts.",
        response=Health,
    ),
    Route(
        method="POST",
        path="/api/look",
        right=ApiPermission.RUN,
        handler=wake_daemon,
        summary="Tell the daemon to check for queued runs now.",
        response=DaemonInfo,
    ),
    Route(
        method="POST",
        path="/api/links",
        right=ApiPermission.ADMIN,
        handler=create_page_link,
        summary="Create a link that opens the page once.",
        response=PageLink,
    ),
    Route(
        method="POST",
        path="/api/stop",
        right=ApiPermission.ADMIN,
        handler=stop_daemon,
        summary="Stop the daemon after running turns have had a moment to finish.",
        response=StoppedDaemon,
    ),
)
