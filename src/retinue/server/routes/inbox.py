"""Routes for the person in charge: what agents left, and what they may not do without a yes."""

from typing import Any

from retinue.app import App
from retinue.domain.api_permission import Right
from retinue.domain.approval import as_json
from retinue.server.context import House
from retinue.server.request_schemas import Answering, ApprovalsQuery, Draining, InboxQuery
from retinue.server.response_schemas import ApprovalRow, InboxRow, Promoted
from retinue.server.routing import Nothing, Route, Wish


async def inbox(house: House, wish: Wish[InboxQuery, Nothing]) -> list[dict[str, Any]]:
    return await house.app.inbox(await _session(house.app, wish.query.session))


async def drained(house: House, wish: Wish[Nothing, Draining]) -> list[dict[str, Any]]:
    return await house.app.drain_inbox(await _session(house.app, wish.body.session))


async def promoted(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.promote(wish.ref)


async def approvals(house: House, wish: Wish[ApprovalsQuery, Nothing]) -> list[dict[str, Any]]:
    return [as_json(each) for each in await house.app.approvals(all_states=wish.query.all)]


async def approval(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return as_json(await house.app.approval(wish.ref))


async def answered(house: House, wish: Wish[Nothing, Answering]) -> dict[str, Any]:
    return as_json(await house.app.answer(wish.ref, wish.body.answer, by=wish.by))


async def _session(app: App, ref: str | None) -> str | None:
    return None if ref is None else (await app.named(ref)).id


ROUTES = (
    Route(
        method="GET",
        path="/api/inbox",
        right=Right.READ,
        does=inbox,
        says="Who is at work for another agent, results that nobody has taken, and some that were taken.",
        query=InboxQuery,
        gives=list[InboxRow],
        errors={404: "There is no such session."},
    ),
    Route(
        method="POST",
        path="/api/inbox/drain",
        right=Right.RUN,
        does=drained,
        says="Counts what nobody has heard of as read: no agent is told of it.",
        takes=Draining,
        gives=list[InboxRow],
        errors={404: "There is no such session."},
    ),
    Route(
        method="POST",
        path="/api/inbox/{ref}/promote",
        right=Right.RUN,
        does=promoted,
        says="Passes one result on into the conversation that asked for it, in the person's name.",
        gives=Promoted,
        errors={409: "There is no result yet, or that conversation is at work."},
    ),
    Route(
        method="GET",
        path="/api/approvals",
        right=Right.READ,
        does=approvals,
        says="What waits for an answer, the oldest first.",
        query=ApprovalsQuery,
        gives=list[ApprovalRow],
    ),
    Route(
        method="GET",
        path="/api/approvals/{ref}",
        right=Right.READ,
        does=approval,
        says="The exact call, who asked for it, and why it needs a yes.",
        gives=ApprovalRow,
    ),
    Route(
        method="POST",
        path="/api/approvals/{ref}",
        right=Right.APPROVE,
        does=answered,
        says="A person's answer to one exact call, once; the run goes on at once.",
        takes=Answering,
        gives=ApprovalRow,
        errors={403: "It is for one call: allow or deny.", 409: "It was answered already, or is too late."},
    ),
)
