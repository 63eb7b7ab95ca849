"""A watcher speaks: what it says waits in the inbox for a person, and only the gravest ends the turn it watches."""

from retinue.domain.event import Event
from retinue.domain.run import STOPPING, Reason
from retinue.domain.value import value
from retinue.domain.watch import Interjection, Severity, Watch
from retinue.errors import NotFound, Refused
from retinue.interfaces import Call, Ports, Tx
from retinue.runtime.interrupts import interrupt
from retinue.runtime.run_creation import LIVE
from retinue.runtime.run_plan import definition

MOST = 3
"""Interjections of one run: who says much is not heard."""
MOST_WORDS = 4_000
"""Characters of a reason, and of a suggestion."""


@value
class Words:
    severity: Severity
    reason: str
    suggestion: str = ""


async def interject(words: Words, call: Call, ports: Ports) -> Interjection:
    """Said and kept in one step; the same call says it once, whatever dies in between. A turn that it ends is ended
    like one that a person interrupts."""
    agent = await definition(call.session, ports)
    may = agent.interrupts

    def step(tx: Tx) -> Interjection:
        if first := tx.interjections(call=call.id):
            return first[0]
        watch = next(iter(tx.watches(watcher=call.session.id, on=True)), None)
        if watch is None:
            raise Refused("nobody is watched from here any more: there is nothing to say")
        if len(tx.interjections(run=call.run.id)) >= MOST:
            raise Refused(f"{MOST} interjections are enough for one piece: end here")
        said = _said(words, watch, call, ports, may=may, struck=_struck(watch, call, tx) if may else "")
        tx.set_interjection(said)
        tx.emit(_told("interjection.posted", said, ports, watch.name))
        return said

    said = await ports.ledger.do(step)
    if said.interrupts:
        await interrupt(said.interrupts, ports)
    return said


async def dismiss(interjection: str, ports: Ports, *, by: str) -> Interjection:
    """Somebody has read it, or sets it aside."""

    def step(tx: Tx) -> Interjection:
        if (said := named(interjection, tx)) is None:
            raise NotFound(f"there is no interjection {interjection}: `retinue inbox` lists them")
        if not said.open:
            return said
        gone = said.dismissed(by, at=ports.chance.now())
        tx.set_interjection(gone)
        tx.emit(_told("interjection.dismissed", gone, ports, gone.agent))
        return gone

    return await ports.ledger.do(step)


def named(ref: str, tx: Tx) -> Interjection | None:
    """By its id, or an unambiguous beginning of it."""
    found = tx.interjections(prefix=ref, limit=2) if ref else []
    return found[0] if len(found) == 1 else None


def _said(words: Words, watch: Watch, call: Call, ports: Ports, *, may: bool, struck: str) -> Interjection:
    """Who may not interrupt warns."""
    severity = words.severity
    if severity is Severity.INTERRUPT and not may:
        severity = Severity.WARNING
    return Interjection(
        id=ports.chance.entry_id(),
        call=call.id,
        run=call.run.id,
        watch=watch.id,
        session=watch.session,
        slug=watch.slug,
        watcher=watch.watcher,
        agent=watch.agent,
        severity=severity,
        reason=ports.redact(words.reason)[:MOST_WORDS],
        suggestion=ports.redact(words.suggestion)[:MOST_WORDS],
        interrupts=struck if severity is Severity.INTERRUPT else "",
        created_at=ports.chance.now(),
    )


def _struck(watch: Watch, call: Call, tx: Tx) -> str:
    """The run that it was told of, if that goes on: what was begun since it has not heard of."""
    for run in reversed(tx.runs(session=watch.session, status=LIVE)):
        if run.aside or run.reason in (*STOPPING, Reason.INTERRUPTED):
            continue
        if run.created_at <= call.run.created_at:
            return run.id
    return ""


def _told(kind: str, said: Interjection, ports: Ports, name: str) -> Event:
    return Event(
        kind=kind,  # pyright: ignore[reportArgumentType]  (callers pass literals of the table)
        at=ports.chance.now(),
        session=said.session,
        agent=said.agent,
        data={
            "interjection": said.id,
            "severity": str(said.severity),
            "reason": said.reason,
            "suggestion": said.suggestion,
            "interrupts": said.interrupts,
            "watcher": said.watcher,
            "name": name,
            "by": said.by or said.run,
        },
    )
