"""Record side effects that must not happen twice, before they start and when they end."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from retinue.domain.run import Run
from retinue.domain.side_effect import SideEffect, SideEffectState, tool_call_hash
from retinue.domain.tool import Effect
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.interfaces import RuntimeContext, Tool, Transaction
from retinue.runtime.recovery import INTERRUPTED_RESULT, UNKNOWN_OUTCOME
from retinue.runtime.suspension import with_counters


async def find_recorded_result(
    tool_call: ToolCall, tool: Tool, context: RuntimeContext
) -> tuple[bool, str] | None:
    """Return the recorded result of a call that was started before, or the result for an unknown outcome.

    Returns None if the call may be executed: it is the first time, or the tool itself detects a repeated call.
    """
    if tool.effect is not Effect.ONCE:
        return None
    side_effect = await context.ledger.read(lambda tx: tx.get_side_effect(tool_call.id))
    if side_effect is None:
        return None
    if side_effect.progress is SideEffectState.ENDED:
        return side_effect.ok, side_effect.text
    if tool.can_verify_completion:
        return None
    if side_effect.progress is SideEffectState.STARTED:
        await context.ledger.write(lambda tx: tx.save_side_effect(side_effect.mark_unknown()))
    return False, INTERRUPTED_RESULT


async def record_start(tool_call: ToolCall, run: Run, tool: Tool, context: RuntimeContext) -> str:
    """Record a side effect before it starts, and return the note of an earlier attempt.

    The run's counters are saved with it, because the call may take long.
    """
    if tool.effect is not Effect.ONCE:
        return ""

    def step(tx: Transaction) -> str:
        if (existing := tx.get_side_effect(tool_call.id)) is not None:
            return existing.note
        tx.save_side_effect(
            SideEffect(
                call=tool_call.id,
                run=run.id,
                tool=tool_call.tool,
                digest=tool_call_hash(tool_call.tool, tool_call.args),
                started_at=context.clock.now(),
            )
        )
        row = tx.get_run(run.id)
        if row is not None and row.tool_calls < run.tool_calls:
            tx.update_run(with_counters(row, run))
        return ""

    return await context.ledger.write(step)


async def record_note(tool_call: ToolCall, note: str, context: RuntimeContext) -> None:
    """Record what the tool is about to do, before it does it."""

    def step(tx: Transaction) -> None:
        if (side_effect := tx.get_side_effect(tool_call.id)) is not None:
            tx.save_side_effect(replace(side_effect, note=note))

    await context.ledger.write(step)


async def mark_unknown_outcomes(results: Sequence[ToolResult], context: RuntimeContext) -> list[ToolResult]:
    """Correct the results of unanswered calls with what the ledger knows about them.

    A call that ended gets its recorded result. A call that was started and did not end gets the note that its
    outcome is unknown.
    """
    recorded = await context.ledger.read(
        lambda tx: {each.call_id: tx.get_side_effect(each.call_id) for each in results}
    )
    return [_with_known_outcome(each, recorded[each.call_id]) for each in results]


def _with_known_outcome(result: ToolResult, side_effect: SideEffect | None) -> ToolResult:
    if side_effect is None:
        return result
    if side_effect.progress is SideEffectState.ENDED:
        return replace(result, text=side_effect.text, ok=side_effect.ok)
    return replace(result, text=f"{result.text} {UNKNOWN_OUTCOME}")


async def count_effective_calls(
    run: str, exit_names: Collection[str], entries: Sequence[Entry], context: RuntimeContext
) -> int:
    """Count a run's calls that had an effect, from its entries; exit tools do not count."""
    call_ids = {
        entry.id
        for entry in entries
        if isinstance(entry, ToolCall) and entry.run == run and entry.tool not in exit_names
    }
    results = [entry for entry in entries if isinstance(entry, ToolResult) and entry.call_id in call_ids]
    return await count_effective_results(results, context)


async def count_effective_results(results: Sequence[ToolResult], context: RuntimeContext) -> int:
    """Count results of calls that had an effect: successful calls, and failed calls that started a side effect."""
    failed_call_ids = [each.call_id for each in results if not each.ok]
    count = len(results) - len(failed_call_ids)
    if not failed_call_ids:
        return count
    return count + await context.ledger.read(
        lambda tx: sum(tx.get_side_effect(each) is not None for each in failed_call_ids)
    )


async def record_end(tool_call: ToolCall, tool_result: ToolResult, context: RuntimeContext) -> None:
    """Record the result of a side effect, in case the process dies before the transcript has it."""

    def step(tx: Transaction) -> None:
        side_effect = tx.get_side_effect(tool_call.id)
        if side_effect is not None and side_effect.progress is SideEffectState.STARTED:
            tx.save_side_effect(
                side_effect.finish(ok=tool_result.ok, text=tool_result.text, at=context.clock.now())
            )

    await context.ledger.write(step)
