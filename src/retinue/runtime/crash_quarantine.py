"""Quarantine: what has outlived its process more than once may be what ends processes, and is tried alone first.

Nobody knows which of many interrupted runs took its process down. Taken up together, all of them would be counted as
often as the one, and be lost with it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from retinue.domain.run import Run
from retinue.interfaces import Ports
from retinue.runtime.recovery import resume_all
from retinue.runtime.run_control import given_up

SUSPECT = 2
"""So many times it was taken up, and each time its process ended under it."""
ALONE_SECONDS = 1.0
TOGETHER_SECONDS = 15.0
"""How long all of them together keep the others waiting."""


async def take_up(runs: Sequence[Run], ports: Ports) -> list[Run]:
    """Interrupted runs go on: the suspects first, each for a moment before the next, and then all others at once. Whoever
    ends the process again has nobody beside it but those that were tried before."""
    suspects = in_turn([run for run in runs if run.attempts >= SUSPECT])
    seconds = min(ALONE_SECONDS, TOGETHER_SECONDS / max(1, len(suspects)))
    taken: list[Run] = []
    for run in suspects:
        taken += await resume_all([run], ports)
        if taken and taken[-1].status.live and len(runs) > 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(ports.engine.wait(run.id), seconds)
    taken += await resume_all([run for run in runs if run.attempts < SUSPECT], ports)
    for run in taken:
        if run.status.final:
            await given_up(run, ports)
    return taken


def in_turn(suspects: Sequence[Run]) -> list[Run]:
    """Whoever was counted most goes first. Of those that were tried in the same round the last one was it, so each round
    goes the other way round."""
    return sorted(
        suspects, key=lambda run: (-run.attempts, _number(run) if run.attempts % 2 == 0 else -_number(run))
    )


def _number(run: Run) -> int:
    return int.from_bytes(run.id.encode())
