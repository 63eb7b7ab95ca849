"""What a person does to a run, wherever it is being worked: stop it, or answer what it asks."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from retinue.domain.approval import Answer, Approval, State
from retinue.domain.change import replace
from retinue.domain.delivery import State as Delivered
from retinue.domain.question import asked
from retinue.domain.rules import below, literal
from retinue.domain.run import Reason, Run, Status, Waiting, iso_seconds
from retinue.domain.session import Session
from retinue.domain.transcript import Notice, dangling
from retinue.errors import Conflict, NotFound, RetinueError, Usage
from retinue.interfaces import Conversation, Ports, Tx
from retinue.runtime import side_effects
from retinue.runtime.recovery import unanswered
from retinue.runtime.run_context import Desk
from retinue.runtime.run_creation import LIVE
from retinue.runtime.run_end import CANCELLED, Stirred, closed, heard, rouse
from retinue.runtime.run_events import told

ABORTING = "PersistentAgent"
"""A no to what an agent of this door asks ends that agent: its seed says so."""
STOPPED = "No result: the run was stopped before this call was answered."


async def cancel(
    run_id: str, ports: Ports, *, alive: Callable[[str], bool], reason: Reason = Reason.USER_CANCEL
) -> Run:
    """Those it asked for are stopped with it. What waits, in the queue or for a person, or is nobody's ends here; ours is stopped at once; another process is
    asked to. Whether its owner lives is asked in the step itself: a moment before, another process may not yet have
    taken it up."""
    stirred = Stirred()

    def wanted(tx: Tx) -> Run:
        stirred.runs.clear()
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final:
            return run
        if run.status is not Status.RUNNING or not alive(run.owner):
            return closed(run, Status.CANCELLED, tx, ports, stirred, reason=reason, error=CANCELLED[reason])
        run = replace(run, reason=reason)
        tx.set_run(run)
        return run

    before = await ports.ledger.look(lambda tx: tx.run(run_id))
    run = await ports.ledger.do(wanted, lambda _: stirred.submit(ports))
    if ports.engine.cancel(run_id) and run.status.live:
        await ports.engine.wait(run_id)
        run = await ports.ledger.look(lambda tx: tx.run(run_id) or run)
    if before is not None and before.status.live and run.status.final:
        await left(run, ports)
    for child in await ports.ledger.look(lambda tx: tx.runs(parent_run=run_id, status=LIVE)):
        await cancel(child.id, ports, alive=alive, reason=reason)
    return await ports.ledger.look(lambda tx: tx.run(run_id) or run)


async def left(run: Run, ports: Ports) -> None:
    """Nobody works a run that waited, or was to wait: its file is left ready for a person here. Where that cannot be, the
    next run does it."""
    with suppress(RetinueError):
        async with ports.store.open(await ports.store.find(run.path)) as talk:
            own = {called.id for called in dangling(talk.entries) if called.run == run.id}
            _, lost = unanswered(talk.entries, replace(run, id=""))
            at = iso_seconds(ports.chance.now())
            stopped = [replace(each, text=STOPPED, run=run.id, at=at) for each in lost if each.of in own]
            await Desk(run, ports).add(talk, *await side_effects.honest(stopped, ports))
            await talk.rest()
            await _heard(run, talk, ports)


async def _heard(run: Run, talk: Conversation, ports: Ports) -> None:
    """What was announced to it stands in its file, and the process died before it could say so."""
    told = {entry.id for entry in talk.entries if isinstance(entry, Notice)}
    pending = await ports.ledger.look(
        lambda tx: tx.deliveries(session=run.session_id, state=[Delivered.PENDING], answers=False)
    )
    if found := [each for each in pending if each.id in told]:
        await heard(found, ports)


async def wanted_gone(ports: Ports) -> list[str]:
    """Runs of this process that somebody, perhaps elsewhere, wants stopped."""

    def step(tx: Tx) -> list[str]:
        return [
            run.id
            for reason in CANCELLED
            for run in tx.runs(status=[Status.RUNNING, Status.WAITING], reason=reason)
            if run.owner == ports.owner
        ]

    return await ports.ledger.look(step)


async def answer(
    approval_id: str, said: Answer, ports: Ports, *, by: str, alive: Callable[[str], bool]
) -> Approval:
    """The answer and the run's going on are one step; whoever works the run, or else this process, takes it up."""
    asked = await ports.ledger.look(lambda tx: tx.approval(approval_id))
    if asked is None:
        raise NotFound(f"there is no approval {approval_id}: `retinue approvals list` shows those that wait")
    asked.answered(said, by=by, at=ports.chance.now())
    if said is Answer.ADD:
        await _added(asked, ports)

    stirred = Stirred()

    def step(tx: Tx) -> tuple[Approval, Run | None]:
        stirred.runs.clear()
        now = tx.approval(approval_id) or asked
        answered = now.answered(said, by=by, at=ports.chance.now())
        tx.set_approval(answered)
        ended = _aborted(answered, tx, ports, stirred)
        return answered, ended or _woken(answered, tx, ports, alive)

    answered, run = await ports.ledger.do(step)
    stirred.submit(ports)
    if run is not None and run.status.final:
        await left(run, ports)
    elif run is not None and run.owner == ports.owner:
        ports.engine.submit(run.id, ahead=True)
    return answered


