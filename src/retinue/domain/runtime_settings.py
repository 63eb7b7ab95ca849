"""Settled: what was decided for a whole process before any run in it began."""

from collections.abc import Callable

from retinue.domain.approval import Policy
from retinue.domain.limits import Limits, Subagents
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run
from retinue.domain.sandbox_level import Level
from retinue.domain.value import value


@value
class Settled:
    """The same for every run."""

    minimum: Level
    """Below it no command is run, whoever allows it."""
    policy: Policy
    limits: Limits
    subagents: Subagents
    """What holds for agents that other agents start."""
    redact: Redactor
    """Takes secrets out of a text before it is stored, logged or told."""
    keeps: bool = True
    """Whether conversations outlive this process."""
    cost: Callable[[Run], float | None] = lambda _: None
    """What a run came to, in dollars; None: its model has no price."""
