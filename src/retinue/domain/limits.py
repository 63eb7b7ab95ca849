"""Limits on what agents may cost, with their defaults."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    max_depth: int = 3
    max_live: int = 16
    """Runs in state running at once, in all processes of a home; a waiting run occupies no slot."""
    max_live_per_requester: int = 16
    max_runs_per_tree: int = 10_000
    max_calls_per_turn: int = 1024
    identical_calls: int = 8
    """Identical tool calls in a row before the model is warned; after twice as many the run is stopped."""
    max_turns: int = 500
    """Turns of a run after which it waits for a person."""
    deadline_seconds: float = 3600
    deadline_max_seconds: float = 86_400
    idle_seconds: float = 300
    """Longest pause in a sub-agent's reply, from its first output on; output of any kind is progress."""
    reply_seconds: float = 0
    """Longest reply without a tool call, from its first output on; 0: no limit."""
    approval_seconds: float = 86_400
    resume_window_seconds: float = 86_400
    model_wait_seconds: float = 86_400
    """Longest wait of a run for a model server that is down; then a person must decide."""
    child_result_chars: int = 60_000
    """Characters of a sub-agent's text that its parent receives; the parent can read the rest."""
    watch_quiet_seconds: float = 2
    """Quiet time of an active conversation before its watchers are notified."""
    watch_runs_per_hour: int = 60
    """Per watcher."""

    def run_timeout_s(self, requested_s: float | None) -> float:
        """Return how long a run may take: the default if nothing is requested, the maximum for 0."""
        timeout_s = self.deadline_seconds if requested_s is None else requested_s
        # The comparison must be in this order: reversed, it would let NaN through.
        return min(timeout_s, self.deadline_max_seconds) if timeout_s > 0 else self.deadline_max_seconds


class SubagentSettings(Struct, frozen=True, kw_only=True):
    """Settings for agents that other agents start."""

    allow_agents: tuple[str, ...] | None = None
    model: str | None = None
    pool_enabled: bool = True
    """Whether agents that finished a task can be asked more afterwards."""


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long the ledger keeps ended runs and their events; 0 days keeps them until the size is reached."""

    runs_days: float = 90
    """Three months of history, about 300 MB at a thousand runs a day."""
    events_days: float = 14
    """Events only let a client catch up after a pause; the transcripts contain the messages."""
    ledger_mb: float = 512
    """Above this size, the oldest ended runs and events are pruned whatever their age."""

    @property
    def days(self) -> tuple[float, float]:
        """Return the ages for runs and for events."""
        return self.runs_days, self.events_days

    @property
    def ledger_bytes(self) -> int:
        return int(self.ledger_mb * 1_000_000)


MAX_CONFIGURABLE_DEPTH = 5
"""No configuration can allow more."""

MAX_ARGUMENT_BYTES = 1_000_000
MAX_ARGUMENT_DEPTH = 64
MAX_REPLY_BYTES = 8_000_000
"""A longer reply of a model is cut here and marked as cut."""
MAX_TOOL_RESULT_CHARS = 400_000
"""A longer tool result is cut here, keeping its beginning and end."""
MAX_CHILD_RESULT_CHARS = MAX_TOOL_RESULT_CHARS // 4
"""Maximum of limits.child_result_chars: escaped as JSON, a text still fits one tool result."""
MIN_CHILD_RESULT_CHARS = 1_000
MAX_BAD_REPLIES = 16
"""Replies with invalid tool calls (unknown tool, wrong arguments) after which a run counts as stuck."""
MAX_EMPTY_REPLIES = 3