def _aborted(approval: Approval, tx: Tx, ports: Ports, stirred: Stirred) -> Run | None:
    run = tx.run(approval.run)
    if run is None or approval.answer is not Answer.DENY or run.status is not Status.WAITING:
        return None
    if run.ask.door != ABORTING:
        return None
    tx.emit(told("approval.answered", run, ports, approval=approval.id, state=str(approval.state)))
    return closed(
        run, Status.CANCELLED, tx, ports, stirred, reason=Reason.USER_CANCEL, error="a person said no"
    )


async def expire(ports: Ports, *, alive: Callable[[str], bool], adopt: bool = True) -> list[Approval]:
    """Questions that nobody answered in time count as denied, and their runs go on with that. Those that nobody works
    are taken up here, or without `adopt` lie in the queue like any interrupted run."""

    def late(tx: Tx) -> list[Approval]:
        now = ports.chance.now()
        return [each for each in tx.approvals(state=[State.PENDING]) if now >= each.expires_at]

    def step(tx: Tx) -> list[tuple[Approval, Run | None]]:
        gone: list[tuple[Approval, Run | None]] = []
        for each in late(tx):
            tx.set_approval(each.expired())
            gone.append((each.expired(), _woken(each.expired(), tx, ports, alive, adopt=adopt)))
        return gone

    if not await ports.ledger.look(late):
        return []
    gone = await ports.ledger.do(step)
    for _, run in gone:
        if run is not None and run.owner == ports.owner:
            ports.engine.submit(run.id, ahead=True)
    return [approval for approval, _ in gone]


async def due(ports: Ports) -> None:
    """Runs that wait for others and whose clock has run out go on: a call that waited long enough answers, a run past
    its deadline ends."""

    def late(tx: Tx) -> list[Run]:
        return tx.runs(status=[Status.WAITING], due=ports.chance.now())

    def step(tx: Tx) -> None:
        stirred.runs.clear()
        for run in late(tx):
            rouse(run, tx, ports, stirred)

    stirred = Stirred()
    if await ports.ledger.look(late):
        await ports.ledger.do(step, lambda _: stirred.submit(ports))


async def woken(ports: Ports) -> list[str]:
    """Runs of this process whose answer came from elsewhere."""
    queued = await ports.ledger.look(lambda tx: tx.runs(status=[Status.QUEUED], begun=True))
    return [run.id for run in queued if run.owner == ports.owner]


async def detach(run_id: str, ports: Ports) -> Run:
    """A run that a call waits for goes on in the background: the call answers now, the result is announced."""
    stirred = Stirred()

    def step(tx: Tx) -> Run:
        stirred.runs.clear()
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final:
            raise Conflict(f"run {run_id} has ended ({run.status})")
        if not run.awaited:
            raise Conflict(f"nobody waits for run {run_id}: it is in the background already")
        run = replace(run, awaited=False)
        tx.set_run(run)
        above = tx.run(run.ask.parent_run or "")
        if above is not None and above.waiting_for is Waiting.CHILD and not above.aside:
            rouse(above, tx, ports, stirred)
        return run

    return await ports.ledger.do(step, lambda _: stirred.submit(ports))


