"""A run: one task given to one session, from the request to the end, with its state machine."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.ceiling import Ceiling
from retinue.errors import Failed


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return not ALLOWED_TRANSITIONS[self]

    @property
    def is_live(self) -> bool:
        return bool(ALLOWED_TRANSITIONS[self])


LIVE_STATUSES = (Status.QUEUED, Status.RUNNING, Status.WAITING)
FINAL_STATUSES = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST})

ALLOWED_TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset(
        {Status.RUNNING, Status.CANCELLED, Status.TIMED_OUT, Status.FAILED, Status.LOST}
    ),
    Status.RUNNING: frozenset({Status.WAITING, Status.QUEUED}) | FINAL_STATUSES,
    Status.WAITING: frozenset({Status.QUEUED, Status.RUNNING}) | FINAL_STATUSES,
    Status.DONE: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.TIMED_OUT: frozenset(),
    Status.LOST: frozenset(),
}
"""Status → statuses that may follow it.

A status without successors is final. The run of a dead process is queued again.
"""


class WaitReason(StrEnum):
    """What a waiting run needs before it can continue."""

    APPROVAL = "approval"
    PERSON = "person"
    CHILD = "child"
    MODEL = "model"
    DISK = "disk"


class Reason(StrEnum):
    """Why a run ended as it did: a closed list, for programs."""

    RATE_LIMITED = "rate_limited"
    UNREACHABLE = "unreachable"
    INCOMPLETE = "incomplete"
    PROVIDER = "provider"
    AUTH = "auth"
    REFUSED = "refused"
    STUCK = "stuck"
    TURN_LIMIT = "turn_limit"
    DEADLINE = "deadline"
    IDLE = "idle"
    USER_CANCEL = "user_cancel"
    DESERTED = "deserted"
    """The parent run ended while a call of it still waited for this run."""
    INTERRUPTED = "interrupted"
    DISK = "disk"
    CONFIG = "config"
    CRASHED = "crashed"
    STALE = "stale"
    RECOVERY_LIMIT = "recovery_limit"


CANCEL_REASONS = frozenset({Reason.USER_CANCEL, Reason.DESERTED})
"""Reasons which, on a live run, mean that its cancellation was requested."""


_NOT_WAITING: dict[str, Any] = {"waiting_for": None, "waits_between_turns": False, "wake_at": None}
"""The fields of a run that is not waiting."""


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts as reported by the provider, or our own estimate where it reports none."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """Part of the input that came from the provider's cache."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
        )


CALL_KEY_PREFIX = "call:"
"""Prefix of the key of a run that was requested by a tool call."""


_STORED_NAMES = {
    "entry_point": "door",
    "keep_session": "keep",
    "is_typed": "typed",
    "announce_if_busy": "unless_busy",
}
"""Field → its name in stored JSON, where the two differ."""


class RunRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_STORED_NAMES):
    """A request for a run; the ledger row stores all of it."""

    key: str
    """Unique in the ledger: a second request with the same key returns the first run."""
    agent: str
    task: str | None
    """None only until the task is known; the ledger row always has the text."""
    is_typed: bool = False
    """The task is already in the session's file, typed there by a person."""
    session: str | None = None
    """The id of the session, if it exists already."""
    requester: str = "person"
    """Receiver of the result: a session's key, or `person`."""
    parent_run: str | None = None
    entry_point: str = "cli"
    """The tool or surface that requested it: a tool's name, `cli` or `http`."""
    source: str = "person"
    label: str = ""
    model: str | None = None
    """Model for this run only, as `provider:model`; overrides the definition."""
    thinking: str | None = None
    deadline_seconds: float | None = None
    wait: bool = False
    """A tool call of the parent run stays open until this run has ended, and returns its result."""
    wait_until: datetime | None = None
    """Time limit of that call; afterwards the result is announced."""
    announce_if_busy: bool = False
    """If the session is busy, do not let the call wait: announce the result instead."""
    keep_session: bool = True
    """Whether the session is kept after the result was delivered."""
    role: str = "subtask"
    trigger: str = "tool"
    """The cause: a tool, a command, a slash command or a key."""
    ceilings: tuple[Ceiling, ...] = ()
    """Ceilings inherited from requesters, for a run in a session that is not their child."""
    inbox: str = ""
    """For a request by a person: the session whose inbox receives the result."""

    @property
    def call_id(self) -> str:
        """Return the id of the tool call that requested the run; empty if there is none."""
        return self.key.rpartition("/")[2] if self.key.startswith(CALL_KEY_PREFIX) else ""


