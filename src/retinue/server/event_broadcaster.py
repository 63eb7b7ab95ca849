"""Broadcasts every event once, in ledger order, to all event streams, without waiting for any client.

A cursor marks the last durable event that was broadcast. An event of this process with the next number is
sent at once; where numbers are missing, another process wrote those events, and they are read from the
ledger. Events written only by other processes are polled for a few times a second, while there are streams.
Events are collected for a moment, encoded once, and handed as one chunk to all streams with the same filter.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import msgspec
from msgspec.structs import replace

from retinue.app import App
from retinue.domain.event import Event, event_as_json
from retinue.domain.session import Session
from retinue.errors import RetinueError
from retinue.server.event_ancestry import SessionAncestry
from retinue.server.event_queue import MAX_QUEUED_EVENTS, EventFilter, EventQueue
from retinue.server.session_file_watcher import SessionFileWatcher

LEDGER_POLL_SECONDS = 0.2
"""Interval at which the ledger is polled for events of other processes."""
HEARTBEAT_SECONDS = 15.0
BATCH_SECONDS = 0.02
"""Batching time after a broadcast; the first event after a pause is sent at once."""
BATCH_SECONDS_PER_STREAM = 0.0005
"""Additional batching time per stream: a hundred streams get a chunk twenty times a second."""
PAGE_SIZE = 256
"""Number of events broadcast before clients get a moment to take them."""
MAX_PAUSES = 10
"""Maximum number of pauses for slow clients before the next page."""
MAX_PENDING_EVENTS = 16_384
"""Maximum number of pending events while the ledger is unreadable.

