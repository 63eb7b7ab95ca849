"""A run: one task given to one session, from the request to the end, with its state machine."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.ceiling import Ceiling
from retinue.domain.timestamps import iso_timestamp
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
CONTINUABLE_STATUSES = (Status.FAILED, Status.LOST, Status.TIMED_OUT)
"""Ends after which a person can have the task continued from the transcript."""
FINAL_STATUSES = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT, Status.LOST})

ALLOWED_TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset(
        {Status.RUNNING, Status.WAITING, Status.CANCELLED, Status.TIMED_OUT, Status.FAILED, Status.LOST}
    ),
    Status.RUNNING: frozenset({Status.WAITING, Status.QUEUED}) | FINAL_STATUSES,
    Status.WAITING: frozenset({Status.QUEUED, Status.RUNNING, Status.WAITING}) | FINAL_STATUSES,
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
    MODEL = "model"
    """The model's server gave no reply for longer than limits.model_wait_seconds."""
    INVALID_OUTPUT = "invalid_output"
    """The final answer did not match the output schema, although it was asked for again."""


CANCEL_REASONS = frozenset({Reason.USER_CANCEL, Reason.DESERTED})
"""Reasons which, on a live run, mean that its cancellation was requested."""


PERSON_REASONS = frozenset({Reason.RECOVERY_LIMIT, Reason.MODEL, Reason.TURN_LIMIT})
"""Reasons for which a live run waits until a person resumes or cancels it."""


_NOT_WAITING: dict[str, Any] = {"waiting_for": None, "waits_between_turns": False, "wake_at": None}
"""The fields of a run that is not waiting."""


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts as reported by the provider, or our own estimate where it reports none."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """Part of the input that came from the provider's cache."""
    cache_write: int = 0
    """Part of the input that the provider stored in its cache, for which some ask more."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            cache_write=self.cache_write + other.cache_write,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input - other.input,
            output=self.output - other.output,
            cached=self.cached - other.cached,
            cache_write=self.cache_write - other.cache_write,
        )


NO_USAGE = Usage()


CALL_KEY_PREFIX = "call:"
"""Prefix of the key of a run that was requested by a tool call."""


_STORED_NAMES = {
    "entry_point": "door",
    "keep_session": "keep",
    "is_typed": "typed",
    "announce_if_busy": "unless_busy",
    "is_independent": "independent",
    "is_callback": "callback",
}
"""Field → its name in stored JSON, where the two differ."""


SUCCESSOR_KEY = "resume:{run}/{number}"
"""Key of the run that continues an ended one because a person asked for it."""


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
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema of the final answer; None: the definition's, if it has one."""
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
    announce_to: str = ""
    """For a request by a person: the session whose transcript receives the result."""
    is_independent: bool = False
    """The requesting run neither waits for this run nor is it cancelled with it; the run's limits count in its tree."""
    is_callback: bool = False
    """The run reads the answer of an independent run for the session that asked, and reports to nobody."""

    @property
    def call_id(self) -> str:
        """Return the id of the tool call that requested the run; empty if there is none."""
        return self.key.rpartition("/")[2] if self.key.startswith(CALL_KEY_PREFIX) else ""

    @property
    def continued_run_id(self) -> str | None:
        """Return the ended run that this one continues."""
        prefix, _, rest = self.key.partition(":")
        return rest.rpartition("/")[0] if prefix == SUCCESSOR_KEY.partition(":")[0] and "/" in rest else None


class ClaimResult(StrEnum):
    """Result of trying to claim a run: a slot, or why it got none."""

    CLAIMED = "claimed"
    NO_FREE_SLOT = "no_free_slot"
    REQUESTER_LIMIT = "requester_limit"
    """The requester is at its limit of running runs; runs of other requesters may start first."""
    SESSION_BUSY = "session_busy"
    """Another run of its session is in progress."""
    NOT_QUEUED = "not_queued"


MAX_CRASHES_WITHOUT_PROGRESS = 3
"""Crashes in a row without progress after which a run waits for a person."""
SUSPECT_CRASHES = 2
"""Crashes without progress after which a run is suspected to cause them."""
MAX_CRASHES_PER_HOUR = 10
"""Crashes within an hour of a run's own time after which the run waits for a person."""
_CRASH_WINDOW_S = 3600.0


