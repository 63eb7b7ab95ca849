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
    return await context.app.list_inbox(await _session_id(context.app, request.query.session))


async def drain_inbox(
    context: ServerContext, request: ApiRequest[NoFields, DrainBody]
) -> list[dict[str, Any]]:
    return await context.app.drain_inbox(await _session_id(context.app, request.body.session))


async def promote_result(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return await context.app.promote(request.ref)


async def list_approvals(
    context: ServerContext, request: ApiRequest[ApprovalsQuery, NoFields]
) -> list[dict[str, Any]]:
    return [approval_as_json(each) for each in await context.app.list_approvals(all_states=request.query.all)]


async def get_approval(context: ServerContext, request: ApiRequest[NoFields, NoFields]) -> dict[str, Any]:
    return approval_as_json(await context.app.find_approval(request.ref))


async def answer_approval(
    context: ServerContext, request: ApiRequest[NoFields, ApprovalAnswerBody]
) -> dict[str, Any]:
    return approval_as_json(
        await context.app.answer_approval(request.ref, request.body.answer, by=request.caller_name)
    )


async def _session_id(app: App, ref: str | None) -> str | None:
    return None if ref is None else (await app.find_session_for_api(ref)).id


ROUTES = (
    Route(
        method="GET",
        path="/api/inbox",
        right=ApiPermission.READ,
        handler=list_inbox,
        summary="List delegated tasks: those in progress, undelivered results, and the latest delivered ones.",
        query=InboxQuery,
        response=list[InboxRow],
        extra_errors={404: "Session not found."},
    ),
    Route(
        method="POST",
        path="/api/inbox/drain",
        right=ApiPermission.RUN,
        handler=drain_inbox,
        summary="Mark undelivered results as read, so that no agent receives them.",
        body=DrainBody,
        response=list[InboxRow],
        extra_errors={404: "Session not found."},
    ),
    Route(
        method="POST",
        path="/api/inbox/{ref}/promote",
        right=ApiPermission.RUN,
        handler=promote_result,
        summary="Write one result into the parent conversation, in the user's name.",
        response=PromotedRow,
        extra_errors={409: "There is no result yet, or that conversation has an active run."},
    ),
    Route(
        method="GET",
        path="/api/approvals",
        right=ApiPermission.READ,
        handler=list_approvals,
        summary="List pending approvals, oldest first.",
        query=ApprovalsQuery,
        response=list[ApprovalRow],
    ),
    Route(
        method="GET",
        path="/api/approvals/{ref}",
        right=ApiPermission.READ,
        handler=get_approval,
        summary="Get the exact call, who requested it, and why it requires approval.",
        response=ApprovalRow,
    ),
    Route(
        method="POST",
        path="/api/approvals/{ref}",
        right=ApiPermission.APPROVE,
        handler=answer_approval,
        summary="Answer one approval, once. The run continues immediately.",
        body=ApprovalAnswerBody,
        response=ApprovalRow,
        extra_errors={
            403: "This approval is for one call: answer allow or deny.",
            409: "The approval was already answered or has expired.",
        },
    ),
)