class ClaimResult(StrEnum):
    """Result of trying to claim a run: a slot, or why it got none."""

    CLAIMED = "claimed"
    NO_FREE_SLOT = "no_free_slot"
    REQUESTER_LIMIT = "requester_limit"
    """The requester is at its limit of running runs; runs of other requesters may start first."""
    SESSION_BUSY = "session_busy"
    """Another run of its session is in progress."""
    NOT_QUEUED = "not_queued"


class Run(Struct, frozen=True, kw_only=True):
    """A row of the ledger. All state changes are methods of this class."""

    id: str
    request: RunRequest
    session_id: str
    slug: str
    session_key: str
    """The session's key, as the delegation tools print it."""
    agent: str
    transcript_path: str
    """Path of session.md."""
    status: Status = Status.QUEUED
    waiting_for: WaitReason | None = None
    reason: Reason | None = None
    root_id: str = ""
    depth: int = 0
    model: str = ""
    thinking: str = ""
    text: str = ""
    """The final message, which the requester receives."""
    error: str = ""
    turns: int = 0
    tool_calls: int = 0
    effective_calls: int = 0
    """Number of tool calls that did something; refused calls and exit tools do not count."""
    usage: Usage = Usage()
    attempts: int = 0
    """Number of times the run was started, not counting resumptions after waiting."""
    owner_id: str = ""
    """The process that executes the run, or will; its file lock tells whether it is alive."""
    scope_hash: str = ""
    workspace: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    is_awaited: bool = False
    """A tool call of the parent run is open and receives the result."""
    waits_between_turns: bool = False
    """The run waits without an open tool call, so its conversation is free for other runs."""
    wake_at: datetime | None = None
    """When the run continues even if what it waits for has not arrived."""
    exit_tool: str = ""
    """The exit tool that ended the run, if the agent's definition requires one."""
    child_ids: tuple[str, ...] = ()

    def start(self, *, owner_id: str, at: datetime, deadline_at: datetime | None) -> Self:
        """Return the run in state running.

        The deadline counts from the first start and is kept by later ones.
        """
        return self._transition(
            Status.RUNNING,
            owner_id=owner_id,
            attempts=self.attempts + 1,
            started_at=self.started_at or at,
            deadline_at=self.deadline_at or deadline_at,
        )

    def suspend(
        self, reason: WaitReason, *, between_turns: bool = False, wake_at: datetime | None = None
    ) -> Self:
        return self._transition(
            Status.WAITING, waiting_for=reason, waits_between_turns=between_turns, wake_at=wake_at
        )

    def requeue_after_crash(self) -> Self:
        return self._transition(Status.QUEUED, owner_id="")

    def requeue_same_attempt(self) -> Self:
        """Return the run to the queue at an orderly shutdown; the next start continues the same attempt."""
        return self._transition(Status.QUEUED, owner_id="", attempts=self.attempts - 1)

    def requeue_after_wait(self, *, waited: timedelta) -> Self:
        """Return the run to the queue because what it waited for has arrived.

        The time waited extends the deadline, and the next start is not a new attempt.
        """
        deadline = None if self.deadline_at is None else self.deadline_at + waited
        return self._transition(Status.QUEUED, attempts=self.attempts - 1, deadline_at=deadline)

    def finish(self, status: Status, *, at: datetime, reason: Reason | None = None, error: str = "") -> Self:
        return self._transition(
            status, ended_at=at, reason=reason, error=error, owner_id="", is_awaited=False
        )

    def record_reply(self, usage: Usage, *, tool_calls: int, text: str, model: str) -> Self:
        """Count one reply of the model, after it was saved."""
        return replace(
            self,
            turns=self.turns + 1,
            tool_calls=self.tool_calls + tool_calls,
            usage=self.usage + usage,
            text=text or self.text,
            model=model or self.model,
        )

    @property
    def did_no_work(self) -> bool:
        """Return True if the run is done and none of its tool calls did anything."""
        return self.status is Status.DONE and not self.effective_calls

    @property
    def duration_ms(self) -> int | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0, round((self.ended_at - self.started_at).total_seconds() * 1000))

    def _transition(self, status: Status, **changes: Any) -> Self:
        if status not in ALLOWED_TRANSITIONS[self.status]:
            raise Failed(f"run {self.id} is {self.status} and cannot become {status}")
        return replace(self, **(_NOT_WAITING | {"status": status} | changes))


