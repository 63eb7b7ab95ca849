"""Routes about watchers and what a person sets off beside a conversation: by a command, a slash command or a key."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from retinue.app.messages import KEYED
from retinue.domain.api_permission import Right
from retinue.domain.watch import as_json
from retinue.server.context import House
from retinue.server.request_schemas import Asked, Words
from retinue.server.response_schemas import InboxRow, Shape, Time
from retinue.server.routing import Nothing, Route, Wish
from retinue.server.run_json import RunShown

AgentName = Annotated[str, Meta(max_length=64, examples=["pair"])]
Trigger = Annotated[
    Literal["command", "slash", "key"],
    Meta(description="What set it off: a program or a button, a slash command, a key."),
]


class WatchQuery(Asked):
    agent: Annotated[AgentName | None, Meta(description="Only this one; without it, all who watch.")] = None


class Watching(Asked):
    agent: AgentName = "pair"
    trigger: Trigger = "command"


class Beginning(Asked):
    agent: AgentName
    content: Words
    trigger: Trigger = "command"


class WatchRow(Shape):
    """As `watch list --json`."""

    id: str
    name: Annotated[str, Meta(description="Who: `pair#2` is the second watcher of its session.")]
    agent: str
    session: Annotated[str, Meta(description="The watched one's session_id.")]
    slug: str
    watcher: Annotated[str, Meta(description="The watcher's own session_id.")]
    watching: bool
    trigger: str
    told: Annotated[int, Meta(description="How often it was told something.")]
    heard: Annotated[str | None, Meta(description="The last entry it was told of.")]
    told_at: Time | None
    created_at: Time | None


async def everybody(house: House, _wish: Wish[Nothing, Nothing]) -> list[dict[str, Any]]:
    return [as_json(each) for each in await house.app.watchers()]


async def listed(house: House, wish: Wish[Nothing, Nothing]) -> list[dict[str, Any]]:
    session = await house.app.named(wish.ref)
    return [as_json(each) for each in await house.app.watchers(session.id)]


async def begun(house: House, wish: Wish[Nothing, Watching]) -> dict[str, Any]:
    session = await house.app.named(wish.ref)
    return as_json(await house.app.watch(session.id, agent=wish.body.agent, trigger=wish.body.trigger))


async def ended(house: House, wish: Wish[WatchQuery, Nothing]) -> list[dict[str, Any]]:
    session = await house.app.named(wish.ref)
    return [as_json(each) for each in await house.app.unwatch(session.id, agent=wish.query.agent)]


async def child(house: House, wish: Wish[Nothing, Beginning]) -> dict[str, Any]:
    said = wish.body
    above = await house.app.named(wish.ref)
    key = f"{KEYED}{wish.key}" if wish.key else ""
    run = await house.app.spawn(
        said.content, parent=above.id, agent=said.agent, trigger=said.trigger, key=key
    )
    return await house.app.run_json(run.id)


async def dismissed(house: House, wish: Wish[Nothing, Nothing]) -> dict[str, Any]:
    return await house.app.dismiss(wish.ref, by=wish.by)


ROUTES = (
    Route(
        method="GET",
        path="/api/watchers",
        right=Right.READ,
        does=everybody,
        says="Who watches which session.",
        gives=list[WatchRow],
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}/watchers",
        right=Right.READ,
        does=listed,
        says="Who watches a session.",
        gives=list[WatchRow],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/watchers",
        right=Right.RUN,
        does=begun,
        says="Sets an agent beside a session: it hears what is said and done there; who watches already goes on.",
        takes=Watching,
        gives=WatchRow,
        status=201,
        errors={403: "The agent has not the role of a watcher, or the session is a watcher's own."},
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{ref}/watchers",
        right=Right.RUN,
        does=ended,
        says="Sends those away who watch a session; what they have said stays in the inbox.",
        query=WatchQuery,
        gives=list[WatchRow],
    ),
    Route(
        method="POST",
        path="/api/sessions/{ref}/children",
        right=Right.RUN,
        does=child,
        says="A child of a session with a task of its own; set off by a slash command or a key, its result lies in the inbox.",
        takes=Beginning,
        gives=RunShown,
        status=201,
        keyed=True,
        errors={403: "The configuration denies the agent, or the session is too deep."},
    ),
    Route(
        method="POST",
        path="/api/inbox/{ref}/dismiss",
        right=Right.RUN,
        does=dismissed,
        says="Sets aside what a watcher said.",
        gives=InboxRow,
    ),
)
