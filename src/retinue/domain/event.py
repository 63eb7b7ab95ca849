"""Events: one typed stream that the log, the terminal and the page listen to."""

from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from retinue.domain.run import iso
from retinue.domain.value import value

Kind = Literal[
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
]


@value
class Event:
    kind: Kind
    at: datetime
    session: str
    run: str = ""
    parent_run: str = ""
    agent: str = ""
    seq: int = 0
    """The ledger's number of a durable event; of a live one, the last durable number known."""
    n: int = 0
    """Which of its run's live events it is, as far as anybody has listened; 0: it is durable."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def as_json(event: Event) -> dict[str, Any]:
    """As streams tell it: the facts that every event has, and beside them its own."""
    facts: dict[str, Any] = {
        "kind": event.kind,
        "seq": event.seq,
        "at": iso(event.at),
        "session": event.session,
        "run": event.run,
        "parent_run": event.parent_run,
        "agent": event.agent,
    }
    if event.n:
        facts["n"] = event.n
    return event.data | facts if event.data.keys() & facts.keys() else facts | event.data