def run_as_json(run: Run) -> dict[str, Any]:
    """Return the JSON of `run --json`, `runs list` and `runs history`."""
    return {
        "run_id": run.id,
        "session_id": run.session_id,
        "slug": run.slug,
        "key": run.session_key,
        "agent": run.agent,
        "status": str(run.status),
        "waiting_for": None if run.waiting_for is None else str(run.waiting_for),
        "reason": None if run.reason is None else str(run.reason),
        "approvals": [],
        "text": run.text,
        "error": run.error or None,
        "turns": run.turns,
        "tool_calls": run.tool_calls,
        "usage": {"input": run.usage.input, "output": run.usage.output},
        "started_at": iso_timestamp(run.started_at),
        "ended_at": iso_timestamp(run.ended_at),
        "duration_ms": run.duration_ms,
        "path": run.transcript_path,
        "children": list(run.child_ids),
    }


def run_details_as_json(
    run: Run, delivery: Mapping[str, Any] | None = None, effects: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the JSON of `runs show --json`.

    `delivery` is the state of delivering the result; `effects` are the side effects that must not be
    repeated.
    """
    return run_as_json(run) | {
        "requester": run.request.requester,
        "parent": run.request.parent_run,
        "depth": run.depth,
        "label": run.request.label or None,
        "task": run.request.task,
        "model": run.model or None,
        "thinking": run.thinking or None,
        "source": run.request.source,
        "entry_point": run.request.entry_point,
        "role": run.request.role,
        "trigger": run.request.trigger,
        "keep_session": run.request.keep_session,
        "timeout_seconds": run.request.deadline_seconds,
        "deadline_at": iso_timestamp(run.deadline_at),
        "delivery": delivery or {"state": None, "attempts": 0},
        "attempts": run.attempts,
        "workspace": run.workspace or None,
        "scope_hash": run.scope_hash or None,
        "exit": run.exit_tool or None,
        "evidence": {"tool_calls": run.tool_calls, "no_work": run.did_no_work},
        "effects": list(effects),
    }


def iso_timestamp(at: datetime | None) -> str | None:
    """Format a time as ISO 8601 in UTC, to the millisecond, ending in Z."""
    if at is None:
        return None
    return f"{iso_timestamp_seconds(at)[:19]}.{at.microsecond // 1000:03d}Z"


def iso_timestamp_seconds(at: datetime) -> str:
    """Format a time to the second, as in transcript entries and plans.

    The last result is cached, because many entries are stamped within one second.
    """
    second = (at.year, at.month, at.day, at.hour, at.minute, at.second)
    cached_second, text = _last_timestamp[0]
    if cached_second != second:
        text = f"{at.isoformat(timespec='seconds')[:19]}Z"
        _last_timestamp[0] = (second, text)
    return text


_last_timestamp: list[tuple[tuple[int, ...], str]] = [((), "")]
"""The most recently formatted second and its text."""
