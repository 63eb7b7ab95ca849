"""The limit on the turns of a run: it then waits for a person, who can grant as many turns again."""

from retinue.domain.run import Reason, Run
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.suspension import suspend_for_person, suspend_run

LIMIT_ERROR = (
    "the run used {turns} turns (limits.max_turns). `retinue runs resume {run}` grants {limit} more, "
    "`retinue runs cancel {run}` ends it"
)


def is_turn_limit_reached(run: Run, limit: float | None) -> bool:
    """Check whether a run has used its turns, counted from the last time that a person granted some."""
    return limit is not None and run.turns - run.recovery.turns_at_grant >= limit


async def suspend_at_turn_limit(run: Run, limit: float, context: RuntimeContext) -> bool:
    """Let a run that used its turns wait for a person; False if it was interrupted and must summarise."""

    def suspend(current: Run, tx: Transaction) -> bool:
        if current.reason is Reason.INTERRUPTED:
            return False
        error = LIMIT_ERROR.format(turns=current.turns, run=current.id, limit=int(limit))
        suspend_for_person(current, Reason.TURN_LIMIT, error, tx, context)
        return True

    return await suspend_run(run, context, suspend)
