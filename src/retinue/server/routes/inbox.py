"""Routes for the inbox."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.app import App
from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.example_values import CALL_ID, CHILD_ID, SESSION_ID, SLUG, TIMESTAMP, TRANSCRIPT_PATH
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import Ref, RequestModel, ResponseModel, Timestamp


class InboxQuery(RequestModel):
    session: Ref | None = None


class DrainBody(RequestModel):
    session: Ref | None = None


class RunStats(ResponseModel):
    turns: int
    toolCalls: int  # noqa: N815  (names that programs know)
    inputTokens: int  # noqa: N815
    outputTokens: int  # noqa: N815
    durationMs: int | None  # noqa: N815


class InboxRow(ResponseModel):
    """An inbox item, with the fields of `inbox --json`."""

    id: Annotated[str | None, Meta(description="Id of the delivery; null while the run is live.")]
    sessionId: str  # noqa: N815  (names that programs know)
    sessionKey: str  # noqa: N815
    runId: str  # noqa: N815
    agentId: str  # noqa: N815
    agentDisplayName: str | None  # noqa: N815
    capability: str
    label: str | None
    status: Literal["pending", "running", "waiting", "complete", "error"]
    summary: str | None
    error: str | None
    timestamp: Timestamp | None
    stats: RunStats
    delivery: str | None
    transcript: str
    recipient: Annotated[
        str | None, Meta(description="Slug of the conversation that receives the result or comment.")
    ]
    kind: Annotated[
        Literal["result", "interjection"], Meta(description="The result of a run, or a watcher's comment.")
    ]
    severity: Annotated[
        Literal["info", "warning", "interrupt"] | None,
        Meta(
            description="Severity of a watcher's comment. Only comments have this field and the following ones."
        ),
    ]
    reason: str | None
    suggestion: Annotated[str | None, Meta(description="What to do instead.")]
    interrupts: Annotated[str | None, Meta(description="The run whose turn the comment ended.")]


class PromotedRow(InboxRow):
    entry: Annotated[str, Meta(description="Id of the new entry in the parent conversation.")]
    already_promoted: bool


INBOX_ROW_EXAMPLE: dict[str, Any] = {
    "id": CALL_ID,
    "sessionId": SESSION_ID,
    "sessionKey": f"{SLUG}/main",
    "runId": CHILD_ID,
    "agentId": "researcher",
    "agentDisplayName": None,
    "capability": "subtask",
    "label": "timetable",
    "status": "complete",
    "summary": "Parcels leave at nine.",
    "error": None,
    "timestamp": TIMESTAMP,
    "stats": {"turns": 1, "toolCalls": 2, "inputTokens": 2100, "outputTokens": 40, "durationMs": 1900},
    "delivery": "pending",
    "transcript": TRANSCRIPT_PATH,
    "recipient": SLUG,
    "kind": "result",
    "severity": None,
    "reason": None,
    "suggestion": None,
    "interrupts": None,
}


@route(
    "GET",
    "/api/inbox",
    right=ApiPermission.READ,
    summary="List delegated tasks: those in progress, undelivered results, and the latest delivered ones.",
    query=InboxQuery,
    response=list[InboxRow],
    response_example=[INBOX_ROW_EXAMPLE],
    extra_errors={404: "Session not found."},
)
async def list_inbox(
    context: ServerContext, request: ApiRequest[InboxQuery, EmptyFields]
) -> list[dict[str, Any]]:
    return await context.app.inbox.list(await _session_id(context.app, request.query.session))


@route(
    "POST",
    "/api/inbox/drain",
    right=ApiPermission.RUN,
    summary="Mark undelivered results as read, so that no agent receives them.",
    body=DrainBody,
    response=list[InboxRow],
    request_example={"session": SLUG},
    response_example=[INBOX_ROW_EXAMPLE | {"delivery": "delivered"}],
    extra_errors={404: "Session not found."},
)
async def drain_inbox(
    context: ServerContext, request: ApiRequest[EmptyFields, DrainBody]
) -> list[dict[str, Any]]:
    return await context.app.inbox.drain(await _session_id(context.app, request.body.session))


@route(
    "POST",
    "/api/inbox/{ref}/promote",
    right=ApiPermission.RUN,
    summary="Write one result into the parent conversation, on behalf of the user.",
    response=PromotedRow,
    response_example=INBOX_ROW_EXAMPLE
    | {"delivery": "delivered", "entry": CALL_ID, "already_promoted": False},
    extra_errors={409: "There is no result yet, or the parent conversation has an active run."},
)
async def promote_result(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return await context.app.inbox.promote(request.ref)


async def _session_id(app: App, ref: str | None) -> str | None:
    return None if ref is None else (await app.sessions.find_for_api(ref)).id
