"""Run the tool calls of one reply in order, group by group; every result is on disk before the next group."""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from retinue.domain.call_groups import group_calls, sequences_by_recipient
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.interfaces import Conversation, RuntimeContext, Transaction
from retinue.runtime import side_effects, tool_executor
from retinue.runtime.approvals import void_approvals
from retinue.runtime.loop_detection import LoopDetector
from retinue.runtime.recovery import calls_of_last_reply
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_outcome import Suspension
from retinue.runtime.run_plan import RunPlan
from retinue.runtime.timeouts import TurnTimer

NOT_RUN_AFTER_UNKNOWN = (
    "This call did not run, because the outcome of an earlier call of the same reply ({tool}) is unknown. "
    "Check that first, then repeat this call if it is still needed."
)


class ToolCallRunner:
    """Runs a run's tool calls, and stops a model that makes no progress."""

    def __init__(self, attempt: RunAttempt, loop_detector: LoopDetector, turn_timer: TurnTimer) -> None:
        self._attempt = attempt
        self._loop_detector = loop_detector
        self._turn_timer = turn_timer
        self._was_interrupted = False
        self._open_calls: dict[str, ToolCall] = {}
        """The calls of the current reply that have no result, by id."""
        self._group_numbers: dict[str, int] = {}
        """The group of each call of the current reply, by the call's id."""
        self._repeated_group = -1
        """Number of the group that an earlier attempt may have started."""
        self._early_approvals: set[str] = set()
        """The calls whose approval was requested before their group ran."""

    @property
    def open_calls(self) -> list[ToolCall]:
        """The calls of the current reply that have no result, in order."""
        return [*self._open_calls.values()]

    @property
    def may_start_calls(self) -> bool:
        """Open calls remain, and no interrupt arrived while earlier ones ran."""
        return bool(self._open_calls) and self._turn_timer.interrupted == self._was_interrupted

    async def prepare_calls(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan, *, is_repeat: bool = False
    ) -> None:
        """Put the calls of one reply in order, and request the approvals that they need, all at once.

        A call that will not run gets its result here: one beyond the limit, or one after a call whose outcome
        is unknown.

        Args:
            calls: The calls without a result.
            conversation: The run's conversation.
            plan: The run's plan.
            is_repeat: An earlier attempt began this reply; it is divided into the same groups again.
        """
        run, context = self._attempt.run, self._attempt.context
        self._was_interrupted = self._turn_timer.interrupted
        self._open_calls = {call.id: call for call in calls}
        self._early_approvals.clear()
        if len(calls) == 1 and not is_repeat:
            self._group_numbers, self._repeated_group = {calls[0].id: 0}, -1
            return
        reply = calls_of_last_reply(conversation.entries, run) if is_repeat else calls
        groups = group_calls(reply, context.tools)
        self._group_numbers = {call.id: number for number, group in enumerate(groups) for call in group}
        self._repeated_group = self._group_numbers[calls[0].id] if is_repeat else -1
        max_calls = context.limits.max_calls_per_turn
        excess_calls = [call for call in reply[max_calls:] if call.id in self._open_calls]
        note = f"This call did not run: the limit is {max_calls} calls per turn."
        await self._answer_unrun_calls(excess_calls, note, conversation)
        if is_repeat:
            answered_calls = [call for call in reply if call.id not in self._open_calls]
            await self._stop_after_unknown_outcome([call.id for call in answered_calls], conversation)
        await self._request_approvals(groups, conversation, plan)
        if is_repeat:
            self._early_approvals = set(self._open_calls)

    async def _request_approvals(
        self, groups: Sequence[Sequence[ToolCall]], conversation: Conversation, plan: RunPlan
    ) -> None:
        """Request the approvals of all open calls; the calls of a single group request their own when they run.

        Calls after an exit call probably do not run.
        """
        context, exit_names = self._attempt.context, plan.agent.exits or ()
        if len(self._open_calls) == 1 or (
            len(groups) == 1 and len(sequences_by_recipient(groups[0], context.tools)) == len(groups[0])
        ):
            return
        caller = plan.caller(self._attempt.run, conversation.session)
        for call in self.open_calls:
            if await tool_executor.request_approval_early(call, caller, context):
                self._early_approvals.add(call.id)
            if call.tool in exit_names:
                return

    async def run_calls(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan, *, is_repeat: bool = False
    ) -> Suspension | None:
        """Run calls of the prepared reply; return a suspension if one of them stays open.

        Calls also stay open if the run was interrupted meanwhile.
        """
        if not calls:
            return None
        attempt = self._attempt
        self._loop_detector.on_tool_calls(calls, is_repeat=is_repeat)
        attempt.emit_event("run.state", phase="tool", calls=len(calls), total=attempt.run.tool_calls)
        for group in self._split_into_groups(calls):
            members = [call for call in group if call.id in self._open_calls]
            if not members or not self.may_start_calls:
                break
            results = await self._run_group(members, conversation, plan)
            if suspension := _combined_suspension(results):
                return suspension
            if not self._open_calls:
                break
            failed_ids = [each.call_id for each in results if isinstance(each, ToolResult) and not each.ok]
            await self._stop_after_unknown_outcome(failed_ids, conversation)
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
        """Run one call of the prepared reply, without other calls in parallel.

        On success `entries_on_success` are written together with the result.
        """
        self._loop_detector.on_tool_calls([tool_call])
        self._attempt.emit_event("run.state", phase="tool", calls=1, total=self._attempt.run.tool_calls)
        result = await self._run_call(
            tool_call, conversation, plan, context=context, entries_on_success=entries_on_success
        )
        if not isinstance(result, Suspension):
            if not result.ok:
                await self._stop_after_unknown_outcome([tool_call.id], conversation)
            self._loop_detector.on_reply_done()
        return result

    async def abandon_open_calls(self, reason: str, conversation: Conversation) -> None:
        """Answer all open calls of the conversation without running them."""
        if results := self._attempt.make_unanswered_results(conversation, reason):
            ids = [each.call_id for each in results]
            await void_approvals(self._attempt.run.id, ids, self._attempt.context)
            await self._attempt.append_entries(conversation, *results)

    async def _answer_unrun_calls(
        self, calls: Sequence[ToolCall], note: str, conversation: Conversation
    ) -> None:
        if not calls:
            return
        attempt = self._attempt
        await void_approvals(attempt.run.id, [call.id for call in calls], attempt.context)
        await attempt.append_entries(
            conversation, *(attempt.make_failed_result(call, note) for call in calls)
        )
        for call in calls:
            del self._open_calls[call.id]

    async def _stop_after_unknown_outcome(
        self, answered_ids: Sequence[str], conversation: Conversation
    ) -> None:
        """Answer the calls of later groups without running them if an answered call has an unknown outcome."""
        if not self._open_calls or not answered_ids:
            return
        unknown = await self._attempt.context.ledger.read(lambda tx: _first_unknown_outcome(answered_ids, tx))
        if unknown is not None:
            number = self._group_numbers[unknown.call]
            later = [call for call in self.open_calls if self._group_numbers[call.id] > number]
            note = NOT_RUN_AFTER_UNKNOWN.format(tool=unknown.tool)
            await self._answer_unrun_calls(later, note, conversation)

    def _split_into_groups(self, calls: Sequence[ToolCall]) -> Sequence[Sequence[ToolCall]]:
        if len(calls) == 1:
            return [calls]
        return [[*group] for _, group in groupby(calls, key=lambda call: self._group_numbers[call.id])]

    async def _run_group(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan
    ) -> list[ToolResult | Suspension]:
        if len(calls) == 1:
            return [await self._run_call(calls[0], conversation, plan)]
        sequences = sequences_by_recipient(calls, self._attempt.context.tools)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_sequence(sequence, conversation, plan))
                    for sequence in sequences
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [result for task in tasks for result in task.result()]

    async def _run_sequence(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan
    ) -> list[ToolResult | Suspension]:
        """Run messages to one recipient in order; those after a message that waits for approval wait too."""
        results: list[ToolResult | Suspension] = []
        for call in calls:
            results.append(result := await self._run_call(call, conversation, plan))
            if isinstance(result, Suspension) and result.calls_to_approve:
                break
        return results

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
        is_repeat = self._group_numbers[tool_call.id] == self._repeated_group
        if not is_repeat:
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
        if tool_call.id in self._early_approvals:
            # The call may have ended in another way than when its approval was requested.
            await void_approvals(attempt.run.id, [tool_call.id], context)
        await attempt.append_entries(
            conversation, tool_result, *(entries_on_success if tool_result.ok else ())
        )
        self._open_calls.pop(tool_call.id, None)
        if attempt.run.recovery.crash_streak and (tool_result.ok or not is_repeat):
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


def _combined_suspension(results: Sequence[ToolResult | Suspension]) -> Suspension | None:
    """Combine the suspensions of a group; a question to a person has priority, because its text is shown."""
    suspensions = [each for each in results if isinstance(each, Suspension)]
    if not suspensions:
        return None
    return Suspension(
        question=next((each.question for each in suspensions if each.question), ""),
        calls_to_approve=tuple(call for each in suspensions for call in each.calls_to_approve),
    )


def _first_unknown_outcome(call_ids: Sequence[str], tx: Transaction) -> SideEffect | None:
    recorded = (tx.get_side_effect(each) for each in call_ids)
    return next((each for each in recorded if each and each.progress is SideEffectState.UNKNOWN), None)


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
