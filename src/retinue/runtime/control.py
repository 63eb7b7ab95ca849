"""Cancel: a person stops a run, wherever it is being worked."""

from collections.abc import Callable
from dataclasses import replace

from retinue.domain.run import Reason, Run, Status
from retinue.errors import NotFound
from retinue.ports import Ports, Tx
from retinue.runtime.announce import closed


async def cancel(run_id: str, ports: Ports, *, alive: Callable[[str], bool]) -> Run:
    """What waits in the queue or is nobody's ends here; ours is stopped at once; another process is asked to. Whether
    its owner lives is asked in the step itself: a moment before, another process may not yet have taken it up."""

    def wanted(tx: Tx) -> Run:
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final:
            return run
        if run.status is Status.QUEUED or not alive(run.owner):
            return closed(run, Status.CANCELLED, tx, ports, reason=Reason.USER_CANCEL, error="cancelled")
        run = replace(run, reason=Reason.USER_CANCEL)
        tx.set_run(run)
        return run

    run = await ports.ledger.do(wanted)
    if ports.engine.cancel(run_id) and run.status.live:
        await ports.engine.wait(run_id)
    return await ports.ledger.look(lambda tx: tx.run(run_id) or run)


async def wanted_gone(ports: Ports) -> list[str]:
    """Runs of this process that somebody, perhaps elsewhere, wants stopped."""

    def step(tx: Tx) -> list[str]:
        return [
            run.id
            for run in tx.runs(status=[Status.RUNNING, Status.WAITING], reason=Reason.USER_CANCEL)
            if run.owner == ports.owner
        ]

    return await ports.ledger.look(step)
