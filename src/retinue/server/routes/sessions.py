"""Routes for sessions: list, create, get, change, delete, restore, clear and branch."""

from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from retinue.domain.api_permission import ApiPermission
from retinue.server.context import ServerContext
from retinue.server.request_schemas import BranchBody, DraftBody, NewSessionBody, SessionPatch, SessionsQuery
from retinue.server.response_schemas import DeletedSession, SavedDraft, SessionDetails, SessionRow
from retinue.server.routing import ApiRequest, NoFields, Route

BUSY_ERROR = "It has an active run, or another process has it open."


async def list_sessions(context: ServerContext, request: ApiRequest[SessionsQuery, NoFields]) -> Response:
    query = request.query
    sessions = await context.app.sessions_with_status(
        agent=query.agent, children=query.children, search=query.q, limit=query.limit
    )
    return Response(await context.session_row_cache.encode_list(sessions), media_type="application/json")


async def create_session(
    context: ServerContext, request: ApiRequest[NoFields, NewSessionBody]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.create_session(body.agent, name=body.name, workspace=body.workspace)
    return await context.app.session_json(session.id)


async def get_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.session_json((await context.app.find_session_for_api(request.ref)).id)


async def update_session(
    context: ServerContext, request: ApiRequest[NoFields, SessionPatch]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.update_session(
        (await context.app.find_session_for_api(request.ref)).id,
        name=None if body.name is UNSET else body.name or "",
        pinned=None if body.pinned is UNSET else body.pinned,
        attributes=None if body.attributes is UNSET else body.attributes,
    )
    return await context.app.session_json(session.id)


async def delete_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    session = await context.app.delete((await context.app.find_session_for_api(request.ref)).id)
    return {
        "session_id": session.id,
        "slug": session.slug,
        "deleted": True,
        "path": session.path,
        "undo": session.id,
    }


async def restore_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.session_json((await context.app.restore(request.ref)).id)


async def clear_session(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    session = await context.app.clear((await context.app.find_session_for_api(request.ref)).id)
    return await context.app.session_json(session.id)


async def branch_session(context: ServerContext, request: ApiRequest[NoFields, BranchBody]) -> dict[str, Any]:
    body = request.body
    session_id = (await context.app.find_session_for_api(request.ref)).id
    branch = await context.app.branch(session_id, at=body.at, include=body.include, name=body.name)
    return await context.app.session_json(branch.id)


async def save_draft(context: ServerContext, request: ApiRequest[NoFields, DraftBody]) -> dict[str, Any]:
    await context.app.save_draft(
        (await context.app.find_session_for_api(request.ref)).id, request.body.content
    )
    return {"saved": True}


ROUTES = (
    Route(
        method="GET",
        path="/api/sessions",
        right=ApiPermission.READ,
        handler=list_sessions,
        summary="List sessions: pinned ones first, the most recently pinned at the top, then the newest.",
        query=SessionsQuery,
        response=list[SessionRow],
    ),
    Route(
        method="POST",
        path="/api/sessions",
        right=ApiPermission.RUN,
        handler=create_session,
        summary="Create a session of an agent. It is idle until it receives a message.",
        body=NewSessionBody,
        response=SessionDetails,
        success_status=201,
        extra_errors={404: "Agent not found.", 403: "The configuration denies the agent."},
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}",
        right=ApiPermission.READ,
        handler=get_session,
        summary="Get one session, with the pending approvals and questions of it and its children.",
        response=SessionDetails,
    ),
    Route(
        method="PATCH",
        path="/api/sessions/{ref}",
        right=ApiPermission.RUN,
        handler=update_session,
        summary="Change the name, the pin or the attributes. Fields that are left out stay.",
        body=SessionPatch,
        response=SessionDetails,
        extra_errors={403: "The attribute is reserved."},
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{ref}",
        right=ApiPermission.RUN,
        handler=delete_session,
        summary="Delete a session with all its branches and children. It can be restored for 30 days.",
        response=DeletedSession,
        extra_errors={409: f"{BUSY_ERROR} Or a result of or for it is not delivered."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/restore",
        right=ApiPermission.RUN,
        handler=restore_session,
        summary="Restore a deleted session.",
        response=SessionDetails,
        extra_errors={409: "Another session now has its name or its folder."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/clear",
        right=ApiPermission.RUN,
        handler=clear_session,
        summary="Remove all messages of a session. It keeps its identity.",
        response=SessionDetails,
        extra_errors={409: BUSY_ERROR},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/branch",
        right=ApiPermission.RUN,
        handler=branch_session,
        summary="Copy the conversation up to a user entry. The copy becomes the current branch.",
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
        summary="Save a draft below the open user line of the session's file.",
        body=DraftBody,
        response=SavedDraft,
        extra_errors={409: BUSY_ERROR},
    ),
)
