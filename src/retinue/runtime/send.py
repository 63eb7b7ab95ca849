"""One more run in a session: the only place a run is born, and the only place one is taken up."""

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum

from retinue.domain.limits import HARD_DEPTH
from retinue.domain.run import Ask, Run, Status
from retinue.domain.session import Session
from retinue.errors import Refused
from retinue.ports import Ports, Tx
from retinue.runtime.announce import told


class Claim(StrEnum):
    """What came of trying to take a run up."""

    TAKEN = "taken"
    FULL = "full"
    BUSY = "busy"
    """Another run of its session is going on."""
    GONE = "gone"


async def send(ask: Ask, session: Session, ports: Ports) -> Run:
    """A second birth with the same key returns the first run. The engine is told when the row is on disk."""
    born = _newborn(ask, session, ports)

    def step(tx: Tx) -> Run:
        if first := tx.run_by_key(ask.key):
            return first
        run = _placed(born, tx, ports)
        tx.add_run(run)
        tx.emit(told("run.queued", run, ports))
        return run

    run = await ports.ledger.do(step)
    if run.status is Status.QUEUED:
        ports.engine.submit(run.id)
    return run


async def claim(run_id: str, ports: Ports) -> Claim:
    """A slot is reserved in the step that makes the run running: no count is ever acted on later."""

    def step(tx: Tx) -> Claim:
        run = tx.run(run_id)
        if run is None or run.status is not Status.QUEUED:
            return Claim.GONE
        if tx.count(Status.RUNNING) >= ports.limits.max_live:
            return Claim.FULL
        if tx.runs(status=[Status.RUNNING], session=run.session_id, limit=1):
            return Claim.BUSY
        at = ports.chance.now()
        deadline = at + timedelta(seconds=ports.limits.deadline(run.ask.deadline_seconds))
        run = run.started(owner=ports.owner, at=at, deadline_at=deadline)
        tx.set_run(run)
        tx.emit(told("run.started", run, ports, attempt=run.attempts))
        return Claim.TAKEN

    return await ports.ledger.do(step)


def _newborn(ask: Ask, session: Session, ports: Ports) -> Run:
    run_id = ports.chance.entry_id()
    return Run(
        id=run_id,
        ask=ask,
        session_id=session.id,
        slug=session.slug,
        key=session.key,
        agent=session.agent,
        path=f"{session.path}/session.md",
        root=run_id,
        depth=session.depth,
        model=ask.model or "",
        thinking=ask.thinking or "",
        workspace=session.workspace.root,
        owner=ports.owner,
        created_at=ports.chance.now(),
    )


def _placed(run: Run, tx: Tx, ports: Ports) -> Run:
    """Depth and root come from the requesting run's row, never from words."""
    if run.ask.parent_run is None:
        return run
    above = tx.run(run.ask.parent_run)
    if above is None:
        raise Refused(f"run {run.ask.parent_run} asked for this one, and the ledger does not know it")
    depth = above.depth + 1
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if depth > deepest:
        raise Refused(
            f"{above.agent} is {above.depth} deep and may not start {run.agent}: {deepest} is the limit"
        )
    return replace(run, root=above.root, depth=depth)
