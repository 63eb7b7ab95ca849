"""Cancel: a person stops a run, wherever it is being worked."""

from dataclasses import replace

from retinue.domain.run import Reason, Run, Status
from retinue.errors import NotFound
from retinue.ports import Ports, Tx
from retinue.runtime.announce import closed, end


async def cancel(run_id: str, ports: Ports, *, owner_lives: bool) -> Run:
    """What waits in the queue or is nobody's ends here; ours is stopped at once; another process is asked to."""

    def wanted(tx: Tx) -> Run:
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status is Status.QUEUED:
            return closed(run, Status.CANCELLED, tx, ports, reason=Reason.USER_CANCEL, error="cancelled")
        if run.status.live and run.owner and owner_lives:
            run = replace(run, reason=Reason.USER_CANCEL)
            tx.set_run(run)
        return run

    run = await ports.ledger.do(wanted)
    ours = ports.engine.cancel(run_id)
    if run.status.final:
        return run
    if ours:
        await ports.engine.wait(run_id)
    elif not (run.owner and owner_lives):
        return await end(run, Status.CANCELLED, ports, reason=Reason.USER_CANCEL, error="cancelled")
    return await ports.ledger.look(lambda tx: tx.run(run_id) or run)


async def wanted_gone(ports: Ports) -> list[str]:
    """Runs of this process that somebody, perhaps elsewhere, wants stopped."""

    def step(tx: Tx) -> list[str]:
        return [
            run.id
            for run in tx.runs(status=[Status.RUNNING, Status.WAITING])
            if run.owner == ports.owner and run.reason is Reason.USER_CANCEL
        ]

    return await ports.ledger.look(step)