async def answered(
    session: Session,
    text: str | None,
    ports: Ports,
    *,
    model: str | None = None,
    owner: str | None = None,
    entry: str = "",
) -> Run | None:
    """A person's words to the run of a conversation that waits for them: the same run goes on, here or where `owner`
    works. They stand in the file first: as the result of the call that asks for them, else as a message, under the id
    `entry` where one is given; without a text they are what is typed there. None: no run waits for words."""
    waiting = await ports.ledger.look(lambda tx: tx.runs(status=[Status.WAITING], session=session.id))
    parked = next((run for run in reversed(waiting) if run.waiting_for is Waiting.PERSON), None)
    if parked is None:
        return None
    waited = await _told(parked, session, text, ports, entry=entry)

    def step(tx: Tx) -> Run:
        run = tx.run(parked.id) or parked
        if run.status is not Status.WAITING or run.waiting_for is not Waiting.PERSON:
            return run  # somebody else was faster: it goes on, and reads these words too
        ask = replace(run.ask, model=ports.redact(model)) if model else run.ask
        again = replace(run.answered(waited=waited), owner=owner or ports.worker(), ask=ask)
        tx.set_run(again)
        return again

    run = await ports.ledger.do(step)
    if run.owner == ports.owner and run.status is Status.QUEUED:
        ports.engine.submit(run.id, ahead=True)
    return run


async def _told(parked: Run, session: Session, text: str | None, ports: Ports, *, entry: str) -> timedelta:
    """The words become an entry of the run; typed ones do when it goes on. The time it took until they came is not the
    run's; a stamp that a person has changed says nothing of it."""
    now = ports.chance.now()
    async with ports.store.open(session) as talk:
        since = next((entry.at for entry in reversed(talk.entries) if entry.run == parked.id), "")
        if text is not None:
            desk = Desk(parked, ports)
            words, question = ports.redact(text), asked(parked, talk.entries)
            said = desk.heard(words)
            message = replace(said, id=entry or said.id)
            await desk.add(talk, message if question is None else desk.replied(question, words))
        elif not talk.typed().strip() or not parked.aside:
            raise Usage(
                f"run {parked.id} waits for a person: say how to go on, or type it at the end of {parked.path}"
            )
    try:
        return max(timedelta(), now - datetime.fromisoformat(since))
    except (ValueError, TypeError):
        return timedelta()


async def desert(ended: Run, ports: Ports) -> None:
    """Whoever ended without its answer leaves nobody at work for it: those its calls waited for are stopped."""
    if ended.status is Status.DONE:
        return
    deserted = await ports.ledger.look(lambda tx: tx.runs(parent_run=ended.id, awaited=True, status=LIVE))
    for child in deserted:
        await cancel(child.id, ports, alive=ports.alive, reason=Reason.DESERTED)


async def given_up(run: Run, ports: Ports) -> None:
    """A run that nobody takes up any more: its file is left ready for a person, and nobody works for it."""
    await left(run, ports)
    await desert(run, ports)


def _woken(
    approval: Approval, tx: Tx, ports: Ports, alive: Callable[[str], bool], *, adopt: bool = True
) -> Run | None:
    """The run of an approval, queued again; None when it does not wait for one (any more)."""
    run = tx.run(approval.run)
    if run is None:
        return None
    tx.emit(told("approval.answered", run, ports, approval=approval.id, state=str(approval.state)))
    if run.status is not Status.WAITING or run.waiting_for is not Waiting.APPROVAL:
        return None
    again = run.answered(waited=ports.chance.now() - approval.asked_at)
    if adopt and not alive(again.owner):
        again = replace(again, owner=ports.worker())
    tx.set_run(again)
    return again


async def _added(asked: Approval, ports: Ports) -> None:
    """Into the preset.md of the very session that asked, and beyond what those above it could hand on."""
    session = await ports.store.find(asked.session)
    tool = ports.tools.get(asked.tool)
    touch = tool.touch if tool is not None else "read"
    pattern = literal(asked.resource)
    lifted = (*await _still_open(session, touch, ports), pattern)
    await ports.store.widen(session, touch, pattern)
    if touch in ("read", "write"):
        before: tuple[str, ...] = getattr(session.lifted, touch) or ()
        new = tuple(each for each in lifted if each not in before)
        if new:
            await ports.store.change(session, lifted=replace(session.lifted, **{touch: (*before, *new)}))


async def _still_open(session: Session, touch: str, ports: Ports) -> tuple[str, ...]:
    """A definition without a list of writes lets the workspace be written after a yes. With a list it would not, so that
    a person's word for one file more would be one for all others less."""
    own, _ = await ports.store.preset(session)
    listed = own.paths is not None and own.paths.write is not None
    return (below(session.workspace.root),) if touch == "write" and session.top and not listed else ()
