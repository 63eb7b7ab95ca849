"""Limits: the numbers that bound what agents may cost, with their defaults."""

from retinue.domain.value import value


@value
class Limits:
    max_depth: int = 3
    max_live: int = 16
    """Runs in state running; a waiting run holds no slot."""
    max_live_per_requester: int = 16
    max_runs_per_tree: int = 10_000
    max_calls_per_turn: int = 1024
    identical_calls: int = 8
    deadline_seconds: float = 3600
    deadline_max_seconds: float = 86_400
    idle_seconds: float = 300
    approval_seconds: float = 86_400
    resume_window_seconds: float = 86_400
    watch_quiet_seconds: float = 2
    """How long a conversation at work must be quiet before those who watch it are told."""
    watch_runs_per_hour: int = 60
    """Of one watcher."""

    def deadline(self, asked: float | None) -> float:
        """How long a run may take: nothing asked is the default, 0 is the maximum, never infinity."""
        wanted = self.deadline_seconds if asked is None else asked
        # Turned around, this would let NaN through: it is neither above nor below anything.
        return min(wanted, self.deadline_max_seconds) if wanted > 0 else self.deadline_max_seconds


@value
class Subagents:
    """What holds for agents that other agents start."""

    allow_agents: tuple[str, ...] | None = None
    model: str | None = None
    pool: bool = True
    """Whether those that did a task can be asked more afterwards."""


HARD_DEPTH = 5
"""No configuration goes deeper."""

MAX_ARGUMENT_BYTES = 1_000_000
MAX_ARGUMENT_DEPTH = 64
MAX_REPLY_BYTES = 8_000_000
"""A model's reply is cut here, and says so."""
MAX_RESULT_BYTES = 400_000
"""A tool's result is cut here, head and tail kept."""
MAX_BAD_REPLIES = 16
"""Replies with calls that could not run (unknown tool, wrong arguments) in one run before it is stuck."""
MAX_EMPTY_REPLIES = 3