If the limit is exceeded, all streams are closed and must reconnect.
"""

PRUNED = "pruned"
OTHER_LEDGER = "other_ledger"
"""Reasons of an `events.reset`."""

MERGEABLE_KINDS = ("text.delta", "thinking.delta")

_ENCODER = msgspec.json.Encoder()


class StreamGroup:
    """All streams with the same filter, and the batch collected for them."""

    def __init__(self) -> None:
        self.streams: set[EventQueue] = set()
        self._batch: list[bytes] = []

    def put(self, chunk: bytes) -> None:
        self._batch.append(chunk)

    def flush(self) -> bool:
        if not self._batch:
            return False
        chunk, count = b"".join(self._batch), len(self._batch)
        self._batch.clear()
        for stream in self.streams:
            stream.put(chunk, count)
        return True


class EventBroadcaster:
    """Broadcast the application's events to event streams."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._groups: dict[EventFilter, StreamGroup] = {}
        self._ancestry = SessionAncestry(app.runs.session_ancestry)
        self._file_watcher = SessionFileWatcher(app.context.clock.now)
        self._cursor = 0
        self._live_counts: dict[str, int] = {}
        """Number of live events broadcast for each run."""
        self._pending: list[Event] = []
        self._wake_event = asyncio.Event()
        self._subscription = ExitStack()
        self._join_lock = asyncio.Lock()
        self._closed = False
        self._next_poll_at = self._next_heartbeat_at = 0.0

    @property
    def has_listeners(self) -> bool:
        """True if there is at least one stream."""
        return bool(self._groups)

    async def subscribe(
        self, event_filter: EventFilter, after_seq: int | None, viewed_session: Session | None = None
    ) -> EventQueue:
        """Open a stream of the events from now on, or of all events after number `after_seq`.

        If some of those were pruned, or the number comes from another ledger because this one has not reached it, the
        stream starts with `events.reset`.
        """
        async with self._join_lock:
            if not self._groups:
                await self._start_listening()
            group = self._groups.setdefault(event_filter, StreamGroup())
            group.flush()
            reset_reason = await self._find_reset_reason(after_seq)
            start_seq = self._cursor if after_seq is None or reset_reason else after_seq
            stream = EventQueue(event_filter, backlog_after=start_seq, backlog_until=self._cursor)
            if reset_reason:
                stream.reset = self._make_reset_event(reset_reason)
            group.streams.add(stream)
        if viewed_session is not None:
            self._file_watcher.add_session(viewed_session)
        if self._closed:
            stream.end()
        self._wake_event.set()
        return stream

    async def _find_reset_reason(self, after_seq: int | None) -> str:
        """Return why events after a number cannot be sent; empty if they can."""
        if after_seq is None:
            return ""
        if after_seq > self._cursor:
            return OTHER_LEDGER
        return PRUNED if after_seq < await self._app.events.pruned_through() else ""

    def _make_reset_event(self, reason: str) -> Event:
        at = self._app.context.clock.now()
        return Event(kind="events.reset", at=at, session="", seq=self._cursor, data={"reason": reason})

    def unsubscribe(self, stream: EventQueue) -> None:
        group = self._groups[stream.event_filter]
        group.streams.discard(stream)
        if not group.streams:
            self._groups.pop(stream.event_filter)
            self._file_watcher.retain(event_filter.viewed_session for event_filter in self._groups)
        if not self._groups:
            self._subscription.close()
            self._pending.clear()
            self._live_counts.clear()

    async def read_backlog(self, stream: EventQueue) -> bytes:
        """Return the next chunk of backlog that the stream subscribes to; empty when there is no more.

        The stream's position moves with it, so that a client that is cut off in between resumes from there.
        """
        while stream.backlog_after < stream.backlog_until:
            await asyncio.sleep(0)  # the ledger read does not yield to the event loop
            if stream.backlog_after < await self._app.events.pruned_through():
                stream.cut_off()  # pruned meanwhile: the client reconnects and gets `events.reset`
                break
            limit = min(PAGE_SIZE, stream.backlog_until - stream.backlog_after)
            events = await self._app.events.list(after=stream.backlog_after, limit=limit)
            if not events:
                stream.backlog_after = stream.backlog_until
                break
            stream.backlog_after = events[-1].seq
            matching = [
                each
                for each in events
                if stream.event_filter.matches(each, await self._ancestry.sessions_for(each))
            ]
            if chunk := b"".join(
                encode_sse_event(each) for each in matching if each.seq <= stream.backlog_until
            ):
                return chunk
        return b""

    async def run(self) -> None:
        """Broadcast until closed."""
        while not self._closed:
            await self._wait_for_work()
            if await self._broadcast_pending():
                streams = sum(len(group.streams) for group in self._groups.values())
                await asyncio.sleep(max(BATCH_SECONDS, BATCH_SECONDS_PER_STREAM * streams))
        self._next_poll_at = 0.0
        while self._groups and not self._next_poll_at:
            await self._broadcast_pending()
        for stream in self._all_streams():
            stream.end()

    def close(self) -> None:
        """End all streams after their pending events; clients reconnect to the next daemon."""
        self._closed = True
        self._wake_event.set()

    async def _start_listening(self) -> None:
        """Subscribe to the application's events when the first stream opens."""
        self._subscription.enter_context(self._app.listen(self._on_event))
        try:
            self._cursor = await self._app.events.last_seq()
        except BaseException:
            self._subscription.close()
            raise
        self._next_heartbeat_at = asyncio.get_running_loop().time() + HEARTBEAT_SECONDS

    def _on_event(self, event: Event) -> None:
        self._file_watcher.on_event(event)  # at once: another process may write before the event is broadcast
        self._pending.append(event)
        self._wake_event.set()
        if len(self._pending) > MAX_PENDING_EVENTS:
            self._pending.clear()
            for stream in self._all_streams():
                stream.cut_off()

    async def _wait_for_work(self) -> None:
        """Wait for an event or the next ledger poll; without streams, for the first stream."""
        if self._pending:
            return
        self._wake_event.clear()
        if not self._groups:
            await self._wake_event.wait()
            return
        timer = asyncio.get_running_loop().call_later(LEDGER_POLL_SECONDS, self._wake_event.set)
        await self._wake_event.wait()
        timer.cancel()

    async def _broadcast_pending(self) -> bool:
        """Broadcast pending events, then those of other processes, then file changes, in that order.

        Returns False if there was nothing.
        """
        if not self._groups:
            return False
        pending, self._pending = self._pending, []
        with suppress(RetinueError):  # an unreadable ledger is retried soon
            for position, event in enumerate(merge_deltas(pending), 1):
                await self._broadcast_in_order(event)
                if position % PAGE_SIZE == 0:
                    await self._pause_for_readers()
            now = asyncio.get_running_loop().time()
            if now >= self._next_poll_at:
                self._next_poll_at = now + LEDGER_POLL_SECONDS
                await self._broadcast_from_ledger(until_seq=None)
                for change in self._file_watcher.poll_changes(now):
                    await self._deliver(change)
        has_sent = await self._flush_groups()
        self._send_heartbeat()
        return has_sent

    async def _broadcast_in_order(self, event: Event) -> None:
        if event.live_seq:
            await self._deliver(event)
        elif event.seq > self._cursor:
            if event.seq > self._cursor + 1:
                await self._broadcast_from_ledger(until_seq=event.seq - 1)
            await self._deliver(event)

    async def _broadcast_from_ledger(self, *, until_seq: int | None) -> None:
        """Broadcast the ledger's events after the cursor, up to `until_seq` if it is given.

        Without `until_seq`, stop as soon as a local event is pending: deltas that precede the end of a run would
        otherwise be sent after it.
        """
        while until_seq is None or self._cursor < until_seq:
            limit = PAGE_SIZE if until_seq is None else min(PAGE_SIZE, until_seq - self._cursor)
            events = await self._app.events.list(after=self._cursor, limit=limit)
            if until_seq is None and self._pending:
                self._next_poll_at = 0.0
                return
            for event in events:
                if until_seq is None or event.seq <= until_seq:
                    await self._deliver(event)
            if len(events) < limit or (until_seq is not None and events[-1].seq >= until_seq):
                return
            await self._pause_for_readers()

    async def _deliver(self, event: Event) -> None:
        """Add an event to the groups that subscribe to it.

        Cursor and batches change together, without an await in between, so that a new stream sees both before
        or both after.
        """
        session_ids = await self._ancestry.sessions_for(event) if self._has_session_filters() else ()
        if event.live_seq:
            event = self._with_live_position(event)
        elif event.seq <= self._cursor:
            return
        else:
            self._cursor = event.seq
            if event.kind == "run.ended":
                self._live_counts.pop(event.run, None)
        chunk: bytes | None = None
        for event_filter, group in self._groups.items():
            if event_filter.matches(event, session_ids):
                chunk = chunk or encode_sse_event(event)
                group.put(chunk)

    def _with_live_position(self, event: Event) -> Event:
        """Return a live event with the number of the durable event before it and its own count."""
        count = self._live_counts[event.run] = self._live_counts.get(event.run, 0) + 1
        return replace(event, seq=self._cursor, live_seq=count)

    def _has_session_filters(self) -> bool:
        return any(event_filter.session for event_filter in self._groups)

    async def _flush_groups(self) -> bool:
        if flushed := [group for group in self._groups.values() if group.flush()]:
            await asyncio.sleep(0)
        return bool(flushed)

    async def _pause_for_readers(self) -> None:
        """Flush, and give clients time to catch up; those who do not are soon cut off."""
        await self._flush_groups()
        for _ in range(MAX_PAUSES):
            if all(stream.queued_events <= MAX_QUEUED_EVENTS // 2 for stream in self._all_streams()):
                return
            await asyncio.sleep(BATCH_SECONDS)

    def _send_heartbeat(self) -> None:
        """Send heartbeats, and cut off streams whose key was revoked.

        A heartbeat carries the cursor, so that a client with few events resumes from there.
        """
        if (now := asyncio.get_running_loop().time()) < self._next_heartbeat_at:
            return
        self._next_heartbeat_at = now + HEARTBEAT_SECONDS
        for stream in self._all_streams():
            if stream.is_authorized():
                stream.put(b": \nid: %d\n\n" % self._cursor, 1)
            else:
                stream.cut_off()

    def _all_streams(self) -> list[EventQueue]:
        return [stream for group in self._groups.values() for stream in group.streams]


def merge_deltas(events: Sequence[Event]) -> list[Event]:
    """Merge consecutive text deltas of the same run.

    Clients then get a few events per second, however fast the model is.
    """
    merged: list[Event] = []
    texts: dict[int, list[str]] = {}
    latest: dict[str, int] = {}
    for event in events:
        index = latest.get(event.run, -1)
        if event.kind in MERGEABLE_KINDS and index >= 0 and merged[index].kind == event.kind:
            texts.setdefault(index, [merged[index].data["text"]]).append(event.data["text"])
            continue
        latest[event.run] = len(merged)
        merged.append(event)
    for index, pieces in texts.items():
        merged[index] = replace(merged[index], data={**merged[index].data, "text": "".join(pieces)})
    return merged


def encode_sse_event(event: Event) -> bytes:
    """Encode an event in SSE format. Only durable events have an id: streams resume after one."""
    fields = event_as_json(event)
    try:
        data = _ENCODER.encode(fields)
    except UnicodeEncodeError:  # lone surrogate in model output
        data = json.dumps(fields).encode()
    id_line = b"" if event.live_seq else b"id: %d\n" % event.seq
    return b"event: %s\n%sdata: %s\n\n" % (event.kind.encode(), id_line, data)
