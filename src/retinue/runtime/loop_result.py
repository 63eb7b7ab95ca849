"""How a run ended, whatever ended it."""

from retinue.domain.run import Reason, Status, Waiting
from retinue.domain.value import value
from retinue.errors import Cancelled, ModelFailed, NoRoom, RetinueError, TimedOut


@value
class Outcome:
    status: Status
    waiting_for: Waiting | None = None
    """It has not ended: it stands aside for this."""
    reason: Reason | None = None
    error: str = ""


def failure(error: BaseException) -> Outcome:
    """Each error's end: what is not ours is a crash, told by name."""
    if isinstance(error, Cancelled):
        return Outcome(status=Status.CANCELLED, reason=Reason.USER_CANCEL, error=str(error))
    if isinstance(error, TimedOut):
        return Outcome(status=Status.TIMED_OUT, reason=Reason.DEADLINE, error=str(error))
    if isinstance(error, ModelFailed):
        return Outcome(status=Status.FAILED, reason=Reason(error.reason), error=str(error))
    if isinstance(error, NoRoom):
        return Outcome(status=Status.FAILED, reason=Reason.DISK, error=str(error))
    if isinstance(error, RetinueError):
        return Outcome(status=Status.FAILED, reason=Reason.CONFIG, error=str(error))
    return Outcome(status=Status.FAILED, reason=Reason.CRASHED, error=f"{type(error).__name__}: {error}")
