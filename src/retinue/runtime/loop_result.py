"""The outcome of a run, and the outcome that belongs to each error."""

from msgspec import Struct

from retinue.domain.run import Reason, Status, WaitReason
from retinue.errors import Cancelled, DiskError, ModelFailed, RetinueError, TimedOut


class RunOutcome(Struct, frozen=True, kw_only=True):
    status: Status
    waiting_for: WaitReason | None = None
    """Set if the run has not ended but is suspended for this."""
    reason: Reason | None = None
    error: str = ""


def outcome_for_error(error: BaseException) -> RunOutcome:
    """Return the outcome for an error; an exception that is not ours counts as a crash."""
    if isinstance(error, Cancelled):
        return RunOutcome(status=Status.CANCELLED, reason=Reason.USER_CANCEL, error=str(error))
    if isinstance(error, TimedOut):
        return RunOutcome(status=Status.TIMED_OUT, reason=Reason.DEADLINE, error=str(error))
    if isinstance(error, ModelFailed):
        return RunOutcome(status=Status.FAILED, reason=Reason(error.reason), error=str(error))
    if isinstance(error, DiskError):
        return RunOutcome(status=Status.FAILED, reason=Reason.DISK, error=str(error))
    if isinstance(error, RetinueError):
        return RunOutcome(status=Status.FAILED, reason=Reason.CONFIG, error=str(error))
    return RunOutcome(status=Status.FAILED, reason=Reason.CRASHED, error=f"{type(error).__name__}: {error}")
