"""Routes for the entries of a session and for sending messages."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response, StreamingResponse

from retinue.app.messages import RESPONSE_PRUNED, MessageRequest
from retinue.domain.api_permission import ApiPermission
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Entry, entry_as_json
from retinue.errors import NotFound, UsageError
from retinue.server.asgi_app import error_response
from retinue.server.context import ServerContext
from retinue.server.example_values import RUN_ID, SESSION_ID
from retinue.server.json_encoding import encode_json
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import MessageText, Ref, RequestModel, ResponseModel, ResultLimit, TokenUsage
from retinue.sessions.pagination import PageRequest

DEFAULT_AROUND_LIMIT = 100
"""Default number of entries around an entry."""

MESSAGE_ERROR_CODES = {
    "usage": "invalid_arguments",
    "not_found": "agent_session_error",
    "conflict": "agent_session_error",
    "session_locked": "agent_session_error",
    "user_unavailable": "agent_session_error",
    "refused": "agent_not_accessible",
    "out_of_scope": "agent_not_accessible",
    "bad_config": "agent_not_available",
    "bad_definition": "agent_not_available",
    "failed": "agent_message_failed",
    "unreadable": "agent_message_failed",
}
"""Error code that `agents_message` uses for each Retinue error code."""


class EntriesQuery(RequestModel):
    """Select entries before, after or around an entry; at most one of the three may be given.

    Without a limit all matching entries are returned; with one, those nearest to the named entry, or the
    newest.
    """

    limit: ResultLimit | None = None
    before: Annotated[str, Meta(max_length=400)] = ""
    after: Annotated[str, Meta(max_length=400)] = ""
    around: Annotated[str, Meta(max_length=400)] = ""


class MessageBody(RequestModel):
    content: MessageText
    mode: Annotated[
        Literal["sync", "async"], Meta(description="sync waits for the response, async returns immediately.")
    ] = "sync"
    timeout: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds that sync waits; 0 means the configured maximum. The run continues afterwards.",
        ),
    ] = 300


class AgentMessageBody(MessageBody):
    session: Annotated[
        Ref,
        Meta(
            description="latest, create, latest-or-create, or a session of this agent.",
            examples=["latest-or-create"],
        ),
    ] = "latest-or-create"
    workspace: Annotated[
        str | None,
        Meta(description="Absolute path of the workspace of a new session, as in POST /api/sessions."),
    ] = None
    allow_home: Annotated[bool, Meta(description="As in POST /api/sessions.")] = False


class EntryTokenUsage(TokenUsage):
    cached: Annotated[int, Meta(description="Input tokens that came from the provider's cache.")]
    cache_write: Annotated[int, Meta(description="Input tokens that the provider stored in its cache.")]


class MessageEntry(ResponseModel, tag_field="kind", tag="message"):
    id: str
    role: Literal["user", "agent"]
    text: str
    at: str
    origin: Annotated[str, Meta(description="Author of a user entry; empty for a person.")]
    run: str
    model: str
    usage: EntryTokenUsage
    stop_reason: str
    tool_call_count: int


class ToolCallEntry(ResponseModel, tag_field="kind", tag="tool_call"):
    id: str
    tool: str
    args: Annotated[str, Meta(description="JSON text, as the model wrote it.")]
    at: str
    run: str
    invalid_reason: str


class ToolResultEntry(ResponseModel, tag_field="kind", tag="tool_result"):
    id: str
    call_id: Annotated[str, Meta(description="The id of the call.")]
    text: str
    ok: bool
    duration_ms: int
    at: str
    run: str


class NoticeEntry(ResponseModel, tag_field="kind", tag="notice"):
    id: str
    topic: Annotated[str, Meta(description="Why the runtime added the notice.")]
    text: str
    at: str
    run: str


TranscriptEntry = MessageEntry | ToolCallEntry | ToolResultEntry | NoticeEntry


class ToolCallSummary(ResponseModel):
    name: str
    durationMs: int  # noqa: N815  (names that programs know)


class MessageResponse(ResponseModel):
    """The outcome of a message, in the format of `agents_message`."""

    mode: Literal["sync", "async"]
    status: Annotated[
        Literal["complete", "timeout", "started", "queued", "waiting"],
        Meta(description="waiting: the agent needs a message; the next one continues its run."),
    ]
    agentId: str  # noqa: N815  (names that programs know)
    sessionId: str  # noqa: N815
    sessionName: str  # noqa: N815
    created: bool
    responseId: Annotated[str, Meta(description="The run's id.")]  # noqa: N815
    messageId: str | UnsetType = UNSET  # noqa: N815
    response: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    durationMs: int | UnsetType | None = UNSET  # noqa: N815
    toolCallCount: int | UnsetType = UNSET  # noqa: N815
    toolCalls: list[ToolCallSummary] | UnsetType = UNSET  # noqa: N815
    thinkingText: str | UnsetType = UNSET  # noqa: N815
    timeoutSeconds: float | UnsetType = UNSET  # noqa: N815
    message: str | UnsetType = UNSET


MESSAGE_ENTRY_EXAMPLE: dict[str, Any] = {
    "kind": "message",
    "id": RUN_ID,
    "role": "user",
    "text": "Where is the timetable?",
    "at": "2026-11-16T09:30:00Z",
    "origin": "",
    "run": RUN_ID,
    "model": "",
    "usage": {"input": 0, "output": 0, "cached": 0, "cache_write": 0},
    "stop_reason": "",
    "tool_call_count": 0,
}
MESSAGE_RESPONSE_EXAMPLE: dict[str, Any] = {
    "mode": "sync",
    "status": "complete",
    "agentId": "general",
    "sessionId": SESSION_ID,
    "sessionName": "Timetable",
    "created": False,
    "responseId": RUN_ID,
    "response": "It is src/timetable.py.",
    "truncated": False,
    "durationMs": 812,
    "toolCallCount": 0,
    "toolCalls": [],
}


@route(
    "GET",
    "/api/sessions/{ref}/entries",
    right=ApiPermission.READ,
    summary="List the entries, oldest first: all, the newest, or those before, after or around an entry.",
    query=EntriesQuery,
    response=list[TranscriptEntry],
    response_example=[MESSAGE_ENTRY_EXAMPLE],
)
async def list_entries(
    context: ServerContext, request: ApiRequest[EntriesQuery, EmptyFields]
) -> Response | list[dict[str, Any]]:
    query = request.query
    if sum(map(bool, (query.before, query.after, query.around))) > 1:
        raise UsageError("Use only one of before, after and around.")
    session = await context.app.sessions.find_for_api(request.ref)
    if query.limit is None and not query.around:
        return await _stream_entries(
            context.app.sessions.iter_entries_between(session.id, after=query.after, before=query.before)
        )
    page = PageRequest(
        limit=query.limit or DEFAULT_AROUND_LIMIT, before=query.before, after=query.after, around=query.around
    )
    return [entry_as_json(entry) for entry in await context.app.sessions.entries_page(session.id, page)]


async def _stream_entries(chunks: AsyncGenerator[list[Entry]]) -> Response:
    """Stream all entries as one JSON array, in little memory.

    The first chunk is read before the response starts, so that errors still get their own status.
    """
    empty: list[Entry] = []
    first = await anext(chunks, empty)

    async def encode_array() -> AsyncGenerator[bytes]:
        yield b"["
        separator = b""
        chunk: list[Entry] | None = first
        while chunk is not None:
            if chunk:
                yield separator + b",".join(encode_json(entry_as_json(entry)) for entry in chunk)
                separator = b","
            chunk = await anext(chunks, None)
        yield b"]"

    return StreamingResponse(encode_array(), media_type="application/json")


@route(
    "POST",
    "/api/sessions/{ref}/messages",
    right=ApiPermission.RUN,
    summary="Send a message to a session. Its agent answers in one run, which is queued if the session is "
    "busy, and continues if the client disconnects.",
    body=MessageBody,
    response=MessageResponse,
    request_example={
        "content": "Where is the timetable?",
        "mode": "sync",
        "timeout": 60,
    },
    response_example=MESSAGE_RESPONSE_EXAMPLE,
    is_idempotent=True,
    extra_errors={
        403: "The configuration denies the agent.",
        409: "Another process has the session open, the run was cancelled, or the Idempotency-Key was used for another "
        "message.",
        410: "The run is done, but its response was pruned; see details.",
        422: "The run ended without a response; see details.",
    },
    error_codes=MESSAGE_ERROR_CODES,
)
async def send_session_message(
    context: ServerContext, request: ApiRequest[EmptyFields, MessageBody]
) -> Response | dict[str, Any]:
    message = _message_request(request.body, request.idempotency_key)
    session = await context.app.sessions.find_for_api(request.ref)
    try:
        run, fields = await context.app.messages.send(session.id, message)
    except NotFound as error:
        await context.app.sessions.find_for_api(
            session.id
        )  # raises another error if the session was deleted meanwhile
        return error_response(404, "agent_not_found", str(error))
    return _message_response(run, fields)


@route(
    "POST",
    "/api/agents/{ref}/messages",
    right=ApiPermission.RUN,
    summary="Send a message to an agent, as `agents_message` does: in its latest session, in a new one, or in a "
    "given one of its sessions.",
    body=AgentMessageBody,
    response=MessageResponse,
    request_example={
        "content": "Where is the timetable?",
        "session": "latest-or-create",
        "mode": "async",
    },
    response_example=MESSAGE_RESPONSE_EXAMPLE | {"created": True},
    is_idempotent=True,
    extra_errors={
        403: "The configuration denies the agent, or its definition sets ui_visible: false.",
        404: "Agent not found, or the agent has no such session.",
        409: "The session belongs to another agent or is open in another process, the run was cancelled, or the "
        "Idempotency-Key was used for another message.",
        410: "The run is done, but its response was pruned; see details.",
        422: "The run ended without a response; see details.",
    },
    error_codes=MESSAGE_ERROR_CODES,
)
async def send_agent_message(
    context: ServerContext, request: ApiRequest[EmptyFields, AgentMessageBody]
) -> Response | dict[str, Any]:
    body = request.body
    message = _message_request(body, request.idempotency_key)
    try:
        context.app.messages.check_agent_accessible(request.ref, body.workspace)
    except NotFound as error:
        return error_response(404, "agent_not_found", f"Agent not found: {error}")
    run, fields = await context.app.messages.send_to_agent(
        request.ref,
        message,
        session=body.session,
        workspace=body.workspace,
        allow_home=body.allow_home or context.allow_home,
    )
    return _message_response(run, fields)


def _message_request(body: MessageBody, idempotency_key: str) -> MessageRequest:
    return MessageRequest(
        content=body.content,
        wait=body.mode == "sync",
        timeout_s=body.timeout,
        idempotency_key=idempotency_key,
    )


def _message_response(run: Run, fields: dict[str, Any]) -> Response | dict[str, Any]:
    error = fields.pop("error", None)
    if error is None:
        return {name: value for name, value in fields.items() if value is not None}
    status = 410 if error["code"] == RESPONSE_PRUNED else 409 if run.status is Status.CANCELLED else 422
    extra_fields = {"runStatus": str(run.status), "reason": None if run.reason is None else str(run.reason)}
    return error_response(status, error["code"], error["message"], **fields, **extra_fields)
