"""Routes about sessions: finding, beginning, reading and changing conversations."""

from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from retinue.domain.api_permission import Right
from retinue.server.context import House
from retinue.server.request_schemas import Branching, Change, Drafted, NewSession, SessionsQuery
from retinue.server.response_schemas import Deleted, Saved, SessionRow, SessionShown
from retinue.server.routing import Nothing, Route, Wish

BUSY = "It is at work, or another process has it open."


async def listed(house: House, wish: Wish[SessionsQuery, Nothing]) -> Response:
    asked = wish.query
    found = await house.app.session_list(
        agent=asked.agent, children=asked.children, words=asked.q, limit=asked.limit
    )
    return Response(await house.rows.array(found), media_type="application/json")


async def created(house: House, wish: Wish[Nothing, NewSession]) -> dict[str, Any]:
    said = wish.body
    session = await house.app.create(said.agent, name=said.name, workspace=said.workspace)
    return await house.app.session_json(session.id)


async def shown(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.session_json((await house.app.named(wish.ref)).id)


async def changed(house: House, wish: Wish[Nothing, Change]) -> dict[str, Any]:
    said = wish.body
    session = await house.app.change(
        (await house.app.named(wish.ref)).id,
        name=None if said.name is UNSET else said.name or "",
        pinned=None if said.pinned is UNSET else said.pinned,
        attributes=None if said.attributes is UNSET else said.attributes,
    )
    return await house.app.session_json(session.id)


async def deleted(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    gone = await house.app.delete((await house.app.named(wish.ref)).id)
    return {"session_id": gone.id, "slug": gone.slug, "deleted": True, "path": gone.path, "undo": gone.id}


async def restored(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.session_json((await house.app.restore(wish.ref)).id)


async def cleared(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    session = await house.app.clear((await house.app.named(wish.ref)).id)
    return await house.app.session_json(session.id)


async def branched(house: House, wish: Wish[Nothing, Branching]) -> dict[str, Any]:
    said = wish.body
    session = (await house.app.named(wish.ref)).id
    branch = await house.app.branch(session, at=said.at, include=said.include, name=said.name)
    return await house.app.session_json(branch.id)


async def drafted(house: House, wish: Wish[Nothing, Drafted]) -> dict[str, Any]:
    await house.app.draft((await house.app.named(wish.ref)).id, wish.body.content)
    return {"saved": True}


ROUTES = (
    Route(
        method="GET",
        path="/api/sessions",
        right=Right.READ,
        does=listed,
        says="Sessions: pinned first, the most recently pinned before the others, then the newest.",
        query=SessionsQuery,
        gives=list[SessionRow],
    ),
    Route(
        method="POST",
        path="/api/sessions",
        right=Right.RUN,
        does=created,
        says="A new session of an agent, idle until something is said in it.",
        takes=NewSession,
        gives=SessionShown,
        status=201,
        errors={404: "There is no such agent.", 403: "The configuration denies the agent."},
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}",
        right=Right.READ,
        does=shown,
        says="What is known of one session, and what it and its children wait for a person with.",
        gives=SessionShown,
    ),
    Route(
        method="PATCH",
        path="/api/sessions/{ref}",
        right=Right.RUN,
        does=changed,
        says="Another name, pinned or not, other attributes; what is not said stays.",
        takes=Change,
        gives=SessionShown,
        errors={403: "The attribute is the runtime's own."},
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{ref}",
        right=Right.RUN,
        does=deleted,
        says="Puts a session aside with all of its branches and children; nothing finds it, and for 30 days it can be restored.",
        gives=Deleted,
        errors={409: f"{BUSY} Or a result of or for it was not heard."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/restore",
        right=Right.RUN,
        does=restored,
        says="Brings a deleted session back.",
        gives=SessionShown,
        errors={409: "Its name, or its place, is another session's now."},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/clear",
        right=Right.RUN,
        does=cleared,
        says="Forgets what was said; the session keeps its identity.",
        gives=SessionShown,
        errors={409: BUSY},
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/branch",
        right=Right.RUN,
        does=branched,
        says="A copy of the conversation up to an entry of a user, from here on the current one.",
        takes=Branching,
        gives=SessionShown,
        status=201,
        errors={403: "Only top-level sessions have branches."},
    ),
    Route(
        method="PUT",
        path="/api/sessions/{ref}/draft",
        right=Right.RUN,
        does=drafted,
        says="Keeps what a person is typing, below the open user line of the session's file.",
        takes=Drafted,
        gives=Saved,
        errors={409: BUSY},
    ),
)
