"""Events: one typed stream that the log, the terminal and the page listen to."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

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
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: Kind
    at: datetime
    session: str
    run: str = ""
    parent_run: str = ""
    agent: str = ""
    seq: int = 0
    """The ledger's number of a durable event; of a live one, the last durable number known."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
