"""Routes of the streams: what happens, as it happens, of everything or of one session and the runs below it."""

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retinue.domain.api_permission import Right
from retinue.domain.session import Session
from retinue.server.context import House
from retinue.server.event_broadcaster import Hub
from retinue.server.event_stream import ALL, NONE, STILL, Stream, Wanted
from retinue.server.routing import Route, Wish

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
RETRY_MS = 1000
ABORT = "abort"
"""In the state of a request's scope: what takes its connection away at once."""


class Listening(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream is asked for."""

    after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The number of the last event that is known; a Last-Event-ID says the same, and counts before it."""
    deltas: str = ALL
    """Whose words as they come: `all`, `none`, or one session's."""


class EventStream(Response):
    """The answer that goes on until either side has enough."""

    def __init__(self, hub: Hub, wanted: Wanted, *, after: int | None, looked_at: Session | None) -> None:
        super().__init__(headers=HEADERS | {"cache-control": "no-store"})
        del self.headers["content-length"]
        self._hub = hub
        self._wanted = wanted
        self._after = after
        self._looked_at = looked_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = await self._hub.join(self._wanted, self._after, self._looked_at)
        stream.abort = scope.get("state", {}).get(ABORT)
        stream.still = scope.get("state", {}).get(STILL, stream.still)
        try:
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(_left(receive, stream))
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._told(stream, send)
                leaving.cancel()
        finally:
            self._hub.leave(stream)

    async def _told(self, stream: Stream, send: Send) -> None:
        """From where the other side says it is: what stands in the ledger, then what comes."""

        async def tell(raw: bytes) -> None:
            await send({"type": "http.response.body", "body": raw, "more_body": True})

        await tell(b"retry: %d\nid: %d\n\n" % (RETRY_MS, stream.after))
        while not stream.cut and (raw := await self._hub.earlier(stream)):
            await tell(raw)
        while raw := await stream.take():
            await tell(raw)
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive, stream: Stream) -> None:
    """The other side has gone: nothing is kept for it."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.leave()


async def everything(house: House, wish: Wish[Listening, None]) -> EventStream:
    asked = wish.query
    looked_at = None if asked.deltas in (ALL, NONE) else await house.app.named(asked.deltas)
    wanted = Wanted(deltas=asked.deltas if looked_at is None else looked_at.id)
    return EventStream(house.hub, wanted, after=_after(wish), looked_at=looked_at)


async def of_session(house: House, wish: Wish[Listening, None]) -> EventStream:
    asked = wish.query
    session = await house.app.named(wish.ref)
    words = asked.deltas if asked.deltas in (ALL, NONE) else (await house.app.named(asked.deltas)).id
    wanted = Wanted(session=session.id, deltas=words)
    return EventStream(house.hub, wanted, after=_after(wish), looked_at=session)


def _after(wish: Wish[Listening, None]) -> int | None:
    return wish.query.after if wish.last_event is None else wish.last_event


ROUTES = (
    Route(
        method="GET",
        path="/api/events",
        right=Right.READ,
        does=everything,
        says="Everything that happens, as it happens.",
        query=Listening,
        streams=True,
    ),
    Route(
        method="GET",
        path="/api/sessions/{ref}/events",
        right=Right.READ,
        does=of_session,
        says="What happens in one session and in the runs below it.",
        query=Listening,
        streams=True,
    ),
)
