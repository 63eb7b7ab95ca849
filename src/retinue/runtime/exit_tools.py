"""Exit tools: an agent that has them ends its run only by calling one."""

from collections.abc import Sequence

from msgspec.structs import replace

from retinue.domain import exit_tools
from retinue.domain.agent import Agent
from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import Refused, UsageError
from retinue.interfaces import Conversation, RuntimeContext, Transaction
from retinue.runtime.model_turn import STOP_CANCELLED
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_clock import suspended_for_children
from retinue.runtime.run_creation import create_wake_run
from retinue.runtime.run_end import RunsToSubmit, mark_finished, undelivered_announcements
from retinue.runtime.run_outcome import RunOutcome, Suspension, suspended_outcome
from retinue.runtime.run_plan import RunPlan
from retinue.runtime.suspension import save_suspended, suspend_run, with_counters
from retinue.runtime.tool_calls import ToolCallRunner
from retinue.runtime.tool_executor import check_tool_allowed

WAIT_FOR_PERSON = RunOutcome(status=Status.WAITING, waiting_for=WaitReason.PERSON)
WAIT_FOR_CHILDREN = RunOutcome(status=Status.WAITING, waiting_for=WaitReason.CHILD)
SKIPPED_AFTER_EXIT = "This call did not run: the earlier call to {exit} ended the run."
TURN_LIMIT_REACHED = "the agent's turn limit was reached"
TOO_MANY_CHANGE_REQUESTS = (
    "Changes were requested {n} times in this conversation. A person must decide how to continue."
)
QUESTION_LEFT_OPEN = "The run ends here with your question. The answer comes as the next message."


def validate_exit_tools(agent: Agent, context: RuntimeContext) -> None:
    """Raise UsageError if a definition names an exit tool that does not exist."""
    for name in agent.exits or ():
        if name not in context.tools:
            known_names = ", ".join(sorted((*exit_tools.EXIT_TOOLS, exit_tools.ASK_USER)))
            raise UsageError(
                f"{agent.name}: unknown exit tool {name!r}. Use one of {known_names}, or one of your own tools."
            )


def with_exit_tools(plan: RunPlan, context: RuntimeContext) -> RunPlan:
    """Return the plan with its exit tools named in the system prompt.

    Raises:
        Refused: none of the exit tools is allowed, so the run could never end.
    """
    validate_exit_tools(plan.agent, context)
    exit_names = plan.agent.exits or ()
    denied = {
        name: tool_verdict.rule
        for name in exit_names
        if not (tool_verdict := check_tool_allowed(context.tools[name], plan.scope)).ok
    }
    if len(denied) == len(exit_names):
        reason = ", ".join(f"{name}: {rule}" for name, rule in denied.items())
        raise Refused(
            f"The run was not started: none of the exit tools of {plan.agent.name} is allowed ({reason})."
        )
    allowed = [name for name in exit_names if name not in denied]
    return replace(plan, system=f"{plan.system}\n\n{exit_tools.exit_tools_section(allowed)}".strip())


