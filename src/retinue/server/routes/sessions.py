"""Routes for sessions: list, create, get, change, delete, restore, clear and branch."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from retinue.domain.api_permission import ApiPermission
from retinue.domain.session import DELETED_SESSION_RETENTION_DAYS
from retinue.errors import NotFound
from retinue.server.context import ServerContext
from retinue.server.example_values import RUN_ID, SESSION_ID, SLUG, TIMESTAMP, TRANSCRIPT_PATH, WORKSPACE_PATH
from retinue.server.routes.approvals import ApprovalRow
from retinue.server.routes.runs import QuestionRow
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import JsonObject, RequestModel, ResponseModel, Timestamp

BUSY_ERROR = "The session has an active run, or another process has it open."


class SessionsQuery(RequestModel):
    agent: Annotated[str | None, Meta(description="Only sessions of this agent.")] = None
    children: Annotated[bool, Meta(description="Include child sessions.")] = True
    q: Annotated[
        str,
        Meta(max_length=1000, description="Text to search for in the name, slug, agent and last message."),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class NewSessionBody(RequestModel):
    agent: Annotated[str, Meta(examples=["general"])]
    name: Annotated[str | None, Meta(description="One line, unique among sessions.")] = None
    workspace: Annotated[
        str | None,
        Meta(
            description="Absolute path of the workspace (default: the folder in which the daemon was started, or the "
            "user's home if that is the root)."
        ),
    ] = None
    allow_home: Annotated[
        bool,
        Meta(description="Allow the user's home folder, or a folder that contains it, as the workspace."),
    ] = False


class SessionPatch(RequestModel):
    """Changes to a session; fields that are left out keep their values."""

    name: Annotated[str | UnsetType | None, Meta(description="null removes the name.")] = UNSET
    pinned: bool | UnsetType = UNSET
    attributes: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Merged into the existing attributes; null removes one. At most 64 KiB in total."),
    ] = UNSET


class BranchBody(RequestModel):
    at: Annotated[
        Annotated[str, Meta(max_length=400)] | None,
        Meta(description="A user entry (default: the end of the conversation)."),
    ] = None
    include: Annotated[bool, Meta(description="Whether the branch includes that entry.")] = True
    name: Annotated[str, Meta(max_length=200)] = ""


class DraftBody(RequestModel):
    content: Annotated[
        str, Meta(max_length=1_000_000, description="The whole draft; an empty text clears it.")
    ]


class DeleteQuery(RequestModel):
    purge: Annotated[
        bool,
        Meta(
            description="Remove the session and everything about it from every file of the home at once, also if "
            "it was deleted before."
        ),
    ] = False


class ClearQuery(RequestModel):
    purge: Annotated[
        bool,
        Meta(description="Keep no copy of the messages, and delete the session's children for good."),
    ] = False


class WorkspaceInfo(ResponseModel):
    root: str
    isolation: str
    writable: bool
    label: str
    source: str | None
    git_dir: Annotated[
        str | None,
        Meta(description="The folder with the git data of the worktree that was created for the session."),
    ]
    project: str | None


class SessionRow(ResponseModel):
    """A session, with the fields of `sessions list --json` and its current activity."""

    session_id: Annotated[str, Meta(description="The UUID.")]
    slug: str
    key: str
    agent: str
    name: str | None
    branch: str
    parent_session_id: Annotated[str | None, Meta(description="The parent's slug.")]
    parent: Annotated[str | None, Meta(description="The parent's session_id.")]
    type: Literal["branch", "agent"]
    depth: int
    path: Annotated[str, Meta(description="Path of session.md.")]
    created_at: Timestamp
    updated_at: Timestamp
    pinned_at: Timestamp | None
    last_snippet: str
    attributes: JsonObject
    workspace: WorkspaceInfo
    status: Literal["idle", "queued", "running", "waiting"]
    waiting_for: str | None
    run: Annotated[str | None, Meta(description="The active run.")]
    agent_display_name: Annotated[
        str | None, Meta(description="The agent's display name; null if its definition has none.")
    ]


class AnnouncementRow(ResponseModel):
    type: str
    summary: str
    createdAt: Timestamp  # noqa: N815  (names that programs know)
    childSessionId: str  # noqa: N815
    metadata: JsonObject


class SessionApprovalRow(ApprovalRow):
    slug: Annotated[str, Meta(description="Slug of the session that requests the approval.")]


class SessionDetails(SessionRow):
    """A session, with the fields of `sessions show --json`."""

    entries: int
    draft: Annotated[str, Meta(description="Unsent text below the file's open user line.")]
    announcements: list[AnnouncementRow]
    approvals: list[SessionApprovalRow]
    questions: list[QuestionRow]
    preset: Literal["live", "edited", "own", "unreadable"]
    permissions: JsonObject | None
    problems: list[str]


class DeletedSession(ResponseModel):
    session_id: str
    slug: str
    deleted: bool
    purged: bool
    path: Annotated[str | None, Meta(description="Current path of the session's folder; null after a purge.")]
    restore_id: Annotated[
        str | None,
        Meta(description="The id for POST /api/sessions/{id}/restore; null after a purge."),
    ]


class SavedDraft(ResponseModel):
    saved: bool


SESSION_ROW_EXAMPLE: dict[str, Any] = {
    "session_id": SESSION_ID,
    "slug": SLUG,
    "key": f"{SLUG}/main",
    "agent": "general",
    "agent_display_name": "General",
    "name": "Timetable",
    "branch": "main",
    "parent_session_id": None,
    "parent": None,
    "type": "branch",
    "depth": 0,
    "path": TRANSCRIPT_PATH,
    "created_at": TIMESTAMP,
    "updated_at": TIMESTAMP,
    "pinned_at": None,
    "last_snippet": "It is src/timetable.py.",
    "attributes": {"panel": "left"},
    "workspace": {
        "root": WORKSPACE_PATH,
        "isolation": "shared",
        "writable": True,
        "label": "parcel",
        "source": None,
        "git_dir": None,
        "project": None,
    },
    "status": "idle",
    "waiting_for": None,
    "run": None,
}
SESSION_DETAILS_EXAMPLE: dict[str, Any] = SESSION_ROW_EXAMPLE | {
    "entries": 2,
    "draft": "",
    "announcements": [],
    "approvals": [],
    "questions": [],
    "preset": "live",
    "permissions": None,
    "problems": [],
}


@route(
    "GET",
    "/api/sessions",
    right=ApiPermission.READ,
    summary="List sessions: pinned ones first, the most recently pinned at the top, then the newest.",
    query=SessionsQuery,
    response=list[SessionRow],
    response_example=[SESSION_ROW_EXAMPLE],
)
async def list_sessions(context: ServerContext, request: ApiRequest[SessionsQuery, EmptyFields]) -> Response:
    query = request.query
    sessions = await context.app.sessions.list_with_status(
        agent=query.agent, children=query.children, search=query.q, limit=query.limit
    )
    return Response(
        await context.session_row_cache.encode_list(
            sessions, context.app.agents.registry.display_name_finder()
        ),
        media_type="application/json",
    )


@route(
    "POST",
    "/api/sessions",
    right=ApiPermission.RUN,
    summary="Create a session of an agent. It is idle until it receives a message.",
    body=NewSessionBody,
    response=SessionDetails,
    request_example={"agent": "general", "name": "Timetable", "workspace": WORKSPACE_PATH},
    response_example=SESSION_DETAILS_EXAMPLE,
    success_status=201,
    extra_errors={
        404: "Agent not found.",
        403: "The configuration denies the agent, or the workspace is the user's home.",
        409: "Another session already uses the name.",
    },
)
async def create_session(
    context: ServerContext, request: ApiRequest[EmptyFields, NewSessionBody]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.sessions.create(
        body.agent,
        name=body.name,
        workspace=body.workspace,
        allow_home=body.allow_home or context.allow_home,
    )
    return await context.app.sessions.to_json(session.id)


@route(
    "GET",
    "/api/sessions/{ref}",
    right=ApiPermission.READ,
    summary="Get one session, with the pending approvals and questions of it and its children.",
    response=SessionDetails,
    response_example=SESSION_DETAILS_EXAMPLE,
)
async def get_session(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return await context.app.sessions.to_json((await context.app.sessions.find_for_api(request.ref)).id)


@route(
    "PATCH",
    "/api/sessions/{ref}",
    right=ApiPermission.RUN,
    summary="Change the name, the pin or the attributes. Fields that are left out keep their values.",
    body=SessionPatch,
    response=SessionDetails,
    request_example={"pinned": True, "attributes": {"panel": "left", "old": None}},
    response_example=SESSION_DETAILS_EXAMPLE | {"pinned_at": TIMESTAMP},
    extra_errors={403: "The attribute is reserved.", 409: "Another session already uses the name."},
)
async def update_session(
    context: ServerContext, request: ApiRequest[EmptyFields, SessionPatch]
) -> dict[str, Any]:
    body = request.body
    session = await context.app.sessions.update(
        (await context.app.sessions.find_for_api(request.ref)).id,
        name=None if body.name is UNSET else body.name or "",
        pinned=None if body.pinned is UNSET else body.pinned,
        attributes=None if body.attributes is UNSET else body.attributes,
    )
    return await context.app.sessions.to_json(session.id)


@route(
    "DELETE",
    "/api/sessions/{ref}",
    right=ApiPermission.RUN,
    summary="Delete a session with all its branches and children. "
    f"It can be restored for {DELETED_SESSION_RETENTION_DAYS} days, unless it is purged.",
    query=DeleteQuery,
    response=DeletedSession,
    response_example={
        "session_id": SESSION_ID,
        "slug": SLUG,
        "deleted": True,
        "purged": False,
        "path": f"/home/ada/.local/share/retinue/sessions/{SLUG}.deleted.20261116094500",
        "restore_id": SESSION_ID,
    },
    extra_errors={
        409: "The session has an active run or an undelivered result, or another process has it open."
    },
)
async def delete_session(
    context: ServerContext, request: ApiRequest[DeleteQuery, EmptyFields]
) -> dict[str, Any]:
    sessions, purge = context.app.sessions, request.query.purge
    try:
        ref = (await sessions.find_for_api(request.ref)).id
    except NotFound:
        if not purge:
            raise
        ref = request.ref  # it may be in the trash
    session = await sessions.delete(ref, purge=purge)
    return {
        "session_id": session.id,
        "slug": session.slug,
        "deleted": True,
        "purged": purge,
        "path": session.path or None,
        "restore_id": None if purge else session.id,
    }


@route(
    "POST",
    "/api/sessions/{ref}/restore",
    right=ApiPermission.RUN,
    summary="Restore a deleted session.",
    response=SessionDetails,
    response_example=SESSION_DETAILS_EXAMPLE,
    extra_errors={409: "Another session already uses the name or folder."},
)
async def restore_session(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return await context.app.sessions.to_json((await context.app.sessions.restore(request.ref)).id)


@route(
    "POST",
    "/api/sessions/{ref}/clear",
    right=ApiPermission.RUN,
    summary="Remove all messages of a session. Its id, name and folder are kept.",
    query=ClearQuery,
    response=SessionDetails,
    response_example=SESSION_DETAILS_EXAMPLE | {"entries": 0, "last_snippet": ""},
    extra_errors={409: BUSY_ERROR},
)
async def clear_session(
    context: ServerContext, request: ApiRequest[ClearQuery, EmptyFields]
) -> dict[str, Any]:
    session_id = (await context.app.sessions.find_for_api(request.ref)).id
    session = await context.app.sessions.clear(session_id, purge=request.query.purge)
    return await context.app.sessions.to_json(session.id)


@route(
    "POST",
    "/api/sessions/{ref}/branch",
    right=ApiPermission.RUN,
    summary="Copy the conversation up to a user entry. The copy becomes the current branch.",
    body=BranchBody,
    response=SessionDetails,
    request_example={"at": RUN_ID, "include": False, "name": "other"},
    response_example=SESSION_DETAILS_EXAMPLE | {"branch": "20261116094500-other"},
    success_status=201,
    extra_errors={403: "Only top-level sessions have branches."},
)
async def branch_session(
    context: ServerContext, request: ApiRequest[EmptyFields, BranchBody]
) -> dict[str, Any]:
    body = request.body
    session_id = (await context.app.sessions.find_for_api(request.ref)).id
    branch = await context.app.sessions.branch(session_id, at=body.at, include=body.include, name=body.name)
    return await context.app.sessions.to_json(branch.id)


@route(
    "PUT",
    "/api/sessions/{ref}/draft",
    right=ApiPermission.RUN,
    summary="Save a draft below the open user line of the session's file.",
    body=DraftBody,
    response=SavedDraft,
    request_example={"content": "Where is the time"},
    response_example={"saved": True},
    extra_errors={409: BUSY_ERROR},
)
async def save_draft(context: ServerContext, request: ApiRequest[EmptyFields, DraftBody]) -> dict[str, Any]:
    await context.app.sessions.save_draft(
        (await context.app.sessions.find_for_api(request.ref)).id, request.body.content
    )
    return {"saved": True}
