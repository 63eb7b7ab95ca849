"""End, tell, wake: a run's end, what it leaves the one who asked, and that one's going on are one step of the ledger."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from retinue.domain.approval import State
from retinue.domain.change import replace
from retinue.domain.delivery import Delivery, announcement
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import STOPPING, Reason, Run, Status, Waiting
from retinue.errors import Cancelled, NotFound, RetinueError
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_creation import LIVE, WAKE, WAKING, Claim, wake
from retinue.runtime.run_events import told

MOST_TOLD = 1_000
CANCELLED = {
    Reason.USER_CANCEL: "cancelled",
    Reason.DESERTED: "stopped: the run that waited for it ended without its answer",
}


@dataclass(slots=True)
class Stirred:
    """Who goes on because of a step, for the engine to hear when the step is on disk."""

    runs: list[tuple[Run, Claim]] = field(default_factory=list[tuple[Run, Claim]])

    def submit(self, ports: Ports) -> None:
        for run, claim in self.runs:
            if run.owner == ports.owner:
                ports.engine.submit(run.id, taken=claim is Claim.TAKEN, ahead=run.started_at is not None)


async def end(
    run: Run, status: Status, ports: Ports, *, reason: Reason | None = None, error: str = ""
) -> Run:
    """The first end counts: a run that has ended already stays as it ended. One that is done is not over while somebody
    it asked is at work, or while there is news it has not heard: then it is returned as it is, waiting or running."""
    stirred = Stirred()

    def step(tx: Tx) -> Run:
        stirred.runs.clear()
        now = tx.run(run.id)
        if now is None or now.status.final:
            return now or run
        counted = replace(
            now,
            path=run.path,
            text=ports.redact(run.text),
            turns=run.turns,
            tool_calls=run.tool_calls,
            made=run.made,
            usage=run.usage,
            model=run.model or now.model,
            scope_hash=run.scope_hash or now.scope_hash,
            exit=run.exit,
        )
        why, said = reason, error
        if status is Status.CANCELLED and now.reason is Reason.DESERTED:
            why, said = Reason.DESERTED, CANCELLED[Reason.DESERTED]
        alone = not tx.holds(run.id, run.session_id)  # so it is with most
        if status is Status.DONE and not alone and (unsettled := _unsettled(counted, tx, ports)):
            return unsettled
        return closed(counted, status, tx, ports, stirred, reason=why, error=said, alone=alone)

    return await ports.ledger.do(step, lambda _: stirred.submit(ports))


def _unsettled(run: Run, tx: Tx, ports: Ports) -> Run | None:
    """Looking and ending are one step, so no announcement falls between them."""
    if run.tool_calls:
        let_go(run, tx, ports)
    if news(run, tx, limit=1):
        tx.set_run(run)
        return run
    if not tx.at_work_for(run.id):
        return None
    if run.reason in STOPPING:
        raise Cancelled(
            "cancelled"
        )  # another process wants it gone, and nobody would heed that while it waits
    aside = run.waits(Waiting.CHILD, aside=True, until=run.deadline_at)
    tx.set_run(aside)
    tx.emit(told("run.state", aside, ports, phase="child"))
    return aside


def let_go(
    run: Run, tx: Tx, ports: Ports, *, still_open: Collection[str] = (), lost: Collection[str] = ()
) -> None:
    """What was to answer a call that is open no more is announced instead. Whoever has spoken its last word has none
    open; others may have been answered by somebody else while the run lay in the queue of a dead process, or been
    taken out of the file by a person. `lost` are calls that somebody else has answered: what one of them had taken when
    its process died never arrived."""
    for left in tx.deliveries(by=run.id, state=[Delivered.DELIVERED], answers=True) if lost else ():
        if left.taken_by in lost and (asked := tx.run(left.run)) is not None:
            tx.set_delivery(left.announced(announcement(asked, nonce(ports), ports.cost(asked))))
    for asked in unasked(run, tx, still_open=still_open):
        if asked.status.live:
            tx.set_run(replace(asked, awaited=False))
        for left in tx.deliveries(run=asked.id, state=[Delivered.PENDING], answers=True):
            tx.set_delivery(left.announced(announcement(asked, nonce(ports), ports.cost(asked))))


def unasked(run: Run, tx: Tx, *, still_open: Collection[str]) -> list[Run]:
    """Those whose answer an open call of the run is to get, and that call is not among these."""
    left = tx.deliveries(by=run.id, state=[Delivered.PENDING], answers=True)
    ended = [found for each in left if (found := tx.run(each.run)) is not None]
    asked = [*tx.runs(parent_run=run.id, awaited=True, status=LIVE), *ended]
    calls = tuple(f"call:{run.id}/{call}" for call in still_open)
    return [each for each in asked if not each.ask.key.startswith(calls)]


def closed(  # noqa: PLR0913  (how it ended, one fact each)
    run: Run,
    status: Status,
    tx: Tx,
    ports: Ports,
    stirred: Stirred,
    *,
    reason: Reason | None = None,
    error: str = "",
    alone: bool = False,
) -> Run:
    """The end of a live run, as part of a step that knows it is live. Whatever it still asked is asked no more, and what
    others left for its open calls nobody will take; `alone`: there is none of that."""
    ended = run.ended(status, at=ports.chance.now(), reason=reason, error=ports.redact(error))
    tx.set_run(ended)
    if not alone:
        for asked in tx.approvals(run=run.id, state=[State.PENDING]):
            tx.set_approval(asked.void())
        for left in tx.deliveries(by=run.id, state=[Delivered.PENDING], answers=True):
            tx.set_delivery(left.discarded())
    tx.emit(
        told(
            "run.ended",
            ended,
            ports,
            status=str(status),
            reason=reason and str(reason),
            duration_ms=ended.duration_ms,
            result=_told_of(ended.text),
        )
    )
    if ended.ask.source == WAKE and status not in (Status.DONE, Status.CANCELLED):
        _unheard(ended, tx)
    if ended.ask.parent_run is not None:
        _post(ended, tx, ports, stirred, answers=run.awaited)
    elif ended.ask.inbox:
        _shelve(ended, tx, ports)
    if status not in (Status.DONE, Status.CANCELLED) and not alone:
        _handed_over(ended, tx, ports, stirred)
    return ended


def _told_of(text: str) -> str:
    """As much of a result as an event carries: all of it stands in the run."""
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}…"


def _handed_over(ended: Run, tx: Tx, ports: Ports, stirred: Stirred) -> None:
    """What came while it was going on, and it ended before it could hear: somebody else of its conversation hears it,
    or is woken for it. Once for each announcement: whoever was woken and cannot hear either is not woken again."""
    for left in news(ended, tx):
        above = tx.run(left.by)
        if above is not None and tx.run_by_key(f"{WAKING}{left.id}") is None:
            _announce(above, left, tx, ports, stirred)
            return


def _unheard(woken: Run, tx: Tx) -> None:
    """What a run was made to hear, and could not: it is not tried for ever, and the inbox tells a person."""
    delivery = tx.delivery(woken.ask.key.removeprefix(WAKING))
    if delivery is not None and delivery.state is Delivered.PENDING:
        tx.set_delivery(replace(delivery, state=Delivered.FAILED, attempts=delivery.attempts + 1))


def _post(ended: Run, tx: Tx, ports: Ports, stirred: Stirred, *, answers: bool) -> None:
    """One delivery for each end. Posting and seeing whether anybody is there to hear it are one step."""
    above = tx.run(ended.ask.parent_run or "")
    if above is None:
        return
    delivery = Delivery(
        id=ports.chance.entry_id(),
        run=ended.id,
        by=above.id,
        session=above.session_id,
        answers=answers,
        text="" if answers else announcement(ended, nonce(ports), ports.cost(ended)),
        keep=ended.ask.keep,
        created_at=ports.chance.now(),
    )
    silent = not answers and _silent(ended)
    if silent or above.status is Status.CANCELLED or (answers and above.status.final):
        tx.add_delivery(delivery.discarded())
        # There is nothing to hear, but perhaps nobody to wait for any more either.
        if above.aside and not _hears_them_out(above, tx):
            stirred.runs.append((_roused(above, tx, ports), Claim.FULL))
        return
    tx.add_delivery(delivery)
    tx.emit(told("announcement.posted", ended, ports, delivery=delivery.id, to=above.session_id))
    if answers:
        _answer(above, tx, ports, stirred)
    else:
        _announce(above, delivery, tx, ports, stirred)


def _shelve(ended: Run, tx: Tx, ports: Ports) -> None:
    """A person asked for it, and not the agent beside whose conversation they did: it lies in the inbox for them, and no
    model hears of it unless they pass it on."""
    at = ports.chance.now()
    delivery = Delivery(
        id=ports.chance.entry_id(),
        run=ended.id,
        by="",
        session=ended.ask.inbox,
        answers=False,
        text=announcement(ended, nonce(ports), ports.cost(ended)),
        created_at=at,
    )
    tx.add_delivery(delivery.taken("person", at=at))
    tx.emit(told("announcement.posted", ended, ports, delivery=delivery.id, to=delivery.session))


def _silent(ended: Run) -> bool:
    """An empty answer to a message makes nobody speak."""
    return ended.ask.door == "agents_message" and ended.status is Status.DONE and not ended.text.strip()


def _answer(above: Run, tx: Tx, ports: Ports, stirred: Stirred) -> None:
    """Whoever waits inside its calls goes on when the last of those it waits for has ended."""
    waits = above.status is Status.WAITING and above.waiting_for is Waiting.CHILD and not above.aside
    if waits and not tx.at_work_for(above.id, awaited=True):
        stirred.runs.append((_roused(above, tx, ports), Claim.FULL))


def _announce(above: Run, delivery: Delivery, tx: Tx, ports: Ports, stirred: Stirred) -> None:
    """To the run that asked, if it lives; else to any of its conversation; else a run is made to hear it. A run that is
    going on hears it at its next turn, and does not end before."""
    if above.status.live:
        if above.aside and not _hears_them_out(above, tx):
            stirred.runs.append((_roused(above, tx, ports), Claim.FULL))
        return
    others = tx.runs(session=above.session_id, status=LIVE)
    if not others:
        stirred.runs.append(wake(above, delivery.id, tx, ports))
    elif all(other.aside for other in others):
        stirred.runs.append((_roused(others[0], tx, ports), Claim.FULL))


def _hears_them_out(run: Run, tx: Tx) -> bool:
    """Whoever is to sum up does it once, when all it asked have."""
    return run.reason is Reason.INTERRUPTED and tx.at_work_for(run.id)


def _roused(run: Run, tx: Tx, ports: Ports) -> Run:
    """If its process is gone, whoever works here takes it up."""
    again = run.answered(waited=timedelta())
    if not ports.alive(again.owner):
        again = replace(again, owner=ports.worker())
    tx.set_run(again)
    return again


def rouse(run: Run, tx: Tx, ports: Ports, stirred: Stirred) -> None:
    """A run that waits for a child goes on although none has ended: its clock says so, or a person."""
    if run.status is Status.WAITING:
        stirred.runs.append((_roused(run, tx, ports), Claim.FULL))


def news(run: Run, tx: Tx, *, limit: int | None = None) -> list[Delivery]:
    """What was announced to a run and it has not heard: of those it asked itself, and of those that others of its
    conversation asked who cannot hear it any more."""
    found: list[Delivery] = []
    for each in tx.deliveries(session=run.session_id, state=[Delivered.PENDING], answers=False):
        asked = None if each.by == run.id else tx.run(each.by)
        if asked is None or asked.status.final:
            found.append(each)
        if limit is not None and len(found) >= limit:
            break
    return found


async def heard(deliveries: list[Delivery], ports: Ports, *, by: str = "") -> None:
    """They stand in the requester's conversation: from now on they are delivered, and what was not to be kept goes."""

    def step(tx: Tx) -> list[Delivery]:
        done: list[Delivery] = []
        for each in deliveries:
            now = tx.delivery(each.id) or each
            if now.state is not Delivered.PENDING:
                continue
            taken = now.taken(by or now.id, at=ports.chance.now())
            tx.set_delivery(taken)
            if (run := tx.run(taken.run)) is not None:
                tx.emit(told("announcement.delivered", run, ports, delivery=taken.id, to=taken.session))
            done.append(taken)
        return done

    for each in await ports.ledger.do(step):
        await clear(each, ports)


async def clear(delivery: Delivery, ports: Ports) -> None:
    """A session that was not to be kept is put aside once its result is delivered. Where that cannot be done now, it is
    done at a later start."""
    if delivery.keep or delivery.cleared:
        return
    run = await ports.ledger.look(lambda tx: tx.run(delivery.run))

    def step(tx: Tx) -> None:
        tx.set_delivery(replace(tx.delivery(delivery.id) or delivery, cleared=True))
        if run is not None:
            tx.emit(told("session.changed", run, ports, what="deleted"))

    with suppress(RetinueError):
        if run is not None:
            with suppress(NotFound):
                await ports.store.delete(await ports.store.find(run.path))
        await ports.ledger.do(step)


async def clear_all(ports: Ports) -> None:
    """What a crash kept from being put aside."""
    for each in await ports.ledger.look(lambda tx: tx.deliveries(uncleared=True)):
        await clear(each, ports)


def nonce(ports: Ports) -> str:
    """A delimiter that a child cannot have guessed."""
    return ports.chance.entry_id()[-8:] + ports.chance.uuid().replace("-", "")[-12:]