class RecoveryState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What interrupted a run: crashes of its process, or an outage of its model's server."""

    interrupted_at: datetime | None = None
    """When the process stopped that worked on the run; None while a process works on it."""
    resumed_at: datetime | None = None
    """When the run was last started after a crash."""
    crash_streak: int = 0
    """Crashes since the last progress: a completed tool call or a final reply."""
    crash_marks: tuple[float, ...] = ()
    """The run's time left at its latest crashes, in seconds: the differences are time in which it ran."""
    outage_server: str = ""
    """The model server that gave no reply since `outage_since`; empty if the last request succeeded."""
    outage_since: datetime | None = None
    turns_at_grant: int = 0
    """The run's turns when a person last granted it more."""

    def record_start(self, at: datetime) -> Self:
        if self.interrupted_at is None and not self.crash_streak:
            return self
        return replace(self, interrupted_at=None, resumed_at=at if self.crash_streak else None)

    def record_crash(self, died_at: datetime, time_left: timedelta | None) -> Self:
        mark = 0.0 if time_left is None else time_left.total_seconds()
        return replace(
            self,
            interrupted_at=died_at,
            crash_streak=self.crash_streak + 1,
            crash_marks=(*self.crash_marks, mark)[-MAX_CRASHES_PER_HOUR:],
        )

    def record_progress(self) -> Self:
        return replace(self, crash_streak=0) if self.crash_streak else self

    def extend_outage(self, time: timedelta) -> Self:
        """Exclude time in which no process could send a request to the model's server."""
        if self.outage_since is None or time <= timedelta():
            return self
        return replace(self, outage_since=self.outage_since + time)

    @property
    def is_first_crash(self) -> bool:
        return self.crash_streak == len(self.crash_marks) == 1

    @property
    def is_suspect(self) -> bool:
        """Return True if the run is resumed alone, because it may have crashed its process repeatedly."""
        return self.crash_streak >= SUSPECT_CRASHES

    @property
    def crashes_too_often(self) -> bool:
        """Return True if a person must decide whether the run is resumed once more."""
        marks = self.crash_marks
        return self.crash_streak >= MAX_CRASHES_WITHOUT_PROGRESS or (
            len(marks) >= MAX_CRASHES_PER_HOUR and marks[0] - marks[-1] <= _CRASH_WINDOW_S
        )


class ResultFile(Struct, frozen=True, kw_only=True):
    """A file that a sub-agent left in its private /tmp."""

    path: str
    """The real path, which the parent may read."""
    size: int


class RunReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run reports at its end besides its text."""

    summary: str = ""
    """The `summary` argument of the exit tool that ended the run."""
    files: tuple[ResultFile, ...] = ()
    omitted_files: int = 0
    """Number of files that are not listed because there are too many."""
    can_only_think: bool = False
    """No tool that it was offered changes anything: it was asked to read and think."""
    fallback_models: tuple[str, ...] = ()
    """The fallbacks that answered instead of the run's model, as `provider:model`."""
    has_output: bool = False
    """The text is JSON that matches the output schema."""


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
    long_prompt_usage: Usage = Usage()
    """Part of the usage that the model's vendor charges at the rates for long prompts."""
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
    """When the run times out if its clock keeps running; None while the clock is stopped.

    The clock runs while the run is running, or waits for a child that can make progress.
    """
    time_left: timedelta | None = None
    """Time until the deadline while the clock is stopped; None before the first start and while it runs."""
    recovery: RecoveryState = RecoveryState()
    is_awaited: bool = False
    """A tool call of the parent run is open and receives the result."""
    waits_between_turns: bool = False
    """The run waits without an open tool call, so its conversation is free for other runs."""
    wake_at: datetime | None = None
    """When the run continues even if what it waits for has not arrived."""
    exit_tool: str = ""
    """The exit tool that ended the run, if the agent's definition requires one."""
    report: RunReport = RunReport()
    child_ids: tuple[str, ...] = ()
    is_pruned: bool = False
    """Only a tombstone is left: the task, the texts and the counts were removed from the ledger."""
    result_hash: str = ""
    """SHA-256 of the final message of a pruned run."""

    def start(self, *, owner_id: str, at: datetime, timeout: timedelta) -> Self:
        """Return the run in state running. The whole timeout counts from the first start."""
        return self._transition(
            Status.RUNNING,
            owner_id=owner_id,
            attempts=self.attempts + 1,
            started_at=self.started_at or at,
            deadline_at=at + (timeout if self.time_left is None else self.time_left),
            time_left=None,
            recovery=self.recovery.record_start(at),
        )

    def suspend(
        self,
        reason: WaitReason,
        *,
        at: datetime,
        between_turns: bool = False,
        wake_at: datetime | None = None,
    ) -> Self:
        return self._transition(
            Status.WAITING,
            **({} if reason is WaitReason.CHILD else self._stopped_clock(at)),
            waiting_for=reason,
            waits_between_turns=between_turns,
            wake_at=wake_at,
        )

    def requeue_after_crash(self, *, died_at: datetime) -> Self:
        """Return the run to the queue after its process died; the time since then does not count."""
        clock = self._stopped_clock(died_at)
        recovery = self.recovery.record_crash(died_at, clock.get("time_left", self.time_left))
        return self._transition(Status.QUEUED, owner_id="", recovery=recovery, **clock)

    def requeue_same_attempt(self, *, at: datetime) -> Self:
        """Return the run to the queue without counting a crash; the next start continues the same attempt."""
        recovery = replace(self.recovery, interrupted_at=at)
        return self._transition(
            Status.QUEUED,
            owner_id="",
            attempts=self.attempts - 1,
            recovery=recovery,
            **self._stopped_clock(at),
        )

    def requeue_after_wait(self, *, at: datetime) -> Self:
        """Return the run to the queue because what it waited for has arrived; the next start is no new attempt."""
        return self._transition(Status.QUEUED, attempts=self.attempts - 1, **self._stopped_clock(at))

    def stop_clock(self, at: datetime) -> Self:
        """Stop the clock of the deadline and keep the time that is left."""
        return replace(self, **self._stopped_clock(at))

    def wake(self, *, at: datetime | None) -> Self:
        """Return the waiting run with the time at which it is woken at the latest."""
        return replace(self, wake_at=at)

    def start_clock(self, at: datetime) -> Self:
        if self.time_left is None:
            return self
        return replace(self, deadline_at=at + self.time_left, time_left=None)

    def finish(self, status: Status, *, at: datetime, reason: Reason | None = None, error: str = "") -> Self:
        return self._transition(
            status, ended_at=at, reason=reason, error=error, owner_id="", is_awaited=False
        )

    def record_reply(
        self,
        usage: Usage,
        *,
        tool_calls: int,
        text: str,
        model: str,
        is_fallback: bool = False,
        is_long_prompt: bool = False,
    ) -> Self:
        """Count one reply of the model, after it was saved."""
        report = self.report
        if is_fallback and model not in report.fallback_models:
            report = replace(report, fallback_models=(*report.fallback_models, model))
        return replace(
            self,
            turns=self.turns + 1,
            tool_calls=self.tool_calls + tool_calls,
            usage=self.usage + usage,
            long_prompt_usage=self.long_prompt_usage + usage if is_long_prompt else self.long_prompt_usage,
            text=text or self.text,
            model=model or self.model,
            report=report,
        )

    @property
    def waits_for_background(self) -> bool:
        """Return True if the run has replied, and continues when its background children have ended."""
        return (
            self.status is Status.WAITING
            and self.waiting_for is WaitReason.CHILD
            and self.waits_between_turns
        )

    @property
    def is_suspended_for_person(self) -> bool:
        """Return True if the run continues only when a person resumes it."""
        return (
            self.status is Status.WAITING
            and self.waiting_for is WaitReason.PERSON
            and self.reason in PERSON_REASONS
        )

    @property
    def did_no_work(self) -> bool:
        """Return True if the run is done and none of its tool calls did anything, although it could have worked."""
        is_idle = self.status is Status.DONE and not self.effective_calls
        return is_idle and not self.report.can_only_think

    @property
    def output(self) -> Any:
        """Return the value of a final answer that matches its schema; None if there is none."""
        if self.status is not Status.DONE or not self.report.has_output:
            return None
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):  # its text was pruned, or edited in the transcript
            return None

    @property
    def duration_ms(self) -> int | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0, round((self.ended_at - self.started_at).total_seconds() * 1000))

    def _stopped_clock(self, at: datetime) -> dict[str, Any]:
        """Return the fields of the run with its clock stopped."""
        if self.deadline_at is None:
            return {}
        return {"deadline_at": None, "time_left": max(timedelta(), self.deadline_at - at)}

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
        "output": run.output,
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
        "continues": run.request.continued_run_id,
        "depth": run.depth,
        "label": run.request.label or None,
        "task": run.request.task,
        "model": run.model or None,
        "fallback_models": list(run.report.fallback_models),
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
        "pruned": run.is_pruned,
        "result_hash": run.result_hash or None,
    }
