"""A run: one task given to one session, from the asking to the end."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from retinue.domain.ceiling import Ceiling
from retinue.domain.change import replace
from retinue.domain.value import value
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
    def final(self) -> bool:
        return not NEXT[self]

    @property
    def live(self) -> bool:
        return bool(NEXT[self])


ENDS = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST})

NEXT: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset(
        {Status.RUNNING, Status.CANCELLED, Status.TIMED_OUT, Status.FAILED, Status.LOST}
    ),
    Status.RUNNING: frozenset({Status.WAITING, Status.QUEUED}) | ENDS,
    Status.WAITING: frozenset({Status.QUEUED, Status.RUNNING}) | ENDS,
    Status.DONE: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.TIMED_OUT: frozenset(),
    Status.LOST: frozenset(),
}
"""The whole life of a run. A status with nothing next is final; a dead owner's run goes back to queued."""


class Waiting(StrEnum):
    """What nothing of the run can go on without."""

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
    """The run whose call waited for it ended without its answer."""
    INTERRUPTED = "interrupted"
    DISK = "disk"
    CONFIG = "config"
    CRASHED = "crashed"
    STALE = "stale"
    RECOVERY_LIMIT = "recovery_limit"


STOPPING = frozenset({Reason.USER_CANCEL, Reason.DESERTED})
"""On a run that lives: somebody wants it stopped."""


_STILL: dict[str, Any] = {"waiting_for": None, "aside": False, "wake_at": None}
"""What is true of a run that waits for nothing."""


@value
class Usage:
    """Tokens, as the provider counted them; our own estimate where it did not."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """Of the input, what came from the provider's cache."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
        )


CALL = "call:"
"""What the key of a wish begins with that a call made."""


@value
class Ask:
    """A wish for a run, complete enough to be kept: the row in the ledger rebuilds everything from it."""

    key: str
    """Unique in the ledger: a second birth with the same key returns the first run."""
    agent: str
    task: str | None
    """None only while nobody knows yet; the row always holds the words."""
    typed: bool = False
    """The task stands in the session's file already: a person typed it there."""
    session: str | None = None
    """The session's id when it exists already."""
    requester: str = "person"
    """Who hears of the end: a session's key, or `person`."""
    parent_run: str | None = None
    door: str = "cli"
    source: str = "person"
    label: str = ""
    model: str | None = None
    """As `driver:model`; overrides the definition for this run only."""
    thinking: str | None = None
    deadline_seconds: float | None = None
    wait: bool = False
    """A call of the asking run stands open until this one has ended, and answers with its result."""
    wait_until: datetime | None = None
    """How long that call waits; then the result is announced."""
    unless_busy: bool = False
    """The call does not wait behind another run of the session: the result is announced then."""
    keep: bool = True
    """Whether the session stays after the result was delivered."""
    role: str = "subtask"
    trigger: str = "tool"
    """What set it off: a tool, a command, a slash command, a key."""
    ceilings: tuple[Ceiling, ...] = ()
    """What those above could hand on, for a run in a session that is not their child."""
    inbox: str = ""
    """Where no run asked: the session beside which a person did. Its end is left in that session's inbox."""

    @property
    def call(self) -> str:
        """The call that asked for it; empty when none did."""
        return self.key.rpartition("/")[2] if self.key.startswith(CALL) else ""


