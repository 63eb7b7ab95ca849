"""Retry alone the runs whose process died several times, in case one of them crashes processes.

It is unknown which of many interrupted runs crashed its process. If they were resumed together, all of them
would reach the crash limit together with the culprit, and would have to wait for a person.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.run import Reason, Run
from retinue.interfaces import RuntimeContext
from retinue.runtime.recovery import SUSPECT_TRIAL_SECONDS, resume_available_runs
from retinue.runtime.run_control import close_abandoned_run, close_transcript

TOTAL_TRIAL_SECONDS = 15.0
"""Longest time that all suspects together delay the other runs."""


async def resume_orphaned_runs(runs: Sequence[Run], context: RuntimeContext) -> list[Run]:
    """Resume interrupted runs: suspects one by one, each with a short head start, then all others at once.

    If a run crashes the process again, only runs that were tried before it are running.
    """
    suspects = order_suspects([run for run in runs if run.recovery.is_suspect])
    seconds = min(SUSPECT_TRIAL_SECONDS, TOTAL_TRIAL_SECONDS / max(1, len(suspects)))
    resumed: list[Run] = []
    for run in suspects:
        resumed += await resume_available_runs([run], context)
        if resumed and resumed[-1].status.is_live and len(runs) > 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(context.worker.wait(run.id), seconds)
    resumed += await resume_available_runs([run for run in runs if not run.recovery.is_suspect], context)
    for run in resumed:
        if run.status.is_final:
            await close_abandoned_run(run, context)
        elif run.reason is Reason.RECOVERY_LIMIT:
            await close_transcript(run, context)
    return resumed


def order_suspects(suspects: Sequence[Run]) -> list[Run]:
    """Sort suspects: most crashes first.

    Among runs tried in the same round, the last one started was the culprit, so the order alternates each
    round.
    """
    return sorted(
        suspects,
        key=lambda run: (
            -run.recovery.crash_streak,
            _id_as_int(run) if run.recovery.crash_streak % 2 == 0 else -_id_as_int(run),
        ),
    )


def _id_as_int(run: Run) -> int:
    return int.from_bytes(run.id.encode())
