"""The inbox: whom a conversation has asked and not heard of yet. It is a view on the outbox, never a second list."""

from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import Run
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_creation import LIVE
from retinue.runtime.run_end import heard

Row = tuple[Run, Delivery | None]


def waiting(session: str, tx: Tx) -> list[Row]:
    """Those it asked that are not over, then the ends that nobody has taken; each the oldest first."""
    live = [run for each in tx.runs(session=session) for run in tx.runs(parent_run=each.id, status=LIVE)]
    ends = tx.deliveries(session=session, state=[Delivered.PENDING])
    return [*((run, None) for run in sorted(live, key=lambda run: run.id)), *rows(ends, tx)]


def rows(deliveries: list[Delivery], tx: Tx) -> list[Row]:
    """With the runs whose ends they tell."""
    return [(run, each) for each in deliveries if (run := tx.run(each.run)) is not None]


async def drained(session: str, ports: Ports, *, by: str, most: int) -> list[Row]:
    """What was to be announced is taken instead, the oldest first, and is not announced any more. The same taker may
    come again, after a crash, and gets what it took. What an open call waits for stays that call's."""

    def pending(tx: Tx) -> list[Delivery]:
        return tx.deliveries(session=session, state=[Delivered.PENDING], answers=False, limit=most)

    def taken(tx: Tx) -> list[Row]:
        told = tx.deliveries(session=session, state=[Delivered.DELIVERED], answers=False)
        return rows([each for each in told if each.taken_by == by], tx)

    if before := await ports.ledger.look(taken):
        return before
    await heard(await ports.ledger.look(pending), ports, by=by)
    return await ports.ledger.look(taken)