@value
class Run:
    """One row of the ledger. Moves are made here and nowhere else."""

    id: str
    ask: Ask
    session_id: str
    slug: str
    key: str
    """The session's key, as doors print it."""
    agent: str
    path: str
    """Of session.md."""
    status: Status = Status.QUEUED
    waiting_for: Waiting | None = None
    reason: Reason | None = None
    root: str = ""
    depth: int = 0
    model: str = ""
    thinking: str = ""
    text: str = ""
    """The last word: what the requester gets."""
    error: str = ""
    turns: int = 0
    tool_calls: int = 0
    made: int = 0
    """How many of those calls did something; what was refused, or only ended the run, did not."""
    usage: Usage = Usage()
    attempts: int = 0
    """How often it was taken up, but for the times it had only waited."""
    owner: str = ""
    """The process that works it, or will; its flock says whether it lives."""
    scope_hash: str = ""
    workspace: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    awaited: bool = False
    """A call of the asking run stands open for it: the result answers that call."""
    aside: bool = False
    """It waits with no call open: its conversation is free for others meanwhile."""
    wake_at: datetime | None = None
    """When it goes on although what it waits for has not come."""
    exit: str = ""
    """The tool by which the agent ended the run, where its definition asks for one."""
    children: tuple[str, ...] = ()

    def started(self, *, owner: str, at: datetime, deadline_at: datetime | None) -> Self:
        """The deadline counts from the first start and survives later ones."""
        return self._moved(
            Status.RUNNING,
            owner=owner,
            attempts=self.attempts + 1,
            started_at=self.started_at or at,
            deadline_at=self.deadline_at or deadline_at,
        )

    def waits(self, what: Waiting, *, aside: bool = False, until: datetime | None = None) -> Self:
        return self._moved(Status.WAITING, waiting_for=what, aside=aside, wake_at=until)

    def requeued(self) -> Self:
        return self._moved(Status.QUEUED, owner="")

    def put_back(self) -> Self:
        """Its process leaves in good order: whoever takes it up next goes on with this attempt."""
        return self._moved(Status.QUEUED, owner="", attempts=self.attempts - 1)

    def answered(self, *, waited: timedelta) -> Self:
        """What it waited for has come. The time a person took is not the run's, and taking it up again is no attempt."""
        deadline = None if self.deadline_at is None else self.deadline_at + waited
        return self._moved(Status.QUEUED, attempts=self.attempts - 1, deadline_at=deadline)

    def ended(self, status: Status, *, at: datetime, reason: Reason | None = None, error: str = "") -> Self:
        return self._moved(status, ended_at=at, reason=reason, error=error, owner="", awaited=False)

    def turned(self, usage: Usage, *, calls: int, text: str, model: str) -> Self:
        """One reply of the model is on disk."""
        return replace(
            self,
            turns=self.turns + 1,
            tool_calls=self.tool_calls + calls,
            usage=self.usage + usage,
            text=text or self.text,
            model=model or self.model,
        )

    @property
    def no_work(self) -> bool:
        """It is done, and no call of it did anything: its words are all there is."""
        return self.status is Status.DONE and not self.made

    @property
    def duration_ms(self) -> int | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0, round((self.ended_at - self.started_at).total_seconds() * 1000))

    def _moved(self, status: Status, **facts: Any) -> Self:
        if status not in NEXT[self.status]:
            raise Failed(f"run {self.id} is {self.status} and cannot become {status}")
        return replace(self, **(_STILL | {"status": status} | facts))


def as_json(run: Run) -> dict[str, Any]:
    """The shape that `run --json`, `runs list` and `runs history` print."""
    return {
        "run_id": run.id,
        "session_id": run.session_id,
        "slug": run.slug,
        "key": run.key,
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
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "duration_ms": run.duration_ms,
        "path": run.path,
        "children": list(run.children),
    }


def as_json_in_full(
    run: Run, delivery: Mapping[str, Any] | None = None, effects: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What `runs show --json` prints. `delivery`: what became of telling its end; `effects`: what it did that must not
    happen twice."""
    return as_json(run) | {
        "requester": run.ask.requester,
        "parent": run.ask.parent_run,
        "depth": run.depth,
        "label": run.ask.label or None,
        "task": run.ask.task,
        "model": run.model or None,
        "thinking": run.thinking or None,
        "source": run.ask.source,
        "door": run.ask.door,
        "role": run.ask.role,
        "trigger": run.ask.trigger,
        "keep": run.ask.keep,
        "timeout_seconds": run.ask.deadline_seconds,
        "deadline_at": iso(run.deadline_at),
        "delivery": delivery or {"state": None, "attempts": 0},
        "attempts": run.attempts,
        "workspace": run.workspace or None,
        "scope_hash": run.scope_hash or None,
        "exit": run.exit or None,
        "evidence": {"tool_calls": run.tool_calls, "no_work": run.no_work},
        "effects": list(effects),
    }


def iso(at: datetime | None) -> str | None:
    """ISO 8601 in UTC, to the millisecond, with a Z."""
    if at is None:
        return None
    return f"{iso_seconds(at)[:19]}.{at.microsecond // 1000:03d}Z"


def iso_seconds(at: datetime) -> str:
    """The same to the second, as entries and plans are stamped. Many are stamped in one second, and it is spelled once."""
    second = (at.year, at.month, at.day, at.hour, at.minute, at.second)
    known, spelled = _spelled[0]
    if known != second:
        spelled = f"{at.isoformat(timespec='seconds')[:19]}Z"
        _spelled[0] = (second, spelled)
    return spelled


_spelled: list[tuple[tuple[int, ...], str]] = [((), "")]
"""The second that was spelled last."""
