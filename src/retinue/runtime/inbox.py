"""The inbox: live and finished delegated runs whose result a session has not received."""

from typing import NamedTuple

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import LIVE_STATUSES, Run
from retinue.interfaces import RuntimeContext, Transaction
from retinue.runtime.run_end import mark_delivered


class RunDelivery(NamedTuple):
    """A run and the delivery of its result; a live run has none yet."""

    run: Run
    delivery: Delivery | None


def pending_inbox_rows(session: str, tx: Transaction) -> list[RunDelivery]:
    """Return the session's live children, then the undelivered results; oldest first in each group."""
    live = [
        run
        for each in tx.find_runs(session=session)
        for run in tx.find_runs(parent_run=each.id, status=LIVE_STATUSES, with_independent=True)
        if not run.request.is_callback
    ]
    deliveries = tx.find_deliveries(session=session, state=[DeliveryState.PENDING])
    return [
        *(RunDelivery(run, None) for run in sorted(live, key=lambda run: run.id)),
        *pair_with_runs(deliveries, tx),
    ]


def pair_with_runs(deliveries: list[Delivery], tx: Transaction) -> list[RunDelivery]:
    """Pair deliveries with their runs."""
    return [RunDelivery(run, each) for each in deliveries if (run := tx.get_run(each.run)) is not None]


async def drain_inbox(
    session: str, context: RuntimeContext, *, receiver: str, limit: int
) -> list[RunDelivery]:
    """Take pending results from the inbox, oldest first, so that they are not announced.

    A caller that repeats this after a crash gets the same results again. Results that an open
    call waits for are not taken.
    """

    def pending(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries(
            session=session, state=[DeliveryState.PENDING], answers_call=False, limit=limit
        )

    def taken_deliveries(tx: Transaction) -> list[RunDelivery]:
        delivered = tx.find_deliveries(session=session, state=[DeliveryState.DELIVERED], answers_call=False)
        return pair_with_runs([each for each in delivered if each.taken_by == receiver], tx)

    if previous := await context.ledger.read(taken_deliveries):
        return previous
    await mark_delivered(await context.ledger.read(pending), context, receiver=receiver)
    return await context.ledger.read(taken_deliveries)
