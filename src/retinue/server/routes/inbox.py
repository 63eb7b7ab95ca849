"""Routes for the inbox and approvals."""

from typing import Any

from retinue.app import App
from retinue.domain.api_permission import ApiPermission
from retinue.domain.approval import approval_as_json
from retinue.server.context import ServerContext
from retinue.server.request_schemas import ApprovalAnswerBody, ApprovalsQuery, DrainBody, InboxQuery
from retinue.server.response_schemas import ApprovalRow, InboxRow, PromotedRow
from retinue.server.routing import ApiRequest, NoFields, Route


async def list_inbox(
    context: ServerContext, request: ApiRequest[InboxQuery, NoFields]
) -> list[dict[str, Any]]:
    return await context.app.inbox.list(await _session_id(context.app, request.query.session))


async def drain_inbox(
    context: ServerContext, request: ApiRequest[NoFields, DrainBody]
) -> list[dict[str, Any]]:
    return await context.app.inbox.drain(await _session_id(context.app, request.body.session))


async def promote_result(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.inbox.promote(request.ref)


async def list_approvals(
    context: ServerContext, request: ApiRequest[ApprovalsQuery, NoFields]
) -> list[dict[str, Any]]:
    return [approval_as_json(each) for each in await context.app.approvals.list(all_states=request.query.all)]


async def get_approval(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return approval_as_json(await context.app.approvals.find(request.ref))


async def answer_approval(
    context: ServerContext, request: ApiRequest[NoFields, ApprovalAnswerBody]
) -> dict[str, Any]:
    return approval_as_json(
        await context.app.approvals.answer(request.ref, request.body.answer, by=request.caller_name)
    )


async def _session_id(app: App, ref: str | None) -> str | None:
    return None if ref is None else (await app.sessions.find_for_api(ref)).id


ROUTES = (
    Route(
        method="GET",
        path="/api/inbox",
        right=ApiPermission.READ,
        handler=list_inbox,
        summary="Who is at work for another agent, results that nobody has taken, and some that were taken.",
        query=InboxQuery,
        response=list[InboxRow],
        extra_errors={404: "There is no such session."},
    ),
    Route(
        method="POST",
        path="/api/inbox/drain",
        right=ApiPermission.RUN,
        handler=drain_inbox,
        summary="Counts what nobody has heard of as read: no agent is told of it.",
        body=DrainBody,
        response=list[InboxRow],
        extra_errors={404: "There is no such session."},
    ),
    Route(
        method="POST",
        path="/api/inbox/{ref}/promote",
        right=ApiPermission.RUN,
        handler=promote_result,
        summary="Passes one result on into the conversation that asked for it, in the person's name.",
        response=PromotedRow,
        extra_errors={409: "There is no result yet, or that conversation is at work."},
    ),
    Route(
        method="GET",
        path="/api/approvals",
        right=ApiPermission.READ,
        handler=list_approvals,
        summary="What waits for an answer, the oldest first.",
        query=ApprovalsQuery,
        response=list[ApprovalRow],
    ),
    Route(
        method="GET",
        path="/api/approvals/{ref}",
        right=ApiPermission.READ,
        handler=get_approval,
        summary="The exact call, who asked for it, and why it needs a yes.",
        response=ApprovalRow,
    ),
    Route(
        method="POST",
        path="/api/approvals/{ref}",
        right=ApiPermission.APPROVE,
        handler=answer_approval,
        summary="A person's answer to one exact call, once; the run goes on at once.",
        body=ApprovalAnswerBody,
        response=ApprovalRow,
        extra_errors={
            403: "It is for one call: allow or deny.",
            409: "It was answered already, or is too late.",
        },
    ),
)
