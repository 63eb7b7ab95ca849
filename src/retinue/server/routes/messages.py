"""Routes inside a conversation: what was said in it, and saying more."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response as Answer
from starlette.responses import StreamingResponse

from retinue.app.messages import Message
from retinue.domain.api_permission import Right
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Entry, as_json
from retinue.errors import NotFound, Usage
from retinue.server.asgi_app import failed
from retinue.server.context import House
from retinue.server.json_encoding import encoded
from retinue.server.request_schemas import Addressing, EntriesQuery, Saying
from retinue.server.response_schemas import EntryShown, Response
from retinue.server.routing import Nothing, Route, Wish
from retinue.sessions.pagination import Span

AROUND = 100
"""Entries around one, where nobody says how many."""

CODES = {
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
"""What `agents_message` calls what goes wrong."""


async def entries(house: House, wish: Wish[EntriesQuery, Nothing]) -> Answer | list[dict[str, Any]]:
    asked = wish.query
    if sum(map(bool, (asked.before, asked.after, asked.around))) > 1:
        raise Usage("before, after and around exclude each other: say one of them")
    session = await house.app.named(wish.ref)
    if asked.limit is None and not asked.around:
        return await _all(house.app.between(session.id, after=asked.after, before=asked.before))
    span = Span(limit=asked.limit or AROUND, before=asked.before, after=asked.after, around=asked.around)
    return [as_json(entry) for entry in await house.app.page(session.id, span)]


async def _all(portions: AsyncGenerator[list[Entry]]) -> Answer:
    """One array of any length, in little memory. What can be wrong is found before the answer begins."""
    nothing: list[Entry] = []
    first = await anext(portions, nothing)

    async def body() -> AsyncGenerator[bytes]:
        yield b"["
        comma = b""
        portion: list[Entry] | None = first
        while portion is not None:
            if portion:
                yield comma + b",".join(encoded(as_json(entry)) for entry in portion)
                comma = b","
            portion = await anext(portions, None)
        yield b"]"

    return StreamingResponse(body(), media_type="application/json")


async def said(house: House, wish: Wish[Nothing, Saying]) -> Answer | dict[str, Any]:
    body = wish.body
    message = Message(content=body.content, wait=body.mode == "sync", timeout=body.timeout, key=wish.key)
    session = await house.app.named(wish.ref)
    try:
        run, facts = await house.app.message(session.id, message)
    except NotFound as missing:
        await house.app.named(session.id)  # it may have been deleted meanwhile: that is another error
        return failed(404, "agent_not_found", str(missing))
    return _told(run, facts)


async def addressed(house: House, wish: Wish[Nothing, Addressing]) -> Answer | dict[str, Any]:
    body = wish.body
    message = Message(content=body.content, wait=body.mode == "sync", timeout=body.timeout, key=wish.key)
    try:
        house.app.reachable(wish.ref, body.workspace)
    except NotFound as missing:
        return failed(404, "agent_not_found", f"Agent not found: {missing}")
    run, facts = await house.app.address(wish.ref, message, session=body.session, workspace=body.workspace)
    return _told(run, facts)


def _told(run: Run, facts: dict[str, Any]) -> Answer | dict[str, Any]:
    told = facts.pop("error", None)
    if told is None:
        return {name: fact for name, fact in facts.items() if fact is not None}
    status = 409 if run.status is Status.CANCELLED else 422
    more = {"runStatus": str(run.status), "reason": None if run.reason is None else str(run.reason)}
    return failed(status, told["code"], told["message"], **facts, **more)


ROUTES = (
    Route(
        method="GET",
        path="/api/sessions/{ref}/entries",
        right=Right.READ,
        does=entries,
        says="What was said, oldest first: all of it, the newest, or those before, after or around an entry.",
        query=EntriesQuery,
        gives=list[EntryShown],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/messages",
        right=Right.RUN,
        does=said,
        says="Says something in a session: its agent answers in one run, which waits its turn where the session is "
        "busy, and goes on whoever stops waiting for it.",
        takes=Saying,
        gives=Response,
        keyed=True,
        errors={
            403: "The configuration denies the agent.",
            409: "Another process has it open, the run was cancelled, or the Idempotency-Key was given for another "
            "message.",
            422: "The run ended without a response; details say which.",
        },
        codes=CODES,
    ),
    Route(
        method="POST",
        path="/api/agents/{ref}/messages",
        right=Right.RUN,
        does=addressed,
        says="Says something to an agent, as `agents_message` does: in its latest session, a new one, or one of its own "
        "that is named.",
        takes=Addressing,
        gives=Response,
        keyed=True,
        errors={
            403: "The configuration denies the agent, or its definition says ui_visible: false.",
            404: "There is no such agent; or it has no session, or not the one that is named.",
            409: "The session belongs to another agent, another process has it open, the run was cancelled, or the "
            "Idempotency-Key was given for another message.",
            422: "The run ended without a response; details say which.",
        },
        codes=CODES,
    ),
)
