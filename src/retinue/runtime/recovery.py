"""What a start finds: calls without a result, and counts that only the file still knows."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from retinue.domain.change import replace
from retinue.domain.run import Reason, Run, Status, Usage
from retinue.domain.side_effect import Progress
from retinue.domain.transcript import Called, Entry, Returned, Said, dangling
from retinue.errors import Conflict, NotFound, Refused
from retinue.interfaces import Ports, Tx
from retinue.runtime.run_end import end
from retinue.runtime.run_events import told

MAX_RESUMES = 3
"""How often a run is taken up again before it counts as lost."""

UNKNOWN = (
    "Outcome unknown: it may or may not have happened, and it was not repeated. Check before you do it again."
)
INTERRUPTED = f"Interrupted: the process ended before this call was answered. {UNKNOWN}"
STALE = "it was interrupted, and longer ago than limits.resume_window_seconds: send its session a message to go on"
NOT_ANSWERED = "Interrupted: this call was not answered. Nothing is known of its outcome."


def unanswered(entries: Sequence[Entry], run: Run) -> tuple[list[Called], list[Returned]]:
    """Calls to make again (this run's: the gate knows which of them were begun and must not be), and results for those
    of other runs. A call whose result a person took out, and after which the model has spoken again, is history: it is
    not answered anew."""
    again: list[Called] = []
    told: list[Returned] = []
    for called in dangling(_since_last_reply(entries)):
        if called.run == run.id:
            again.append(called)
        else:
            told.append(Returned(of=called.id, text=NOT_ANSWERED, ok=False, run=run.id))
    return again, told


def _since_last_reply(entries: Sequence[Entry]) -> Sequence[Entry]:
    for at in range(len(entries) - 1, -1, -1):
        entry = entries[at]
        if isinstance(entry, Said) and entry.by == "agent":
            return entries[at:]
    return entries


def recounted(run: Run, entries: Sequence[Entry]) -> Run:
    """A run taken up again counts what it did before: every reply in the file says which run it belongs to."""
    replies = [e for e in entries if isinstance(e, Said) and e.by == "agent" and e.run == run.id]
    usage = Usage()
    for reply in replies:
        usage = usage + reply.usage
    texts = [reply.text for reply in replies if reply.text]
    return replace(
        run,
        turns=len(replies),
        tool_calls=sum(reply.calls for reply in replies),
        usage=usage,
        text=texts[-1] if texts else "",
    )


def conclusion(run: Run, entries: Sequence[Entry]) -> Said | None:
    """The run's last reply, when the run may have ended by it: it called tools, perhaps one turn too many, or nothing
    of the run came after it, because the process died before it could say more."""
    of_run = (entry for entry in reversed(entries) if entry.run == run.id)
    more = False
    for entry in of_run:
        if isinstance(entry, Said) and entry.by == "agent":
            return None if more and not entry.calls else entry
        more = True
    return None


def at_rest(entries: Sequence[Entry]) -> bool:
    """Whether the model had the last word: nothing asks it to go on."""
    last = entries[-1] if entries else None
    return isinstance(last, Said) and last.by == "agent" and not last.calls


async def release(ports: Ports, alive: Callable[[str], bool]) -> None:
    """A dead owner's runs go back to the queue, where they hold neither a slot nor their session. One that waits for a
    person waits on: it needs no process for that."""
    owners = await ports.ledger.look(lambda tx: tx.owners([Status.RUNNING]))
    dead = {owner for owner in owners if owner != ports.owner and not alive(owner)}

    def step(tx: Tx) -> None:
        running = tx.runs(status=[Status.RUNNING])
        for owner in dead:
            left = [run for run in running if run.owner == owner]
            acting = {run.id for run in left if _acting(run, tx)}
            for run in left:
                innocent = acting and run.id not in acting
                _broken_off(run.put_back() if innocent else run.requeued(), tx, ports)

    if dead:
        await ports.ledger.do(step)


def _acting(run: Run, tx: Tx) -> bool:
    """Its process died while it was doing something to the world. Where one was, that may have ended the process, and
    those beside it, who only talked, are not counted for it: a run that ends processes takes nobody with it."""
    return any(deed.progress is Progress.STARTED for deed in tx.deeds(run.id))


def _broken_off(queued: Run, tx: Tx, ports: Ports) -> Run:
    """What it was saying is said again: whoever heard half of it is told, also when they come back later."""
    tx.set_run(queued)
    tx.emit(told("text.discarded", queued, ports))
    return queued


async def put_back(ports: Ports) -> None:
    """This process leaves: what it was working is left to the next one, and that counts for nothing."""

    def left(tx: Tx) -> list[Run]:
        return [run for run in tx.runs(status=[Status.RUNNING]) if run.owner == ports.owner]

    def step(tx: Tx) -> None:
        for run in left(tx):
            _broken_off(run.put_back(), tx, ports)

    if await ports.ledger.look(left):
        await ports.ledger.do(step)


def descendants(run: Run, tx: Tx) -> list[Run]:
    """Those it asked for that live, those that they asked for, and so on."""
    found = tx.runs(parent_run=run.id, status=(Status.QUEUED, Status.RUNNING, Status.WAITING))
    return [*found, *(below for each in found for below in descendants(each, tx))]


async def resume(run_id: str, ports: Ports, *, left_by: str) -> Run:
    """A run whose owner is dead is taken up by whoever works here, a bounded number of times. `left_by` is the dead one:
    of two processes that both saw it die only the first takes the run."""

    def step(tx: Tx) -> Run:
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final:
            raise Conflict(f"run {run_id} has ended ({run.status}): send its session something new instead")
        if run.owner != left_by and run.owner:
            raise Conflict(f"run {run_id} is being worked by another process")
        if run.status is Status.QUEUED:
            tx.set_run(run := replace(run, owner=ports.worker()))
            return run
        return _broken_off(replace(run.requeued(), owner=ports.worker()), tx, ports)

    run = await ports.ledger.do(step)
    if run.attempts > MAX_RESUMES:
        error = f"it was started {run.attempts} times and never came to an end"
        return await end(run, Status.LOST, ports, reason=Reason.RECOVERY_LIMIT, error=error)
    if run.owner == ports.owner:
        ports.engine.submit(run.id, ahead=run.started_at is not None)
    return run


async def resume_all(runs: Sequence[Run], ports: Ports) -> list[Run]:
    """Those of these interrupted runs that are still to be had: another process may be faster with one of them. What
    lay longer than anybody remembers why is not begun again unasked: it is lost, and whoever asked for it is told."""
    taken: list[Run] = []
    for run in runs:
        if _stale(run, ports):
            taken.append(await end(run, Status.LOST, ports, reason=Reason.STALE, error=STALE))
            continue
        with suppress(Refused):
            taken.append(await resume(run.id, ports, left_by=run.owner))
    return taken


def _stale(run: Run, ports: Ports) -> bool:
    begun = run.started_at or run.created_at
    return (ports.chance.now() - begun).total_seconds() > ports.limits.resume_window_seconds
