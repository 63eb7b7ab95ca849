"""Routes for watchers, and for child runs that a person starts from a session."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.app.messages import HTTP_KEY_PREFIX
from retinue.domain.api_permission import ApiPermission
from retinue.domain.watch import watch_as_json
from retinue.server.context import ServerContext
from retinue.server.request_schemas import MessageText, RequestModel
from retinue.server.response_schemas import InboxRow, ResponseModel, Timestamp
from retinue.server.routing import ApiRequest, NoFields, Route
from retinue.server.run_json import RunDetails

AgentName = Annotated[str, Meta(max_length=64, examples=["pair"])]
Trigger = Annotated[
    Literal["command", "slash", "key"],
    Meta(description="What started it: a program or a button, a slash command, or a key."),
]


class WatchersQuery(RequestModel):
    agent: Annotated[AgentName | None, Meta(description="Only this watcher (default: all).")] = None


class WatcherBody(RequestModel):
    agent: AgentName = "pair"
    trigger: Trigger = "command"


class ChildBody(RequestModel):
    agent: AgentName
    content: MessageText
    trigger: Trigger = "command"


class WatcherRow(ResponseModel):
    """A watcher, with the fields of `watch list --json`."""

    id: str
    name: Annotated[str, Meta(description="Name: `pair#2` is the second watcher of its session.")]
    agent: str
    session: Annotated[str, Meta(description="session_id of the watched session.")]
    slug: str
    watcher: Annotated[str, Meta(description="session_id of the watcher's own session.")]
    watching: bool
    trigger: str
    told: Annotated[int, Meta(description="How often it received new entries.")]
    heard: Annotated[str | None, Meta(description="The last entry it received.")]
    told_at: Timestamp | None
    created_at: Timestamp | None


async def list_all_watchers(
    context: ServerContext, _request: ApiRequest[NoFields, NoFields]
) -> list[dict[str, Any]]:
    return [watch_as_json(each) for each in await context.app.list_watchers()]


async def list_session_watchers(
    context: ServerContext, request: ApiRequest[NoFields, NoFields]
) -> list[dict[str, Any]]:
    session = await context.app.find_session_for_api(request.ref)
    return [watch_as_json(each) for each in await context.app.list_watchers(session.id)]


async def start_watcher(context: ServerContext, request: ApiRequest[NoFields, WatcherBody]) -> dict[str, Any]:
    session = await context.app.find_session_for_api(request.ref)
    return watch_as_json(
        await context.app.watch(session.id, agent=request.body.agent, trigger=request.body.trigger)
    )


async def stop_watchers(
    context: ServerContext, request: ApiRequest[WatchersQuery, NoFields]
) -> list[dict[str, Any]]:
    session = await context.app.find_session_for_api(request.ref)
    return [watch_as_json(each) for each in await context.app.unwatch(session.id, agent=request.query.agent)]


async def spawn_child(context: ServerContext, request: ApiRequest[NoFields, ChildBody]) -> dict[str, Any]:
    body = request.body
    parent = await context.app.find_session_for_api(request.ref)
    key = f"{HTTP_KEY_PREFIX}{request.idempotency_key}" if request.idempotency_key else ""
    run = await context.app.spawn(
        body.content, parent=parent.id, agent=body.agent, trigger=body.trigger, key=key
    )
    return await context.app.run_json(run.id)


async def dismiss_interjection(
    context: ServerContext, request: ApiRequest[NoFields, NoFields]
) -> dict[str, Any]:
    return await context.app.dismiss(request.ref, by=request.caller_name)


ROUTES = (
    Route(
        method="GET",
        path="/api/watchers",
        right=ApiPermission.READ,
        handler=list_all_watchers,
        summary="List all watchers and the sessions they watch.",
        response=list[WatcherRow],
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}/watchers",
        right=ApiPermission.READ,
        handler=list_session_watchers,
        summary="List the watchers of a session.",
        response=list[WatcherRow],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/watchers",
        right=ApiPermission.RUN,
        handler=start_watcher,
        summary="Start a watcher on a session. A watcher that is already active continues.",
        body=WatcherBody,
        response=WatcherRow,
        success_status=201,
        extra_errors={403: "The agent does not have the role watcher, or the session belongs to a watcher."},
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{ref}/watchers",
        right=ApiPermission.RUN,
        handler=stop_watchers,
        summary="Stop the watchers of a session. Their comments stay in the inbox.",
        query=WatchersQuery,
        response=list[WatcherRow],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/children",
        right=ApiPermission.RUN,
        handler=spawn_child,
        summary="Start a child of a session with its own task. If a slash command or a key started it, its result goes to the inbox.",
        body=ChildBody,
        response=RunDetails,
        success_status=201,
        is_idempotent=True,
        extra_errors={403: "The configuration denies the agent, or the session is too deep."},
    ),
    Route(
        method="POST",
        path="/api/inbox/{ref}/dismiss",
        right=ApiPermission.RUN,
        handler=dismiss_interjection,
        summary="Dismiss a watcher's comment.",
        response=InboxRow,
    ),
)
