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
    """A second birth with the same key returns the first run. Where a slot is free the run is born and taken up
    in one step; the engine is told when that is on disk."""
    born = _newborn(ask, session, ports)

    def step(tx: Tx) -> tuple[Run, Claim]:
        if first := tx.run_by_key(ask.key):
            return first, Claim.GONE
        run = _placed(born, tx, ports)
        claim = _slot(run, tx, ports, newborn=True)
        taken = _taken(run, ports) if claim is Claim.TAKEN else run
        tx.add_run(taken)
        tx.emit(told("run.queued", run, ports))
        if claim is Claim.TAKEN:
            tx.emit(told("run.started", taken, ports, attempt=taken.attempts))
        return taken, claim

    run, claim = await ports.ledger.do(step)
    if claim is not Claim.GONE:
        ports.engine.submit(run.id, taken=claim is Claim.TAKEN)
    return run


async def claim(run_id: str, ports: Ports) -> Claim:
    """Takes up a queued run, if it may be."""

    def step(tx: Tx) -> Claim:
        run = tx.run(run_id)
        if run is None or run.status is not Status.QUEUED:
            return Claim.GONE
        claim = _slot(run, tx, ports, newborn=False)
        if claim is Claim.TAKEN:
            taken = _taken(run, ports)
            tx.set_run(taken)
            tx.emit(told("run.started", taken, ports, attempt=taken.attempts))
        return claim

    return await ports.ledger.do(step)


def _slot(run: Run, tx: Tx, ports: Ports, *, newborn: bool) -> Claim:
    """A slot is reserved in the step that makes the run running: no count is ever acted on later."""
    if tx.count(Status.RUNNING) >= ports.limits.max_live:
        return Claim.FULL
    return Claim.BUSY if _busy(run, tx, newborn=newborn) else Claim.TAKEN


def _busy(run: Run, tx: Tx, *, newborn: bool) -> bool:
    """In its session a run stands behind one that is going on or waits inside a call. A newborn stands behind all that
    wait in the queue; later only those go first that were begun before and may go on."""
    if tx.runs(status=(Status.RUNNING, Status.WAITING), session=run.session_id, limit=1):
        return True
    queued = tx.runs(status=(Status.QUEUED,), session=run.session_id)
    return any(
        newborn or (other.started_at is not None and other.owner == run.owner)
        for other in queued
        if other.id != run.id and other.created_at <= run.created_at
    )


def _taken(run: Run, ports: Ports) -> Run:
    at = ports.chance.now()
    deadline = at + timedelta(seconds=ports.limits.deadline(run.ask.deadline_seconds))
    return run.started(owner=ports.owner, at=at, deadline_at=deadline)


def _newborn(ask: Ask, session: Session, ports: Ports) -> Run:
    run_id = ports.chance.entry_id()
    return Run(
        id=run_id,
        ask=_redacted(ask, ports),
        session_id=session.id,
        slug=session.slug,
        key=session.key,
        agent=session.agent,
        path=f"{session.path}/session.md",
        root=run_id,
        depth=session.depth,
        model=ports.redact(ask.model or ""),
        thinking=ask.thinking or "",
        workspace=session.workspace.root,
        owner=ports.owner,
        created_at=ports.chance.now(),
    )


def _redacted(ask: Ask, ports: Ports) -> Ask:
    """A key may be pasted anywhere, also where a model is asked for."""
    return replace(
        ask,
        task=ask.task and ports.redact(ask.task),
        label=ports.redact(ask.label),
        model=ask.model and ports.redact(ask.model),
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
