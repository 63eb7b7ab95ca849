"""The event queue of one client, and the filter that says which events it gets."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from msgspec import Struct

from retinue.domain.event import Event

ALL_DELTAS = "all"
NO_DELTAS = "none"
AUTHORIZED_STATE_KEY = "is_authorized"
"""Key in the request scope's state: a predicate: whether the API key is still valid."""
DELTA_KINDS = frozenset({"text.delta", "thinking.delta", "text.discarded"})

MAX_QUEUED_EVENTS = 1024
"""Maximum number of events queued for a client."""
MAX_QUEUED_BYTES = 8 << 20
"""Maximum total size of the queued events."""
ABORT_DELAY_SECONDS = 2.0
"""Time that a client that was cut off may take to disconnect by itself."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events a stream carries. Streams with equal filters share their chunks."""

    session: str = ""
    """Only events of this session and of its descendants; empty for all."""
    deltas: str = ALL_DELTAS
    """Whose text deltas to send: `all`, `none`, or those of a session id."""

    def matches(self, event: Event, session_ids: Collection[str]) -> bool:
        """Return whether the stream accepts an event.

        `session_ids`: the sessions of the event's run and of its ancestors.
        """
        if self.session and self.session not in session_ids:
            return False
        return event.kind not in DELTA_KINDS or self.deltas in (ALL_DELTAS, event.session)

    @property
    def viewed_session(self) -> str:
        """The session whose conversation the client shows; empty if none."""
        return self.session or ("" if self.deltas in (ALL_DELTAS, NO_DELTAS) else self.deltas)


def _always_authorized() -> bool:
    return True


class EventQueue:
    """The event queue of one client.

    A client that does not keep up is cut off, reconnects, and names its position.
    """

    def __init__(self, event_filter: EventFilter, *, backlog_after: int, backlog_until: int) -> None:
        self.event_filter = event_filter
        self.backlog_after = backlog_after
        self.backlog_until = backlog_until
        """Events between the two numbers are read from the ledger; later ones are queued."""
        self.reset: Event | None = None
        """Sent first if the client has missed events that are gone."""
        self.is_ended = False
        self.is_cut_off = False
        self.abort_connection: Callable[[], None] | None = None
        """Abort the connection without waiting for the client."""
        self.is_authorized: Callable[[], bool] = _always_authorized
        """Whether the client is still authorised: a key can be revoked meanwhile."""
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._has_data = asyncio.Event()

    @property
    def queued_events(self) -> int:
        """Number of queued events."""
        return self._queued_events

    def put(self, chunk: bytes, count: int) -> None:
        """Queue a chunk of one or more events."""
        if self.is_ended:
            return
        is_full = (
            self._queued_events + count > MAX_QUEUED_EVENTS
            or self._queued_bytes + len(chunk) > MAX_QUEUED_BYTES
        )
        if is_full and self._chunks:
            self.cut_off()
            return
        self._chunks.append((chunk, count))
        self._queued_events += count
        self._queued_bytes += len(chunk)
        self._has_data.set()

    async def take(self) -> bytes:
        """Wait for data and return all that is queued; empty when the stream has ended."""
        while not self._chunks and not self.is_ended:
            self._has_data.clear()
            await self._has_data.wait()
        chunk = self._chunks[0][0] if len(self._chunks) == 1 else b"".join(each for each, _ in self._chunks)
        self._clear_queue()
        return chunk

    def end(self) -> None:
        """End the stream after the queued events were sent."""
        self.is_ended = True
        self._has_data.set()

    def cut_off(self) -> None:
        """Discard the queue and close the connection soon."""
        if self.is_cut_off:
            return
        self.is_cut_off = True
        self.discard()
        if self.abort_connection is not None:
            asyncio.get_running_loop().call_later(ABORT_DELAY_SECONDS, self.abort_connection)

    def discard(self) -> None:
        """Discard the queue and end the stream: the client has disconnected."""
        self._clear_queue()
        self.end()

    def _clear_queue(self) -> None:
        self._chunks.clear()
        self._queued_events = self._queued_bytes = 0
