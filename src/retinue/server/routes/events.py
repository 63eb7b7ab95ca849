"""Server-sent event routes: all events, or those of one session and its descendants."""

import asyncio
from contextlib import suppress
from typing import Annotated

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retinue.domain.api_permission import ApiPermission
from retinue.domain.session import Session
from retinue.errors import NotFound
from retinue.server.context import ServerContext
from retinue.server.event_broadcaster import EventBroadcaster, encode_sse_event
from retinue.server.event_queue import ALL_DELTAS, AUTHORIZED_STATE_KEY, NO_DELTAS, EventFilter, EventQueue
from retinue.server.routing import ApiRequest, route

SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
RECONNECT_MS = 1000
ABORT_STATE_KEY = "abort"
"""Key in the request scope's state: a function that aborts the connection."""


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Query of an event stream."""

    after: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Number of the last event the client knows; a Last-Event-ID header takes precedence."""
    deltas: str = ALL_DELTAS
    """Whose text deltas to send: `all`, `none`, or those of one session.

    In the stream of all events, a session that does not exist has none: it may have been deleted meanwhile.
    """


class EventStreamResponse(Response):
    """A response that streams events until either side closes it."""

    def __init__(
        self,
        broadcaster: EventBroadcaster,
        event_filter: EventFilter,
        *,
        after_seq: int | None,
        viewed_session: Session | None,
    ) -> None:
        super().__init__(headers=SSE_HEADERS | {"cache-control": "no-store"})
        del self.headers["content-length"]
        self._broadcaster = broadcaster
        self._event_filter = event_filter
        self._after_seq = after_seq
        self._viewed_session = viewed_session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = await self._broadcaster.subscribe(self._event_filter, self._after_seq, self._viewed_session)
        stream.abort_connection = scope.get("state", {}).get(ABORT_STATE_KEY)
        stream.is_authorized = scope.get("state", {}).get(AUTHORIZED_STATE_KEY, stream.is_authorized)
        try:
            async with asyncio.TaskGroup() as group:
                disconnect_task = group.create_task(_watch_disconnect(receive, stream))
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send_events(stream, send)
                disconnect_task.cancel()
        finally:
            self._broadcaster.unsubscribe(stream)

    async def _send_events(self, stream: EventQueue, send: Send) -> None:
        """Send the backlog from the ledger, then events as they arrive."""

        async def send_chunk(raw: bytes) -> None:
            await send({"type": "http.response.body", "body": raw, "more_body": True})

        await send_chunk(b"retry: %d\nid: %d\n\n" % (RECONNECT_MS, stream.backlog_after))
        if stream.reset is not None:
            await send_chunk(encode_sse_event(stream.reset))
        while not stream.is_cut_off and (raw := await self._broadcaster.read_backlog(stream)):
            await send_chunk(raw)
        while raw := await stream.take():
            await send_chunk(raw)
        await send({"type": "http.response.body", "body": b""})


async def _watch_disconnect(receive: Receive, stream: EventQueue) -> None:
    """Discard the stream's pending events when the client disconnects."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.discard()


@route(
    "GET",
    "/api/events",
    right=ApiPermission.READ,
    summary="Stream all events as they happen.",
    query=EventsQuery,
    is_stream=True,
)
async def stream_all_events(
    context: ServerContext, request: ApiRequest[EventsQuery, None]
) -> EventStreamResponse:
    query = request.query
    viewed_session = None
    if query.deltas not in (ALL_DELTAS, NO_DELTAS):
        with suppress(NotFound):
            viewed_session = await context.app.sessions.find_for_api(query.deltas)
    event_filter = EventFilter(deltas=query.deltas if viewed_session is None else viewed_session.id)
    return EventStreamResponse(
        context.broadcaster, event_filter, after_seq=_resume_after(request), viewed_session=viewed_session
    )


@route(
    "GET",
    "/api/sessions/{ref}/events",
    right=ApiPermission.READ,
    summary="Stream the events of one session and of the runs below it.",
    query=EventsQuery,
    is_stream=True,
)
async def stream_session_events(
    context: ServerContext, request: ApiRequest[EventsQuery, None]
) -> EventStreamResponse:
    query = request.query
    session = await context.app.sessions.find_for_api(request.ref)
    deltas = (
        query.deltas
        if query.deltas in (ALL_DELTAS, NO_DELTAS)
        else (await context.app.sessions.find_for_api(query.deltas)).id
    )
    event_filter = EventFilter(session=session.id, deltas=deltas)
    return EventStreamResponse(
        context.broadcaster, event_filter, after_seq=_resume_after(request), viewed_session=session
    )


def _resume_after(request: ApiRequest[EventsQuery, None]) -> int | None:
    return request.query.after if request.last_event_id is None else request.last_event_id
