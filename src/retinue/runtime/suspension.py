"""Where a run stands while nobody works it: what it waits for, and what was counted so far."""

from contextlib import suppress

from retinue.domain.approval import State
from retinue.domain.change import replace
from retinue.domain.run import STOPPING, Run, Status, Waiting
from retinue.errors import Cancelled, RetinueError
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_creation import LIVE
from retinue.runtime.run_events import told


async def parked(run: Run, ports: Ports, question: str = "") -> bool:
    """Whether it waits inside its calls, perhaps for the answer to a question: an answer that came meanwhile is seen in this very step, so none is missed, and
    so is another process's wish that it stop: nobody would heed that while it waits."""

    def step(tx: Tx) -> bool:
        now = tx.run(run.id)
        if now is None or now.status is not Status.RUNNING:
            return True
        if now.reason in STOPPING:
            raise Cancelled("cancelled")
        waiting = _awaited(counted(now, run), tx, asks=bool(question))
        if waiting is None:
            return False
        tx.set_run(waiting)
        words = {"question": question} if waiting.waiting_for is Waiting.PERSON else {}
        tx.emit(told("run.state", waiting, ports, phase=str(waiting.waiting_for), **words))
        return True

    return await ports.ledger.do(step)


def _awaited(run: Run, tx: Tx, *, asks: bool) -> Run | None:
    """A person first: nobody else's answer can stand for theirs."""
    if tx.approvals(run=run.id, state=[State.PENDING]):
        return run.waits(Waiting.APPROVAL)
    if asks:
        return run.waits(Waiting.PERSON)
    asked = tx.runs(parent_run=run.id, awaited=True, status=LIVE)
    if not asked:
        return None
    times = [run.deadline_at, *(each.ask.wait_until for each in asked)]
    return run.waits(Waiting.CHILD, until=min((at for at in times if at is not None), default=None))


async def keep_counts(run: Run, ports: Ports) -> None:
    """Somebody stopped us: what was counted so far is kept, the status is theirs to set. The file knows it too, so a
    ledger that cannot be written to now changes nothing about how this ends."""
    with suppress(RetinueError):
        await ports.ledger.do(lambda tx: tx.set_run(counted(tx.run(run.id) or run, run)))


def counted(row: Run, run: Run) -> Run:
    return replace(
        row,
        turns=run.turns,
        tool_calls=run.tool_calls,
        made=run.made,
        usage=run.usage,
        text=run.text,
        model=run.model or row.model,
        scope_hash=run.scope_hash,
    )
