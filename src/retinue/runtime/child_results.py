"""The answer to a call that asked for a run: waited for without a slot, taken once, however often the call is made."""

from retinue.domain.change import replace
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import Run
from retinue.errors import NotFound
from retinue.interfaces import Call, Ports, Tx
from retinue.runtime.approvals import Parked
from retinue.runtime.run_end import clear
from retinue.runtime.run_events import told


async def outcome(run: Run, call: Call, ports: Ports) -> Run:
    """The run as it ended, its result taken by this call. Parked: it is waited for. A run that still lives comes back
    when nobody waits for it (any more): its result will be announced. `run` was found or born just now: should it end
    this very moment, whoever is parked for it learns so at once."""
    if run.status.live and run.awaited and not _out_of_patience(run, ports):
        raise Parked

    def step(tx: Tx) -> Run:
        now = _now(run, tx)
        if now.status.live:
            if now.awaited:
                now = replace(now, awaited=False)
                tx.set_run(now)
            return now
        _take(now, call, tx, ports)
        return now

    if run.status.live and not run.awaited:
        return run
    ended = await ports.ledger.do(step)
    if ended.status.final and not ended.ask.keep:
        for each in await ports.ledger.look(lambda tx: tx.deliveries(run=ended.id)):
            await clear(each, ports)
    return ended


def _take(ended: Run, call: Call, tx: Tx, ports: Ports) -> None:
    """The call has the result from here on, and whoever follows is told so once, however often it is made."""
    for each in tx.deliveries(run=ended.id, answers=True):
        if each.state in (Delivered.PENDING, Delivered.DELIVERED):
            taken = each.taken(call.id, at=ports.chance.now())
            if taken is not each:
                tx.set_delivery(taken)
                tx.emit(told("announcement.delivered", ended, ports, delivery=each.id, to=each.session))


def _now(run: Run, tx: Tx) -> Run:
    if (now := tx.run(run.id)) is None:
        raise NotFound(f"there is no run {run.id}")
    return now


def _out_of_patience(run: Run, ports: Ports) -> bool:
    return run.ask.wait_until is not None and ports.chance.now() >= run.ask.wait_until
