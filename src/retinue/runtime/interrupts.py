"""A person interrupts a run: it says nothing more than what it has come to, and so do those it asked."""

from datetime import timedelta

from retinue.domain.approval import State
from retinue.domain.change import replace
from retinue.domain.run import STOPPING, Reason, Run, Status, Waiting
from retinue.errors import NotFound
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_creation import LIVE, Claim
from retinue.runtime.run_end import Stirred, closed
from retinue.runtime.turn_timer import Interruptions

NEVER_BEGUN = "interrupted before it began"


async def interrupt(run_id: str, ports: Ports) -> Run:
    """The wish stands in the run's row until it has ended, so that whoever works it sees it, and whoever takes it up
    after a crash does too. One that waits for others goes on when they have summed up; any other that waits goes on
    now; one that never began is cancelled."""
    stirred = Stirred()

    def step(tx: Tx) -> Run:
        stirred.runs.clear()
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final or run.reason in STOPPING:
            return run
        if run.status is Status.QUEUED and run.started_at is None:
            return closed(
                run, Status.CANCELLED, tx, ports, stirred, reason=Reason.INTERRUPTED, error=NEVER_BEGUN
            )
        return _marked(run, tx, ports, stirred)

    def then(_run: Run) -> None:
        stirred.submit(ports)
        ports.engine.heed()

    run = await ports.ledger.do(step, then)
    for child in await ports.ledger.look(lambda tx: tx.runs(parent_run=run_id, status=LIVE)):
        if child.reason is not Reason.INTERRUPTED:
            await interrupt(child.id, ports)
    return run


def _marked(run: Run, tx: Tx, ports: Ports, stirred: Stirred) -> Run:
    """If nobody works it, this process takes it up: there is still something to be said."""
    run = replace(run, reason=Reason.INTERRUPTED)
    lives = ports.alive(run.owner)
    if run.status is Status.WAITING and not _waited_for(run, tx):
        for each in tx.approvals(run=run.id, state=[State.PENDING]):
            tx.set_approval(each.void())
        run = run.answered(waited=timedelta())
    elif not lives and run.status is Status.RUNNING:
        run = run.requeued()
    if not lives:
        run = replace(run, owner=ports.worker())
    tx.set_run(run)
    if run.status is Status.QUEUED:
        stirred.runs.append((run, Claim.FULL))
    return run


async def heed(ports: Ports, interruptions: Interruptions) -> None:
    """Runs of this process that somebody, perhaps elsewhere, wants interrupted. One that has begun to wait meanwhile
    passes the wish on to those it waits for."""

    def step(tx: Tx) -> list[Run]:
        found = tx.runs(status=[Status.RUNNING, Status.WAITING], reason=Reason.INTERRUPTED)
        return [run for run in found if run.owner == ports.owner]

    for run in await ports.ledger.look(step):
        if run.status is Status.RUNNING:
            interruptions.strike(run.id)
        elif not await ports.ledger.look(lambda tx, run=run: _passed_on(run, tx)):
            await interrupt(run.id, ports)


def _passed_on(run: Run, tx: Tx) -> bool:
    asked = _waited_for(run, tx)
    return bool(asked) and all(each.reason is Reason.INTERRUPTED for each in asked)


def _waited_for(run: Run, tx: Tx) -> list[Run]:
    """Whom a run waits for: those its open calls asked for, or with none open all who work for it."""
    if run.waiting_for is not Waiting.CHILD:
        return []
    return tx.runs(parent_run=run.id, awaited=None if run.aside else True, status=LIVE)
