"""The outcome of a run or of one attempt at it, and the outcome that belongs to each error."""

from msgspec import Struct

from retinue.domain.run import Reason, Status, WaitReason
from retinue.errors import Cancelled, DiskError, ModelFailed, RetinueError, TimedOut


class RunSuspended(Exception):
    """Raised by a tool or an approval that must wait for a person or a child.

    Caught where calls are executed (`tool_executor`, `cli_agents`), which return a `Suspension` instead; from
    there on a suspension is a value.
    """

    def __init__(self, question: str = "", *, needs_approval: bool = False) -> None:
        super().__init__(question)
        self.question = question
        """Text of the question, if the run waits for a person's answer in words."""
        self.needs_approval = needs_approval
        """The call waits for a person's approval and has not started."""


class Suspension(Struct, frozen=True, kw_only=True):
    """A tool call stays open: the run waits, and repeats the call when it resumes."""

    question: str = ""
    """Text of the question, if the run waits for a person's answer in words."""
    calls_to_approve: tuple[str, ...] = ()
    """The ids of the calls that wait for a person's approval and have not started."""


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How one attempt at a run ended: the run has ended, or it is suspended."""

    status: Status
    waiting_for: WaitReason | None = None
    """Set if the run is suspended for this between two turns."""
    suspension: Suspension | None = None
    """Set if the run is suspended inside a tool call."""
    reason: Reason | None = None
    error: str = ""
    outage_server: str = ""
    """The model server that the run waits for."""
    breaks_off: bool = False
    """That server begins replies and does not complete them."""


def suspended_outcome(suspension: Suspension) -> RunOutcome:
    return RunOutcome(status=Status.WAITING, suspension=suspension)


def outcome_for_error(error: BaseException) -> RunOutcome:
    """Return the outcome for an error; an exception that is not ours counts as a crash."""
    if isinstance(error, Cancelled):
        return RunOutcome(status=Status.CANCELLED, reason=Reason.USER_CANCEL, error=str(error))
    if isinstance(error, TimedOut):
        return RunOutcome(status=Status.TIMED_OUT, reason=Reason.DEADLINE, error=str(error))
    if isinstance(error, ModelFailed) and error.outage_server:
        return RunOutcome(
            status=Status.WAITING,
            waiting_for=WaitReason.MODEL,
            reason=Reason(error.reason),
            error=str(error),
            outage_server=error.outage_server,
            breaks_off=error.breaks_off,
        )
    if isinstance(error, ModelFailed):
        return RunOutcome(status=Status.FAILED, reason=Reason(error.reason), error=str(error))
    if isinstance(error, DiskError):
        return RunOutcome(status=Status.FAILED, reason=Reason.DISK, error=str(error))
    if isinstance(error, RetinueError):
        return RunOutcome(status=Status.FAILED, reason=Reason.CONFIG, error=str(error))
    return RunOutcome(status=Status.FAILED, reason=Reason.CRASHED, error=f"{type(error).__name__}: {error}")
