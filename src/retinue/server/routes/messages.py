"""Routes for the entries of a session and for sending messages."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response as Answer
from starlette.responses import StreamingResponse

from retinue.app.messages import MessageRequest
from retinue.domain.api_permission import ApiPermission
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Entry, entry_as_json
from retinue.errors import NotFound, UsageError
from retinue.server.asgi_app import error_response
from retinue.server.context import ServerContext
from retinue.server.json_encoding import encode_json
from retinue.server.request_schemas import AgentMessageBody, EntriesQuery, MessageBody
from retinue.server.response_schemas import MessageResponse, TranscriptEntry
from retinue.server.routing import ApiRequest, NoFields, Route
from retinue.sessions.pagination import PageRequest

DEFAULT_AROUND_LIMIT = 100
"""Default number of entries around an entry."""

MESSAGE_ERROR_CODES = {
    "usage": "invalid_arguments",
    "not_found": "agent_session_error",
    "conflict": "agent_session_error",
    "held": "agent_session_error",
    "nobody_here": "agent_session_error",
    "refused": "agent_not_accessible",
    "out_of_scope": "agent_not_accessible",
    "bad_config": "agent_not_available",
    "bad_definition": "agent_not_available",
    "failed": "agent_message_failed",
    "unreadable": "agent_message_failed",
}
"""Error codes that `agents_message` uses, for each error code of ours."""


async def list_entries(
    context: ServerContext, request: ApiRequest[EntriesQuery, NoFields]
) -> Answer | list[dict[str, Any]]:
    query = request.query
    if sum(map(bool, (query.before, query.after, query.around))) > 1:
        raise UsageError("Use only one of before, after and around.")
    session = await context.app.find_session_for_api(request.ref)
    if query.limit is None and not query.around:
        return await _stream_entries(
            context.app.iter_entries_between(session.id, after=query.after, before=query.before)
        )
    span = PageRequest(
        limit=query.limit or DEFAULT_AROUND_LIMIT, before=query.before, after=query.after, around=query.around
    )
    return [entry_as_json(entry) for entry in await context.app.entries_page(session.id, span)]


async def _stream_entries(chunks: AsyncGenerator[list[Entry]]) -> Answer:
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


async def send_session_message(
    context: ServerContext, request: ApiRequest[NoFields, MessageBody]
) -> Answer | dict[str, Any]:
    body = request.body
    message = MessageRequest(
        content=body.content,
        wait=body.mode == "sync",
        timeout_s=body.timeout,
        idempotency_key=request.idempotency_key,
    )
    session = await context.app.find_session_for_api(request.ref)
    try:
        run, fields = await context.app.send_message(session.id, message)
    except NotFound as error:
        await context.app.find_session_for_api(
            session.id
        )  # raises another error if the session was deleted meanwhile
        return error_response(404, "agent_not_found", str(error))
    return _message_response(run, fields)


async def send_agent_message(
    context: ServerContext, request: ApiRequest[NoFields, AgentMessageBody]
) -> Answer | dict[str, Any]:
    body = request.body
    message = MessageRequest(
        content=body.content,
        wait=body.mode == "sync",
        timeout_s=body.timeout,
        idempotency_key=request.idempotency_key,
    )
    try:
        context.app.check_agent_accessible(request.ref, body.workspace)
    except NotFound as error:
        return error_response(404, "agent_not_found", f"Agent not found: {error}")
    run, fields = await context.app.send_to_agent(
        request.ref, message, session=body.session, workspace=body.workspace
    )
    return _message_response(run, fields)


def _message_response(run: Run, fields: dict[str, Any]) -> Answer | dict[str, Any]:
    error = fields.pop("error", None)
    if error is None:
        return {name: fact for name, fact in fields.items() if fact is not None}
    status = 409 if run.status is Status.CANCELLED else 422
    extra_fields = {"runStatus": str(run.status), "reason": None if run.reason is None else str(run.reason)}
    return error_response(status, error["code"], error["message"], **fields, **extra_fields)


ROUTES = (
    Route(
        method="GET",
        path="/api/sessions/{ref}/entries",
        right=ApiPermission.READ,
        handler=list_entries,
        summary="List the entries, oldest first: all, the newest, or those before, after or around an entry.",
        query=EntriesQuery,
        response=list[TranscriptEntry],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/messages",
        right=ApiPermission.RUN,
        handler=send_session_message,
        summary="Send a message to a session. Its agent answers in one run, which is queued if the session is "
        "busy, and continues if the client disconnects.",
        body=MessageBody,
        response=MessageResponse,
        is_idempotent=True,
        extra_errors={
            403: "The configuration denies the agent.",
            409: "Another process has it open, the run was cancelled, or the Idempotency-Key was used for another "
            "message.",
            422: "The run ended without a response; see details.",
        },
        error_codes=MESSAGE_ERROR_CODES,
    ),
    Route(
        method="POST",
        path="/api/agents/{ref}/messages",
        right=ApiPermission.RUN,
        handler=send_agent_message,
        summary="Send a message to an agent, as `agents_message` does: in its latest session, in a new one, or in a "
        "given one of its sessions.",
        body=AgentMessageBody,
        response=MessageResponse,
        is_idempotent=True,
        extra_errors={
            403: "The configuration denies the agent, or its definition says ui_visible: false.",
            404: "The agent was not found, or it has no session, or not the given one.",
            409: "The session belongs to another agent, another process has it open, the run was cancelled, or the "
            "Idempotency-Key was used for another message.",
            422: "The run ended without a response; see details.",
        },
        error_codes=MESSAGE_ERROR_CODES,
    ),
)
