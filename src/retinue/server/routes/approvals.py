"""Routes for approvals."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.app.agent_display_names import display_names_by_run
from retinue.domain.api_permission import ApiPermission
from retinue.domain.approval import Approval, approval_as_json
from retinue.server.context import ServerContext
from retinue.server.example_values import (
    APPROVAL_ID,
    CALL_ID,
    RUN_ID,
    SESSION_ID,
    SLUG,
    TIMESTAMP,
    WORKSPACE_PATH,
)
from retinue.server.routing import ApiRequest, EmptyFields, route
from retinue.server.schemas import JsonObject, RequestModel, ResponseModel, Timestamp


class ApprovalsQuery(RequestModel):
    all: Annotated[bool, Meta(description="Include answered, used and expired approvals.")] = False


class ApprovalAnswerBody(RequestModel):
    answer: Annotated[
        Literal["allow", "deny", "add"],
        Meta(description="add: grant the requested permissions from now on (only for access = scope)."),
    ]


class ApprovalRow(ResponseModel):
    id: str
    run_id: str
    session_id: str
    agent: str
    call: str
    tool: str
    access: Literal["read", "write", "run", "tool", "scope"]
    resource: str
    args: Annotated[str, Meta(description="The exact arguments, as JSON text.")]
    reason: str | None
    workspace: str | None
    sandbox: str | None
    files: list[JsonObject]
    files_note: str | None
    chain: Annotated[list[str], Meta(description="The chain of requesters, outermost first.")]
    add_effect: Annotated[
        str | None, Meta(description="The effect of the answer `add`; null: nothing can be added.")
    ]
    warning: Annotated[
        str | None,
        Meta(
            description="Warning about an unusually broad request, such as for the root of the file system; null without one."
        ),
    ]
    digest: str
    state: Literal["pending", "allowed", "denied", "expired", "void", "used"]
    asked_at: Timestamp
    expires_at: Timestamp
    answered_at: Timestamp | None
    answered_by: str | None
    answer: Literal["allow", "deny", "add"] | None
    agent_display_name: Annotated[
        str | None, Meta(description="The agent's display name; null if its definition has none.")
    ]


APPROVAL_ROW_EXAMPLE: dict[str, Any] = {
    "id": APPROVAL_ID,
    "run_id": RUN_ID,
    "session_id": SESSION_ID,
    "agent": "general",
    "agent_display_name": "General",
    "call": CALL_ID,
    "tool": "bash",
    "access": "run",
    "resource": "make test",
    "args": '{"command": "make test"}',
    "reason": "not preapproved by any rule",
    "workspace": WORKSPACE_PATH,
    "sandbox": "strict",
    "files": [],
    "files_note": None,
    "chain": ["person", SLUG],
    "add_effect": None,
    "warning": None,
    "digest": "9f2c",
    "state": "pending",
    "asked_at": TIMESTAMP,
    "expires_at": TIMESTAMP,
    "answered_at": None,
    "answered_by": None,
    "answer": None,
}


@route(
    "GET",
    "/api/approvals",
    right=ApiPermission.READ,
    summary="List pending approvals, oldest first.",
    query=ApprovalsQuery,
    response=list[ApprovalRow],
    response_example=[APPROVAL_ROW_EXAMPLE],
)
async def list_approvals(
    context: ServerContext, request: ApiRequest[ApprovalsQuery, EmptyFields]
) -> list[dict[str, Any]]:
    return await _approval_rows(await context.app.approvals.list(all_states=request.query.all), context)


async def _approval_rows(approvals: Sequence[Approval], context: ServerContext) -> list[dict[str, Any]]:
    display_names = await display_names_by_run(
        {each.run: each.agent for each in approvals}, context.app.context
    )
    return [approval_as_json(each) | {"agent_display_name": display_names[each.run]} for each in approvals]


@route(
    "GET",
    "/api/approvals/{ref}",
    right=ApiPermission.READ,
    summary="Get the exact call, who requested it, and why it requires approval.",
    response=ApprovalRow,
    response_example=APPROVAL_ROW_EXAMPLE,
)
async def get_approval(
    context: ServerContext, request: ApiRequest[EmptyFields, EmptyFields]
) -> dict[str, Any]:
    return (await _approval_rows([await context.app.approvals.find(request.ref)], context))[0]


@route(
    "POST",
    "/api/approvals/{ref}",
    right=ApiPermission.APPROVE,
    summary="Answer one approval, once. The run continues immediately.",
    body=ApprovalAnswerBody,
    response=ApprovalRow,
    request_example={"answer": "allow"},
    response_example=APPROVAL_ROW_EXAMPLE
    | {"state": "allowed", "answer": "allow", "answered_at": TIMESTAMP, "answered_by": "person"},
    extra_errors={
        403: "This approval is for one call: answer allow or deny.",
        409: "The approval was already answered or has expired.",
    },
)
async def answer_approval(
    context: ServerContext, request: ApiRequest[EmptyFields, ApprovalAnswerBody]
) -> dict[str, Any]:
    answered = await context.app.approvals.answer(request.ref, request.body.answer, by=request.caller_name)
    return (await _approval_rows([answered], context))[0]
