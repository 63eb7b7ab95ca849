"""The result of a child run for the tool call that waits for it."""

from msgspec.structs import replace

from retinue.domain.delivery import DeliveryState
from retinue.domain.run import Run
from retinue.errors import NotFound
from retinue.interfaces import Call, RuntimeContext, Transaction
from retinue.runtime.run_end import delete_temporary_session
from retinue.runtime.run_events import make_event
from retinue.runtime.run_outcome import RunSuspended


async def take_child_result(run: Run, call: Call, context: RuntimeContext) -> Run:
    """Return the child run as it ended, and mark its result as taken by this call.

    The call waits without a worker slot, and takes the result once, however often it is repeated. A run that
    is still live is returned if no call waits for it any more: its result will be announced. If `run` ends at
    this very moment, the suspended caller is woken at once.

    Raises:
        RunSuspended: the call must wait for the child.
    """
    if run.status.is_live and run.is_awaited and not _has_wait_expired(run, context):
        raise RunSuspended

    def step(tx: Transaction) -> Run:
        current = _current_run(run, tx)
        if current.status.is_live:
            if current.is_awaited:
                current = replace(current, is_awaited=False)
                tx.update_run(current)
            return current
        _mark_result_taken(current, call, tx, context)
        return current

    if run.status.is_live and not run.is_awaited:
        return run
    ended = await context.ledger.write(step)
    if ended.status.is_final and not ended.request.keep_session:
        for each in await context.ledger.read(lambda tx: tx.find_deliveries(run=ended.id)):
            await delete_temporary_session(each, context)
    return ended


def _mark_result_taken(ended: Run, call: Call, tx: Transaction, context: RuntimeContext) -> None:
    """Mark the result as delivered to this call, and emit that once, however often the call is repeated."""
    for each in tx.find_deliveries(run=ended.id, answers_call=True):
        if each.state in (DeliveryState.PENDING, DeliveryState.DELIVERED):
            delivered = each.mark_delivered(call.id, at=context.clock.now())
            if delivered is not each:
                tx.update_delivery(delivered)
                tx.emit(
                    make_event("announcement.delivered", ended, context, delivery=each.id, to=each.session)
                )


def _current_run(run: Run, tx: Transaction) -> Run:
    if (current := tx.get_run(run.id)) is None:
        raise NotFound(f"Run {run.id} not found.")
    return current


def _has_wait_expired(run: Run, context: RuntimeContext) -> bool:
    return run.request.wait_until is not None and context.clock.now() >= run.request.wait_until
