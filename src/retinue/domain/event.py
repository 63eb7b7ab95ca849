"""Events: the typed stream behind the log, the terminal, the page and server-sent events."""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field

from retinue.domain.timestamps import iso_timestamp

EventKind = Literal[
    "run.queued",
    "run.started",
    "run.state",
    "text.delta",
    "text.discarded",
    "thinking.delta",
    "tool.started",
    "tool.ended",
    "entry.saved",
    "run.ended",
    "announcement.posted",
    "announcement.delivered",
    "approval.asked",
    "approval.answered",
    "session.changed",
    "watch.started",
    "watch.ended",
    "interjection.posted",
    "interjection.dismissed",
    "events.reset",
]


class Event(Struct, frozen=True, kw_only=True):
    kind: EventKind
    at: datetime
    session: str
    run: str = ""
    parent_run: str = ""
    agent: str = ""
    seq: int = 0
    """Ledger number of a durable event; for a live one, the last durable number known."""
    live_seq: int = 0
    """Number of a live event within its run, counted while a listener is registered; 0 for a durable event."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def event_as_json(event: Event) -> dict[str, Any]:
    """Return the JSON of an event stream: the common fields and the event's own data."""
    common: dict[str, Any] = {
        "kind": event.kind,
        "seq": event.seq,
        "at": iso_timestamp(event.at),
        "session": event.session,
        "run": event.run,
        "parent_run": event.parent_run,
        "agent": event.agent,
    }
    if event.live_seq:
        common["live_seq"] = event.live_seq
    return event.data | common if event.data.keys() & common.keys() else common | event.data
