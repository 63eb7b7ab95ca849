"""Routes for the daemon itself: health, wake-up, page links and shutdown."""

import os
from collections import Counter
from typing import Annotated, Any

from msgspec import Meta

from retinue import __version__
from retinue.domain.api_permission import ApiPermission
from retinue.domain.model_selection import is_demo_model
from retinue.domain.timestamps import iso_timestamp
from retinue.server.context import ServerContext
from retinue.server.example_values import TIMESTAMP
from retinue.server.routing import ApiRequest, route
from retinue.server.schemas import ResponseModel, Timestamp
from retinue.sessions.lookup import LIST_MAX_AGE_S

AnyRequest = ApiRequest[Any, Any]


class DaemonCounts(ResponseModel):
    sessions: int
    queued: int
    running: int
    waiting: int
    approvals: int
    inbox: Annotated[int, Meta(description="Results that are not delivered yet.")]


class Health(ResponseModel):
    version: str
    pid: int
    owner: str
    settings: str
    url: str
    started_at: Timestamp
    sandbox: Annotated[str, Meta(description="Sandbox level: strict, landlock or none.")]
    model: Annotated[str | None, Meta(description="The default model, as provider:model.")]
    demonstration: Annotated[bool, Meta(description="True if the default model is only for demonstrations.")]
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]
    counts: DaemonCounts


class DaemonInfo(ResponseModel):
    accepts_runs: Annotated[bool, Meta(description="False: the daemon is stopping and accepts no more runs.")]
    version: str
    pid: int
    owner: str
    settings: str
    seq: Annotated[int, Meta(description="The number of the newest durable event.")]


class PageLink(ResponseModel):
    url: str


class StopResponse(ResponseModel):
    pid: int
    owner: str
    version: str


@route(
    "GET",
    "/api/health",
    right=ApiPermission.READ,
    summary="Get the daemon's version, sandbox level, model and counts.",
    response=Health,
    response_example={
        "version": "0.1.0",
        "pid": 4711,
        "owner": "432f1ea6-7847-4d2a-9ec6-3fba747fc09c",
        "settings": "81d9fb8f8762b4e907479029a9f54c94",
        "url": "http://127.0.0.1:8765",
        "started_at": TIMESTAMP,
        "sandbox": "strict",
        "model": "openai:gpt-5.6-terra",
        "demonstration": False,
        "seq": 128,
        "counts": {"sessions": 3, "queued": 0, "running": 1, "waiting": 0, "approvals": 0, "inbox": 1},
    },
)
async def get_health(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    app = context.app
    live = Counter(str(run.status) for run in await app.runs.list(live=True))
    return {
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner_id,
        "settings": app.live_config.current().fingerprint(),
        "url": context.page_url,
        "started_at": iso_timestamp(context.started_at),
        "sandbox": str(await app.sandbox_level()),
        "model": app.config.default_model(),
        "demonstration": is_demo_model(app.config.default_model()),
        "seq": await app.events.last_seq(),
        "counts": {
            "sessions": len(await app.sessions.list(max_age_s=LIST_MAX_AGE_S)),
            "queued": live["queued"],
            "running": live["running"],
            "waiting": live["waiting"],
            "approvals": len(await app.approvals.list()),
            "inbox": await app.inbox.unread_count(),
        },
    }


@route(
    "POST",
    "/api/wake",
    right=ApiPermission.RUN,
    summary="Make the daemon check for queued runs now.",
    response=DaemonInfo,
    response_example={
        "accepts_runs": True,
        "version": "0.1.0",
        "pid": 4711,
        "owner": "432f1ea6-7847-4d2a-9ec6-3fba747fc09c",
        "settings": "81d9fb8f8762b4e907479029a9f54c94",
        "seq": 128,
    },
)
async def wake_daemon(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    """Announce submitted work to the daemon.

    Every command that runs agents calls this first: its cost must not depend on the size of the home.
    """
    app = context.app
    return {
        "accepts_runs": context.wake(),
        "version": __version__,
        "pid": os.getpid(),
        "owner": app.owner_id,
        "settings": app.live_config.current().fingerprint(),
        "seq": await app.events.last_seq(),
    }


@route(
    "POST",
    "/api/links",
    right=ApiPermission.ADMIN,
    summary="Create a link that opens the page once.",
    response=PageLink,
    response_example={"url": "http://127.0.0.1:8765/enter/6S1W2Vz"},
)
async def create_page_link(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    return {"url": f"{context.page_url}/enter/{context.authenticator.create_link()}"}


@route(
    "POST",
    "/api/stop",
    right=ApiPermission.ADMIN,
    summary="Stop the daemon. Running turns get up to 10 seconds to finish.",
    response=StopResponse,
    response_example={
        "pid": 4711,
        "owner": "432f1ea6-7847-4d2a-9ec6-3fba747fc09c",
        "version": "0.1.0",
    },
)
async def stop_daemon(context: ServerContext, _request: AnyRequest) -> dict[str, Any]:
    context.stop()
    return {"pid": os.getpid(), "owner": context.app.owner_id, "version": __version__}
