"""Routes for watchers, and for child runs that a person starts from a session."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.app.messages import HTTP_KEY_PREFIX
from retinue.app.run_options import SpawnOptions
from retinue.domain.api_permission import ApiPermission
from retinue.domain.watch import Watch, watch_as_json
from retinue.errors import NotFound
from retinue.server.context import ServerContext
from retinue.server.example_values import CALL_ID, RUN_ID, SESSION_ID, SLUG, TIMESTAMP
from retinue.server.routes.inbox import INBOX_ROW_EXAMPLE, InboxRow
from retinue.server.routes.runs import RUN_DETAILS_EXAMPLE, RunDetails
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import RequestModel, ResponseModel, Timestamp

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
    content: Annotated[
        str,
        Meta(
            max_length=1_000_000,
            description="The task. May be empty for the agent with the slash command /review: it then reviews the changes in the workspace.",
        ),
    ]
    trigger: Trigger = "command"


class WatcherRow(ResponseModel):
    """A watcher, with the fields of `watch list --json` and the agent's display name."""

    id: str
    name: Annotated[str, Meta(description="Name: `pair#2` is the second watcher of its session.")]
    agent: str
    agent_display_name: Annotated[
        str | None, Meta(description="The agent's display name, if its definition has one.")
    ]
    session: Annotated[str, Meta(description="session_id of the watched session.")]
    slug: str
    watcher: Annotated[str, Meta(description="session_id of the watcher's own session.")]
    watching: bool
    trigger: str
    update_count: Annotated[int, Meta(description="Number of updates the watcher has received.")]
    last_entry_id: Annotated[str | None, Meta(description="Id of the last entry the watcher received.")]
    last_update_at: Timestamp | None
    created_at: Timestamp | None


INTERJECTION_ROW_EXAMPLE: dict[str, Any] = INBOX_ROW_EXAMPLE | {
    "agentId": "pair",
    "capability": "watcher",
    "label": None,
    "summary": "It rewrites the parser, but the task is to fix a typo.\n\nChange line 12 only.",
    "kind": "interjection",
    "severity": "warning",
    "reason": "It rewrites the parser, but the task is to fix a typo.",
    "suggestion": "Change line 12 only.",
}
WATCHER_ROW_EXAMPLE: dict[str, Any] = {
    "id": CALL_ID,
    "name": "pair#1",
    "agent": "pair",
    "agent_display_name": None,
    "session": SESSION_ID,
    "slug": SLUG,
    "watcher": "01a1e333-cbe6-7aef-b141-0270fa1d63e2",
    "watching": True,
    "trigger": "key",
    "update_count": 3,
    "last_entry_id": RUN_ID,
    "last_update_at": TIMESTAMP,
    "created_at": TIMESTAMP,
}


@route(
    "GET",
    "/api/watchers",
    right=ApiPermission.READ,
    summary="List all watchers and the sessions they watch.",
    response=list[WatcherRow],
    response_example=[WATCHER_ROW_EXAMPLE],
)
async def list_all_watchers(
    context: ServerContext, _request: ApiRequest[EmptyFields, EmptyFields]
) -> list[dict[str, Any]]:
    return await _watcher_rows(await context.app.watchers.list(), context)


async def _watcher_rows(watches: Sequence[Watch], context: ServerContext) -> list[dict[str, Any]]:
    names = context.app.agents.registry.display_name_finder()
    rows: list[dict[str, Any]] = []
    for each in watches:
        folder = ""
        if not names.is_own(each.agent):
            with suppress(NotFound):
                folder = (await context.app.sessions.find(each.watcher)).workspace.intended_folder
        rows.append(watch_as_json(each) | {"agent_display_name": names.find(each.agent, folder)})
    return rows


@route(
    "GET",
    "/api/sessions/{ref}/watchers",
    right=ApiPermission.READ,
    summary="List the watchers of a session.",
    response=list[WatcherRow],
    response_example=[WATCHER_ROW_EXAMPLE],
)
async def list_session_watchers(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> list[dict[str, Any]]:
    session = await context.app.sessions.find_for_api(request.ref)
    return await _watcher_rows(await context.app.watchers.list(session.id), context)


@route(
    "POST",
    "/api/sessions/{ref}/watchers",
    right=ApiPermission.RUN,
    summary="Start a watcher on a session. A watcher that is already active continues.",
    body=WatcherBody,
    response=WatcherRow,
    request_example={"agent": "pair", "trigger": "key"},
    response_example=WATCHER_ROW_EXAMPLE,
    success_status=201,
    extra_errors={403: "The agent does not have the role watcher, or the session belongs to a watcher."},
)
async def start_watcher(
    context: ServerContext, request: ApiRequest[EmptyFields, WatcherBody]
) -> dict[str, Any]:
    session = await context.app.sessions.find_for_api(request.ref)
    watch = await context.app.watchers.add(session.id, agent=request.body.agent, trigger=request.body.trigger)
    return (await _watcher_rows([watch], context))[0]


@route(
    "DELETE",
    "/api/sessions/{ref}/watchers",
    right=ApiPermission.RUN,
    summary="Stop the watchers of a session. Their comments are kept in the inbox.",
    query=WatchersQuery,
    response=list[WatcherRow],
    response_example=[WATCHER_ROW_EXAMPLE | {"watching": False}],
)
async def stop_watchers(
    context: ServerContext, request: ApiRequest[WatchersQuery, EmptyFields]
) -> list[dict[str, Any]]:
    session = await context.app.sessions.find_for_api(request.ref)
    return await _watcher_rows(
        await context.app.watchers.remove(session.id, agent=request.query.agent), context
    )


@route(
    "POST",
    "/api/sessions/{ref}/children",
    right=ApiPermission.RUN,
    summary="Start a child of a session with its own task. Its result is added to the session's transcript, or, if a slash command or a key started it, to the inbox.",
    body=ChildBody,
    response=RunDetails,
    request_example={
        "agent": "oracle",
        "content": "Why does it leave at nine?",
        "trigger": "slash",
    },
    response_example=RUN_DETAILS_EXAMPLE | {"agent": "oracle", "trigger": "slash"},
    success_status=201,
    is_idempotent=True,
    extra_errors={403: "The configuration denies the agent, or the maximum depth is reached."},
)
async def spawn_child(context: ServerContext, request: ApiRequest[EmptyFields, ChildBody]) -> dict[str, Any]:
    body = request.body
    parent = await context.app.sessions.find_for_api(request.ref)
    key = f"{HTTP_KEY_PREFIX}{request.idempotency_key}" if request.idempotency_key else ""
    run = await context.app.runs.spawn(
        body.content,
        SpawnOptions(parent=parent.id, agent=body.agent, trigger=body.trigger, key=key, in_conversation=True),
    )
    return await context.app.runs.to_json(run.id)


@route(
    "POST",
    "/api/inbox/{ref}/dismiss",
    right=ApiPermission.RUN,
    summary="Dismiss a watcher's comment.",
    response=InboxRow,
    response_example=INTERJECTION_ROW_EXAMPLE | {"delivery": "delivered"},
)
async def dismiss_interjection(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return await context.app.inbox.dismiss(request.ref, by=request.caller_name)
