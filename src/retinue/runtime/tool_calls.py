"""Run the tool calls of one reply concurrently; every result is on disk before the next request."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.interfaces import Conversation, RuntimeContext
from retinue.runtime import side_effects, tool_executor
from retinue.runtime.loop_detection import LoopDetector
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_outcome import Suspension
from retinue.runtime.run_plan import RunPlan


class ToolCallRunner:
    """Runs a run's tool calls, and stops a model that makes no progress."""

    def __init__(self, attempt: RunAttempt, loop_detector: LoopDetector) -> None:
        self._attempt = attempt
        self._loop_detector = loop_detector
        self._is_repeat = False

    async def run_calls(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan, *, is_repeat: bool = False
    ) -> Suspension | None:
        """Run the calls of one reply; return a suspension if any of them stays open.

        `is_repeat`: the calls were started before, and `tool.started` is not emitted again.
        """
        self._is_repeat = is_repeat
        attempt = self._attempt
        self._loop_detector.on_tool_calls(calls, is_repeat=is_repeat)
        attempt.emit_event("run.state", phase="tool", calls=len(calls), total=attempt.run.tool_calls)
        max_calls = attempt.context.limits.max_calls_per_turn
        if len(calls) == 1:
            results = [await self._run_call(calls[0], conversation, plan)]
        else:
            results = await self._run_concurrently(calls[:max_calls], conversation, plan)
        if excess_calls := calls[max_calls:]:
            note = f"This call did not run: the limit is {max_calls} calls per turn."
            await attempt.append_entries(
                conversation, *(attempt.make_failed_result(tool_call, note) for tool_call in excess_calls)
            )
        suspensions = [each for each in results if isinstance(each, Suspension)]
        if suspensions:
            # A question to a person has priority: its text is shown.
            return next((each for each in suspensions if each.question), suspensions[0])
        self._loop_detector.on_reply_done()
        return None

    async def run_single_call(
        self,
        tool_call: ToolCall,
        conversation: Conversation,
        plan: RunPlan,
        *,
        context: RuntimeContext,
        entries_on_success: Sequence[Entry],
    ) -> ToolResult | Suspension:
        """Run one call, without other calls in parallel.

        On success `entries_on_success` are written together with the result.
        """
        self._loop_detector.on_tool_calls([tool_call])
        self._attempt.emit_event("run.state", phase="tool", calls=1, total=self._attempt.run.tool_calls)
        result = await self._run_call(
            tool_call, conversation, plan, context=context, entries_on_success=entries_on_success
        )
        if not isinstance(result, Suspension):
            self._loop_detector.on_reply_done()
        return result

    async def _run_concurrently(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan
    ) -> list[ToolResult | Suspension]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_call(tool_call, conversation, plan)) for tool_call in calls
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [task.result() for task in tasks]

    async def _run_call(
        self,
        tool_call: ToolCall,
        conversation: Conversation,
        plan: RunPlan,
        *,
        context: RuntimeContext | None = None,
        entries_on_success: Sequence[Entry] = (),
    ) -> ToolResult | Suspension:
        """Run one call and save its result, unless the call stays open."""
        attempt = self._attempt
        context = context or attempt.context
        if not self._is_repeat:
            attempt.emit_event("tool.started", tool=tool_call.tool, call=tool_call.id, args=tool_call.args)
        if refusal := self._loop_detector.check_call(tool_call):
            tool_result = attempt.make_failed_result(tool_call, refusal)
        else:
            caller = plan.caller(attempt.run, conversation.session)
            executed = await tool_executor.execute_tool_call(tool_call, caller, context)
            if isinstance(executed, Suspension):
                return executed
            tool_result = executed
        if tool_call.tool not in (plan.agent.exits or ()):
            effective = (
                1 if tool_result.ok else await side_effects.count_effective_results([tool_result], context)
            )
            attempt.run = replace(attempt.run, effective_calls=attempt.run.effective_calls + effective)
        self._loop_detector.record_result(tool_call, tool_result)
        if not tool_result.ok and not _is_runnable(tool_call, context):
            self._loop_detector.on_invalid_call()
        await attempt.append_entries(
            conversation, tool_result, *(entries_on_success if tool_result.ok else ())
        )
        if attempt.run.recovery.crash_streak and (tool_result.ok or not self._is_repeat):
            await attempt.record_progress()
        await conversation.log_tool_call(tool_call, tool_result)
        attempt.emit_event(
            "tool.ended",
            tool=tool_call.tool,
            call=tool_call.id,
            ok=tool_result.ok,
            duration_ms=tool_result.duration_ms,
        )
        return tool_result


def _is_runnable(tool_call: ToolCall, context: RuntimeContext) -> bool:
    """Return True if the tool exists and its arguments can be parsed."""
    tool = context.tools.get(tool_call.tool)
    if tool is None or tool_call.invalid_reason:
        return False
    try:
        tool.parse_arguments(tool_call.args.encode("utf-8", "replace") or b"{}")
    except ValueError:
        return False
    return True
