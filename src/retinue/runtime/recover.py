"""What a start finds: calls without a result, and counts that only the file still knows."""

from collections.abc import Sequence
from dataclasses import replace

from retinue.domain.run import Reason, Run, Status, Usage
from retinue.domain.tool import Effect
from retinue.domain.transcript import Called, Entry, Returned, Said, dangling
from retinue.errors import NotFound, Refused
from retinue.ports import Ports, Tx
from retinue.runtime.announce import end

MAX_ATTEMPTS = 3
"""How often a run is started before it counts as lost."""

INTERRUPTED = (
    "Interrupted: the process ended before this call was answered. Outcome unknown: it may or may not have "
    "happened, and it was not repeated. Check before you do it again."
)
NOT_ANSWERED = "Interrupted: this call was not answered. Nothing is known of its outcome."


def unanswered(entries: Sequence[Entry], run: Run, ports: Ports) -> tuple[list[Called], list[Returned]]:
    """Calls to make again (this run's, of tools that bear it), and results for those never made again."""
    again: list[Called] = []
    told: list[Returned] = []
    for called in dangling(entries):
        tool = ports.tools.get(called.tool)
        ours = called.run == run.id
        if ours and (tool is None or tool.effect is not Effect.ONCE):
            again.append(called)
        else:
            told.append(
                Returned(of=called.id, text=INTERRUPTED if ours else NOT_ANSWERED, ok=False, run=run.id)
            )
    return again, told


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


async def resume(run_id: str, ports: Ports) -> Run:
    """A run whose owner is dead is taken up by this process, a bounded number of times."""

    def step(tx: Tx) -> Run:
        run = tx.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id}")
        if run.status.final:
            raise Refused(f"run {run_id} has ended ({run.status}): send its session something new instead")
        if run.status is not Status.QUEUED:
            run = run.requeued()
        run = replace(run, owner=ports.owner)
        tx.set_run(run)
        return run

    run = await ports.ledger.do(step)
    if run.attempts >= MAX_ATTEMPTS:
        error = f"it was started {run.attempts} times and never came to an end"
        return await end(run, Status.LOST, ports, reason=Reason.RECOVERY_LIMIT, error=error)
    ports.engine.submit(run.id)
    return run
