"""What must not happen twice: written down before it begins and when it has ended, and known again after a crash."""

from collections.abc import Collection, Sequence

from retinue.domain.change import replace
from retinue.domain.run import Run
from retinue.domain.side_effect import Deed, Progress, digest
from retinue.domain.tool import Effect
from retinue.domain.transcript import Called, Entry, Returned
from retinue.interfaces import Ports, Tool, Tx
from retinue.runtime.recovery import INTERRUPTED, UNKNOWN
from retinue.runtime.suspension import counted


async def known(called: Called, tool: Tool, ports: Ports) -> tuple[bool, str] | None:
    """The answer to a call that was begun before: what it ended with, or that nobody knows. None: it may be made, for
    the first time or because the tool itself finds out whether it has happened."""
    if tool.effect is not Effect.ONCE:
        return None
    deed = await ports.ledger.look(lambda tx: tx.deed(called.id))
    if deed is None:
        return None
    if deed.progress is Progress.ENDED:
        return deed.ok, deed.text
    if tool.decides:
        return None
    if deed.progress is Progress.STARTED:
        await ports.ledger.do(lambda tx: tx.set_deed(deed.lost()))
    return False, INTERRUPTED


async def begun(called: Called, run: Run, tool: Tool, ports: Ports) -> str:
    """The deed is on disk before it is done, and with it what the run has counted so far: it may take long. Says what the
    call wrote down when it was made before."""
    if tool.effect is not Effect.ONCE:
        return ""

    def step(tx: Tx) -> str:
        if (before := tx.deed(called.id)) is not None:
            return before.note
        tx.set_deed(
            Deed(
                call=called.id,
                run=run.id,
                tool=called.tool,
                digest=digest(called.tool, called.args),
                started_at=ports.chance.now(),
            )
        )
        row = tx.run(run.id)
        if row is not None and row.tool_calls < run.tool_calls:
            tx.set_run(counted(row, run))
        return ""

    return await ports.ledger.do(step)


async def noted(called: Called, note: str, ports: Ports) -> None:
    """What the tool will have done, before it does it."""

    def step(tx: Tx) -> None:
        if (deed := tx.deed(called.id)) is not None:
            tx.set_deed(replace(deed, note=note))

    await ports.ledger.do(step)


async def honest(results: Sequence[Returned], ports: Ports) -> list[Returned]:
    """Answers to calls that a run leaves open, where some of them may have been begun: one that ended is told as it
    ended, and of one that did not nobody says that it has not happened."""
    found = await ports.ledger.look(lambda tx: {each.of: tx.deed(each.of) for each in results})
    return [_as_known(each, found[each.of]) for each in results]


def _as_known(result: Returned, deed: Deed | None) -> Returned:
    if deed is None:
        return result
    if deed.progress is Progress.ENDED:
        return replace(result, text=deed.text, ok=deed.ok)
    return replace(result, text=f"{result.text} {UNKNOWN}")


async def made(run: str, exits: Collection[str], entries: Sequence[Entry], ports: Ports) -> int:
    """How many calls of a run did something, as its entries tell: see `acted`."""
    calls = {
        entry.id
        for entry in entries
        if isinstance(entry, Called) and entry.run == run and entry.tool not in exits
    }
    results = [entry for entry in entries if isinstance(entry, Returned) and entry.of in calls]
    return await acted(results, ports)


async def acted(results: Sequence[Returned], ports: Ports) -> int:
    """How many of these answers are of calls that did something: those that went well, and those that were begun and
    may not be begun again, however they ended."""
    failed = [each.of for each in results if not each.ok]
    count = len(results) - len(failed)
    if not failed:
        return count
    return count + await ports.ledger.look(lambda tx: sum(tx.deed(each) is not None for each in failed))


async def ended(called: Called, returned: Returned, ports: Ports) -> None:
    """It has ended, and how: if the process dies before the file has the result, this is what is left of it."""

    def step(tx: Tx) -> None:
        deed = tx.deed(called.id)
        if deed is not None and deed.progress is Progress.STARTED:
            tx.set_deed(deed.ended(ok=returned.ok, text=returned.text, at=ports.chance.now()))

    await ports.ledger.do(step)
