"""One more run in a session: the only place a run is born, and the only place one is taken up."""

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum

from retinue.domain.change import replace
from retinue.domain.limits import HARD_DEPTH
from retinue.domain.run import Ask, Run, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import short
from retinue.errors import Conflict, Refused
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_events import told

LIVE = (Status.QUEUED, Status.RUNNING, Status.WAITING)

WAKE = "wake"
"""The source of a run that nobody asked for anew: what it hears is an announcement."""

WAKING = "wake:"
"""What the key of such a run begins with; the rest is the delivery."""


class Claim(StrEnum):
    """What came of trying to take a run up."""

    TAKEN = "taken"
    FULL = "full"
    CROWDED = "crowded"
    """As many as one requester may have are running; those of others may go first."""
    BUSY = "busy"
    """Another run of its session is going on."""
    GONE = "gone"


async def send(
    ask: Ask,
    session: Session,
    ports: Ports,
    *,
    owner: str | None = None,
    alone: bool = False,
    with_it: Callable[[Tx], None] = lambda _: None,
) -> Run:
    """A second birth with the same key returns the first run. Where a slot is free the run is born and taken up
    in one step; the engine is told when that is on disk. With `owner`, that process is to work it; `alone`, it is not
    born where anything else of its session lives; `with_it` is what becomes true in the same step, and keeps it from
    being born by raising."""
    newborn = _newborn(ask, session, ports, owner or ports.worker())

    def step(tx: Tx) -> tuple[Run, Claim]:
        if first := tx.run_by_key(ask.key):
            return first, Claim.GONE
        if alone and tx.runs(session=session.id, status=LIVE, limit=1):
            raise Conflict(f"{session.slug} is at work: ask again when that has ended")
        with_it(tx)
        return _born(_placed(newborn, tx, ports), tx, ports)

    def born(found: tuple[Run, Claim]) -> None:
        run, claim = found
        if run.owner == ports.owner and claim is not Claim.GONE:
            lane = ask.requester if ask.parent_run is not None else ""
            ports.engine.submit(run.id, taken=claim is Claim.TAKEN and (run, session), lane=lane)

    return (await ports.ledger.do(step, born))[0]


def wake(asked: Run, delivery: str, tx: Tx, ports: Ports) -> tuple[Run, Claim]:
    """A run for a conversation in which nobody is left to hear an announcement, born in the step that posts it. It takes
    over requester, depth, root and ceilings of the run that asked."""
    ask = replace(
        asked.ask,
        key=f"{WAKING}{delivery}",
        task="",
        typed=False,
        source=WAKE,
        wait=False,
        wait_until=None,
        keep=True,
        deadline_seconds=None,
    )
    run = Run(
        id=ports.chance.entry_id(),
        ask=ask,
        session_id=asked.session_id,
        slug=asked.slug,
        key=asked.key,
        agent=asked.agent,
        path=asked.path,
        root=asked.root,
        depth=asked.depth,
        model=ask.model or "",
        thinking=asked.thinking,
        workspace=asked.workspace,
        owner=ports.worker(),
        created_at=ports.chance.now(),
    )
    return _born(run, tx, ports)


def _born(run: Run, tx: Tx, ports: Ports) -> tuple[Run, Claim]:
    """What another process is to work waits for it in the queue."""
    claim = _slot(run, tx, ports, newborn=True) if run.owner == ports.owner else Claim.FULL
    if claim is Claim.BUSY and run.ask.unless_busy:
        run = replace(run, awaited=False)
    taken = _taken(run, ports) if claim is Claim.TAKEN else run
    tx.add_run(taken)
    tx.emit(
        told("run.queued", run, ports, door=run.ask.door, call=_call(run), task=short(run.ask.task or ""))
    )
    if claim is Claim.TAKEN:
        tx.emit(told("run.started", taken, ports, attempt=taken.attempts))
    return taken, claim


def _call(run: Run) -> str:
    """The call that asked for it, so that what the run does can be shown below that call."""
    return run.ask.key.rpartition("/")[2] if run.ask.key.startswith("call:") else ""


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
    if newborn and run.ask.unless_busy and _busy(run, tx, ports, newborn=True):
        return Claim.BUSY
    if tx.count(Status.RUNNING) >= ports.limits.max_live:
        return Claim.FULL
    if _crowded(run, tx, ports):
        return Claim.CROWDED
    return Claim.BUSY if _busy(run, tx, ports, newborn=newborn) else Claim.TAKEN


def _crowded(run: Run, tx: Tx, ports: Ports) -> bool:
    if run.ask.parent_run is None:
        return False
    live = tx.count(Status.RUNNING, requester=run.ask.requester)
    return live >= ports.limits.max_live_per_requester


def _busy(run: Run, tx: Tx, ports: Ports, *, newborn: bool) -> bool:
    """In its session a run stands behind one that is going on or waits inside a call; one that waits with no call open
    stands aside. A newborn stands behind all that wait in the queue; later only those go first that were asked before
    and may go on: the session may have become free since one of them was told that it is not."""
    live = tx.runs(status=LIVE, session=run.session_id)
    if any(other.status is not Status.QUEUED and not other.aside for other in live):
        return True
    queued = (each for each in live if each.status is Status.QUEUED and each.id != run.id)
    if newborn:
        return next(queued, None) is not None
    # Two may have been born at one time of the clock: their ids say who goes first, or each would wait for the other.
    mine = (run.created_at, run.id)
    before = (each for each in queued if each.owner == run.owner and (each.created_at, each.id) < mine)
    return any(other.started_at is not None or not _crowded(other, tx, ports) for other in before)


def _taken(run: Run, ports: Ports) -> Run:
    at = ports.chance.now()
    deadline = at + timedelta(seconds=ports.limits.deadline(run.ask.deadline_seconds))
    return run.started(owner=ports.owner, at=at, deadline_at=deadline)


def _newborn(ask: Ask, session: Session, ports: Ports, owner: str) -> Run:
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
        owner=owner,
        awaited=ask.wait,
        created_at=ports.chance.now(),
    )


def _redacted(ask: Ask, ports: Ports) -> Ask:
    """A key may be pasted anywhere, also where a model is asked for."""
    said = (ask.task, ask.label, ask.model)
    task, label, model = (each and ports.redact(each) for each in said)
    return ask if (task, label, model) == said else replace(ask, task=task, label=label, model=model)


def _placed(run: Run, tx: Tx, ports: Ports) -> Run:
    """Depth and root come from the requesting run's row, never from words."""
    if run.ask.parent_run is None:
        return run
    above = tx.run(run.ask.parent_run)
    if above is None:
        raise Refused(f"run {run.ask.parent_run} asked for this one, and the ledger does not know it")
    if above.status.final and above.status is not Status.DONE:
        raise Refused(f"{above.agent} was stopped ({above.status}) before it could start {run.agent}")
    depth = above.depth + 1
    deepest = min(ports.limits.max_depth, HARD_DEPTH)
    if depth > deepest:
        raise Refused(
            f"{above.agent} is {above.depth} deep and may not start {run.agent}: {deepest} is the limit"
        )
    if tx.count(root=above.root) >= ports.limits.max_runs_per_tree:
        raise Refused(
            f"{above.agent} may not start {run.agent}: the tree of {above.root} has had its "
            f"{ports.limits.max_runs_per_tree} runs (limits.max_runs_per_tree)"
        )
    return replace(run, root=above.root, depth=depth)
