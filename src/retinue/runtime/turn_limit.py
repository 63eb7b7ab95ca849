"""The limit on the turns of a run: it then waits for a person, who can grant as many turns again."""

from retinue.domain.run import CANCEL_REASONS, Reason, Run, Status
from retinue.errors import Cancelled
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.recovery import park_run
from retinue.runtime.suspension import with_counters

LIMIT_ERROR = (
    "the run used {turns} turns (limits.max_turns). `retinue runs resume {run}` grants {limit} more, "
    "`retinue runs cancel {run}` ends it"
)


def is_turn_limit_reached(run: Run, limit: float | None) -> bool:
    """Check whether a run has used its turns, counted from the last time that a person granted some."""
    return limit is not None and run.turns - run.recovery.turns_at_grant >= limit


async def suspend_at_turn_limit(run: Run, limit: float, context: RuntimeContext) -> bool:
    """Let a run that used its turns wait for a person; False if it must continue, to end.

    Raises:
        Cancelled: another process asked the run to stop.
    """

    def step(tx: Transaction) -> bool:
        current = tx.get_run(run.id)
        if current is None or current.status is not Status.RUNNING:
            return True
        if current.reason in CANCEL_REASONS:
            raise Cancelled("cancelled")
        if current.reason is Reason.INTERRUPTED:
            return False
        error = LIMIT_ERROR.format(turns=run.turns, run=run.id, limit=int(limit))
        park_run(with_counters(current, run), Reason.TURN_LIMIT, error, tx, context)
        return True

    return await context.ledger.write(step)
