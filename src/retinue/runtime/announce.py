"""End, and tell: a run's end and its telling are one step of the ledger."""

from dataclasses import replace
from datetime import timedelta

from retinue.domain.approval import State
from retinue.domain.event import Event
from retinue.domain.run import Reason, Run, Status
from retinue.ports import Ports, Tx


async def end(
    run: Run, status: Status, ports: Ports, *, reason: Reason | None = None, error: str = ""
) -> Run:
    """The first end counts: a run that has ended already stays as it ended."""

    def step(tx: Tx) -> tuple[Run, Run | None]:
        now = tx.run(run.id)
        if now is None or now.status.final:
            return now or run, None
        counted = replace(
            now,
            text=ports.redact(run.text),
            turns=run.turns,
            tool_calls=run.tool_calls,
            usage=run.usage,
            model=run.model or now.model,
            scope_hash=run.scope_hash or now.scope_hash,
        )
        ended = closed(counted, status, tx, ports, reason=reason, error=error)
        return ended, roused(ended, tx, ports)

    ended, above = await ports.ledger.do(step)
    if above is not None and above.owner == ports.owner:
        ports.engine.submit(above.id)
    return ended


def roused(ended: Run, tx: Tx, ports: Ports) -> Run | None:
    """Whoever asked for a run that has ended and waits for it goes on, in the same step: no end is missed. If its
    process is gone, this one takes it up."""
    above = tx.run(ended.ask.parent_run) if ended.ask.parent_run else None
    if above is None or above.status is not Status.WAITING:
        return None
    again = above.answered(waited=timedelta())
    if not ports.alive(again.owner):
        again = replace(again, owner=ports.owner)
    tx.set_run(again)
    return again


def closed(
    run: Run, status: Status, tx: Tx, ports: Ports, *, reason: Reason | None = None, error: str = ""
) -> Run:
    """The end of a live run, as part of a step that knows it is live. Whatever it still asked is asked no more."""
    ended = run.ended(status, at=ports.chance.now(), reason=reason, error=ports.redact(error))
    tx.set_run(ended)
    for asked in tx.approvals(run=run.id, state=[State.PENDING]):
        tx.set_approval(asked.void())
    tx.emit(told("run.ended", ended, ports, status=str(status), reason=reason and str(reason)))
    return ended


def told(kind: str, run: Run, ports: Ports, **data: object) -> Event:
    """An event about a run, stamped and attributed."""
    return Event(
        kind=kind,  # pyright: ignore[reportArgumentType]  (callers pass literals of the table)
        at=ports.chance.now(),
        session=run.session_id,
        run=run.id,
        parent_run=run.ask.parent_run or "",
        agent=run.agent,
        data=data,
    )