class ExitToolFlow:
    """Exit rules of one run: when to nudge, suspend or finish it."""

    def __init__(self, attempt: RunAttempt, plan: RunPlan, earlier_entries: Sequence[Entry]) -> None:
        self._attempt = attempt
        self._plan = plan
        self._exit_names = plan.agent.exits or ()
        self._earlier_entries = earlier_entries
        """The run's entries that precede those in memory."""

    async def resume(self, conversation: Conversation, *, is_interrupted: bool) -> RunOutcome | None:
        """Resume a run: return its outcome if it had already exited or still waits for a person.

        It stops waiting once the person interrupted it, or typed a reply into the file.
        """
        entries = self._all_entries(conversation)
        if exit_tools.is_waiting_for_person(self._attempt.run.id, entries) and not is_interrupted:
            if not (typed := conversation.typed_text()).strip():
                return WAIT_FOR_PERSON
            await conversation.save_typed_text(self._attempt.make_user_message(typed))
            self._attempt.emit_saved(conversation.entries[-1])
            return None
        if (exit_call := exit_tools.find_exit_call(self._attempt.run.id, self._exit_names, entries)) is None:
            return None
        await self._attempt.append_entries(
            conversation,
            *self._attempt.make_unanswered_results(conversation, f"{exit_call[0].tool} ended the run"),
        )
        return self._finish_with(*exit_call)

    async def check_finished(
        self, message: Message, calls: Sequence[ToolCall], conversation: Conversation
    ) -> RunOutcome | None:
        """Nudge a run that replied without an exit call; after several nudges, suspend it for a person."""
        run, max_turns = self._attempt.run, self._plan.agent.max_turns
        is_turn_limit_reached = (
            max_turns is not None
            and run.turns >= max_turns
            and exit_tools.count_turns(run.id, self._all_entries(conversation)) >= max_turns
        )
        if is_turn_limit_reached and not any(call.tool in self._exit_names for call in calls):
            unanswered = self._attempt.make_unanswered_results(conversation, TURN_LIMIT_REACHED)
            return await self._suspend_for_person(
                conversation, f"it used all of its {max_turns} turns without calling an exit tool", unanswered
            )
        if message.tool_call_count or message.stop_reason == STOP_CANCELLED:
            return None
        if await self._attempt.context.ledger.read(lambda tx: has_pending_work(run, tx)):
            return WAIT_FOR_CHILDREN
        if (
            nudge_count := exit_tools.count_nudges(run.id, self._all_entries(conversation))
        ) >= exit_tools.MAX_NUDGES:
            return await self._suspend_for_person(
                conversation, f"it was reminded {nudge_count} times and called no exit tool"
            )
        text = exit_tools.NUDGE_TEXT.format(exits=", ".join(self._exit_names))
        await self._attempt.append_entries(
            conversation, self._attempt.make_notice(exit_tools.NUDGE_NOTICE, text)
        )
        return None

    async def run_calls(
        self, conversation: Conversation, runner: ToolCallRunner, *, is_repeat: bool
    ) -> RunOutcome | None:
        """Run the prepared calls: those before an exit call first, those after it not at all.

        If the run is interrupted meanwhile, calls stay open.
        """
        while runner.may_start_calls and (remaining := runner.open_calls):
            index = next(
                (index for index, call in enumerate(remaining) if call.tool in self._exit_names),
                len(remaining),
            )
            if index:
                suspension = await runner.run_calls(
                    remaining[:index], conversation, self._plan, is_repeat=is_repeat
                )
                if suspension:
                    return suspended_outcome(suspension)
            elif outcome := await self._try_exit(remaining[0], remaining[1:], conversation, runner):
                return outcome
        return None

    async def _try_exit(
        self,
        exit_call: ToolCall,
        remaining: Sequence[ToolCall],
        conversation: Conversation,
        runner: ToolCallRunner,
    ) -> RunOutcome | None:
        """Run an exit call; None if it was refused and the run continues."""
        attempt = self._attempt
        unanswered = [
            attempt.make_failed_result(call, SKIPPED_AFTER_EXIT.format(exit=exit_call.tool))
            for call in remaining
        ]
        if (
            exit_call.tool == exit_tools.REQUEST_CHANGES
            and (change_count := exit_tools.count_change_requests(conversation.entries))
            >= exit_tools.MAX_CHANGE_REQUESTS
        ):
            refusal = attempt.make_failed_result(exit_call, TOO_MANY_CHANGE_REQUESTS.format(n=change_count))
            return await self._suspend_for_person(
                conversation, f"changes were requested {change_count} times", [refusal, *unanswered]
            )
        context = replace(attempt.context, ask_user=_leave_question_open)
        tool_result = await runner.run_single_call(
            exit_call, conversation, self._plan, context=context, entries_on_success=unanswered
        )
        if isinstance(tool_result, Suspension):
            return suspended_outcome(tool_result)
        return self._finish_with(exit_call, tool_result) if tool_result.ok else None

    def _finish_with(self, exit_call: ToolCall, tool_result: ToolResult) -> RunOutcome:
        run = self._attempt.run
        text = exit_tools.exit_text(exit_call, tool_result) or run.text
        report = replace(run.report, summary=self._attempt.context.redact(exit_tools.exit_summary(exit_call)))
        self._attempt.run = replace(run, exit_tool=exit_call.tool, text=text, report=report)
        return RunOutcome(status=Status.DONE)

    async def _suspend_for_person(
        self, conversation: Conversation, reason: str, preceding: Sequence[Entry] = ()
    ) -> RunOutcome:
        notice = self._attempt.make_notice(
            exit_tools.WAITING_NOTICE, exit_tools.WAITING_TEXT.format(reason=reason)
        )
        await self._attempt.append_entries(conversation, *preceding, notice)
        return WAIT_FOR_PERSON

    def _all_entries(self, conversation: Conversation) -> Sequence[Entry]:
        return (
            [*self._earlier_entries, *conversation.entries] if self._earlier_entries else conversation.entries
        )


async def _leave_question_open(_question: str, _options: Sequence[str]) -> str:
    return QUESTION_LEFT_OPEN


def has_pending_work(run: Run, tx: Transaction) -> bool:
    """Return True if the run has live children or undelivered announcements."""
    return tx.has_live_children(run.id) or bool(undelivered_announcements(run, tx, limit=1))


async def suspend_between_turns(run: Run, waiting_for: WaitReason, context: RuntimeContext) -> bool:
    """Suspend a run that has no open call; False if it must continue.

    It must continue if an announcement has arrived, or if the children it would wait for have ended.
    """

    def suspend(current: Run, tx: Transaction) -> bool:
        if undelivered_announcements(current, tx, limit=1):
            return False
        waits_for_children = waiting_for is WaitReason.CHILD
        if waits_for_children and not tx.has_live_children(run.id):
            return False
        at = context.clock.now()
        suspended = (
            suspended_for_children(current, tx, at, between_turns=True)
            if waits_for_children
            else current.suspend(waiting_for, at=at, between_turns=True)
        )
        save_suspended(suspended, tx, context, at)
        return True

    return await suspend_run(run, context, suspend)


async def finish_by_exit_tool(run: Run, context: RuntimeContext) -> Run:
    """End a run by its exit tool at once, without waiting for its children.

    Their results, and announcements the run has not read, wake its session.
    """
    to_submit = RunsToSubmit()

    def step(tx: Transaction) -> Run:
        to_submit.runs.clear()
        current = tx.get_run(run.id)
        if current is None or current.status.is_final:
            return current or run
        updated = replace(
            with_counters(current, run),
            exit_tool=run.exit_tool,
            text=context.redact(run.text),
            report=run.report,
        )
        ended = mark_finished(updated, Status.DONE, tx, context, to_submit)
        undelivered = undelivered_announcements(ended, tx, limit=1)
        live = tx.find_runs(session=ended.session_id, status=LIVE_STATUSES)
        if undelivered and all(each.request.is_callback for each in live):
            to_submit.runs.append(create_wake_run(ended, undelivered[0].id, tx, context))
        return ended

    return await context.ledger.write(step, lambda _: to_submit.submit(context))
