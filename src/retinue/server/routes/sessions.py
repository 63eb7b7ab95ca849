"""Routes for sessions: list, create, get, change, delete, restore, clear and branch."""

from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.request_schemas import BranchBody, DraftBody, NewSessionBody, SessionPatch, SessionsQuery
from retinue.server.response_schemas import DeletedSession, SavedDraft, SessionDetails, SessionRow
from retinue.server.routing import ApiRequest, NoFields, Route

BUSY_ERROR = "It is at work, or another process has it open."


async def list_sessions(context: ServerContext, request: ApiRequest[SessionsQuery, NoFields]) -> Response:
    query = request.query
    sessions = await context.app.sessions.list_with_status(
        agent=query.agent, children=query.children, search=query.q, limit=query.limit
    )
    return Response(await context.session_row_cache.encode_list(sessions), media_type="application/json")


async def create_session(
    context: ServerContext, request: ApiRequest[NoFields, NewSessionBody]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.sessions.create(body.agent, name=body.name, workspace=body.workspace)
    return await context.app.sessions.to_json(session.id)


async def get_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.sessions.to_json((await context.app.sessions.find_for_api(request.ref)).id)


async def update_session(
    context: ServerContext, request: ApiRequest[NoFields, SessionPatch]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.sessions.update(
        (await context.app.sessions.find_for_api(request.ref)).id,
        name=None if body.name is UNSET else body.name or "",
        pinned=None if body.pinned is UNSET else body.pinned,
        attributes=None if body.attributes is UNSET else body.attributes,
    )
    return await context.app.sessions.to_json(session.id)


async def delete_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    session = await context.app.sessions.delete((await context.app.sessions.find_for_api(request.ref)).id)
    return {
        "session_id": session.id,
        "slug": session.slug,
        "deleted": True,
        "path": session.path,
        "undo": session.id,
    }


async def restore_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.sessions.to_json((await context.app.sessions.restore(request.ref)).id)


async def clear_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    session = await context.app.sessions.clear((await context.app.sessions.find_for_api(request.ref)).id)
    return await context.app.sessions.to_json(session.id)


async def branch_session(context: ServerContext, request: ApiRequest[NoFields, BranchBody]) -> dict[str, Any]:
    body = request.body
    session_id = (await context.app.sessions.find_for_api(request.ref)).id
    branch = await context.app.sessions.branch(session_id, at=body.at, include=body.include, name=body.name)
    return await context.app.sessions.to_json(branch.id)


async def save_draft(context: ServerContext, request: ApiRequest[NoFields, DraftBody]) -> dict[str, Any]:
    await context.app.sessions.save_draft(
        (await context.app.sessions.find_for_api(request.ref)).id, request.body.content
    )
    return {"saved": True}


ROUTES = (
    Route(
        method="GET",
        path="/api/sessions",
        right=ApiPermission.READ,
        handler=list_sessions,
        summary="Sessions: pinned first, the most recently pinned before the others, then the newest.",
        query=SessionsQuery,
        response=list[SessionRow],
    ),
    Route(
        method="POST",
        path="/api/sessions",
        right=ApiPermission.RUN,
        handler=create_session,
        summary="A new session of an agent, idle until something is said in it.",
        body=NewSessionBody,
        response=SessionDetails,
        success_status=201,
        extra_errors={404: "There is no such agent.", 403: "The configuration denies the agent."},
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}",
        right=ApiPermission.READ,
        handler=get_session,
        summary="What is known of one session, and what it and its children wait for a person with.",
        response=SessionDetails,
    ),
    Route(
        method="PATCH",
        path="/api/sessions/{ref}",
        right=ApiPermission.RUN,
        handler=update_session,
        summary="Another name, pinned or not, other attributes; what is not said stays.",
        body=SessionPatch,
        response=SessionDetails,
        extra_errors={403: "The attribute is the runtime's own."},
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{ref}",
        right=ApiPermission.RUN,
        handler=delete_session,
        summary="Puts a session aside with all of its branches and children; nothing finds it, and for 30 days it can be restored.",
        response=DeletedSession,
        extra_errors={409: f"{BUSY_ERROR} Or a result of or for it was not heard."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/restore",
        right=ApiPermission.RUN,
        handler=restore_session,
        summary="Brings a deleted session back.",
        response=SessionDetails,
        extra_errors={409: "Its name, or its place, is another session's now."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/clear",
        right=ApiPermission.RUN,
        handler=clear_session,
        summary="Forgets what was said; the session keeps its identity.",
        response=SessionDetails,
        extra_errors={409: BUSY_ERROR},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/branch",
        right=ApiPermission.RUN,
        handler=branch_session,
        summary="A copy of the conversation up to an entry of a user, from here on the current one.",
        body=BranchBody,
        response=SessionDetails,
        success_status=201,
        extra_errors={403: "Only top-level sessions have branches."},
    ),
    Route(
        method="PUT",
        path="/api/sessions/{ref}/draft",
        right=ApiPermission.RUN,
        handler=save_draft,
        summary="Keeps what a person is typing, below the open user line of the session's file.",
        body=DraftBody,
        response=SavedDraft,
        extra_errors={409: BUSY_ERROR},
    ),
)
