"""Settings of the runtime that are fixed for the whole process."""

from collections.abc import Callable

from msgspec import Struct

from retinue.domain.approval import ApprovalPolicy
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run
from retinue.domain.sandbox_level import SandboxLevel


class RuntimeSettings(Struct, frozen=True, kw_only=True):
    """Settings that are the same for every run."""

    minimum_sandbox_level: SandboxLevel
    """In a weaker sandbox no command runs, not even with approval."""
    approval_policy: Callable[[], ApprovalPolicy]
    """The current policy: it may change while the process runs."""
    limits: Limits
    subagent_settings: SubagentSettings
    """Settings for agents that other agents start."""
    redact: Redactor
    """Remove secrets from a text before it is stored, logged or sent."""
    is_persistent: bool = True
    """Whether sessions outlive this process."""
    is_unattended: bool = False
    """Whether nobody can answer approvals, so that calls that require one are refused at once."""
    run_cost: Callable[[Run], float | None] = lambda _: None
    """Return the cost of a run in dollars; None if its model has no price."""
    is_long_prompt: Callable[[str, int], bool] = lambda _model, _tokens: False
    """Return whether the model's vendor asks other rates for a request with this many input tokens."""
