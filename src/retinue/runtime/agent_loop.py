"""The agent loop: request a reply, save it, run its tool calls, save the results, repeat."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.continuation import (
    CONTINUE_NOTICE,
    CONTINUE_PROMPT,
    CUT_STOP_REASON,
    cut_text_before,
    reply_texts,
)
from retinue.domain.delivery import work_summary
from retinue.domain.model_turn import StopReason
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.session import CreatedRun, Session
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult, unanswered_calls
from retinue.errors import Cancelled, NotFound, RetinueError
from retinue.interfaces import Conversation, RuntimeContext
from retinue.runtime import cli_agents, side_effects, structured_output
from retinue.runtime.approvals import PERSON, void_approvals
from retinue.runtime.child_report import missing_summary, with_result_files
from retinue.runtime.disk_full import DiskFullRetry
from retinue.runtime.exit_tools import (
    ExitToolFlow,
    finish_by_exit_tool,
    suspend_between_turns,
    with_exit_tools,
)
from retinue.runtime.interrupt_registry import InterruptRegistry
from retinue.runtime.loop_detection import ANNOUNCEMENT, LoopDetector
from retinue.runtime.model_outage import suspend_for_model
from retinue.runtime.model_turn import STOP_CANCELLED, ModelTurn
from retinue.runtime.open_conversation import OpenConversation
from retinue.runtime.recovery import (
    ends_with_final_reply,
    final_reply,
    find_delegated_calls,
    has_completed_call,
    recount_run,
    split_unanswered_calls,
)
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.run_control import cancel_abandoned_children, close_transcript
from retinue.runtime.run_creation import WAKE_SOURCE
from retinue.runtime.run_end import (
    finish_run,
    mark_delivered,
    release_waiting_calls,
    runs_without_open_call,
    undelivered_announcements,
)
from retinue.runtime.run_outcome import RunOutcome, Suspension, outcome_for_error, suspended_outcome
from retinue.runtime.run_plan import RunPlan, build_run_plan, keep_prefix
from retinue.runtime.suspension import save_counters, suspend_in_tool_call
from retinue.runtime.timeouts import Deadline, TurnInterrupted, TurnTimer
from retinue.runtime.tool_calls import ToolCallRunner
from retinue.runtime.turn_limit import is_turn_limit_reached, suspend_at_turn_limit

RESUME_PROMPT = (
    "A task given above was interrupted, and other messages followed it. Continue with the task now: {task}"
)
TORN_TAIL_NOTE = (
    "a crash cut off the end of the file; the incomplete part was never acknowledged and is saved as {where}"
)
STOPPED_REASON = "the run was stopped before this call finished"
INTERRUPTED_NOTE = "interrupted: the agent is writing a summary"
INTERRUPTED_REASON = "the run was interrupted before this call finished"
AT_TURN_LIMIT = RunOutcome(status=Status.WAITING, waiting_for=WaitReason.PERSON, reason=Reason.TURN_LIMIT)
COUNTER_SAVE_SECONDS = 1.0
RECENT_ENTRIES = 200


async def run_agent_loop(
    run_id: str, context: RuntimeContext, interrupts: InterruptRegistry, *, created: CreatedRun | None = None
) -> bool:
    """Run a claimed run until it ends or must wait for a person or a child.

    Returns True if the run is suspended, which frees its slot. If the process dies here, the run resumes from
    the transcript.
    """
    while (is_suspended := await _run_once(run_id, context, interrupts, created)) is None:
        created = None
    return is_suspended


async def _run_once(
    run_id: str, context: RuntimeContext, interrupts: InterruptRegistry, created: CreatedRun | None
) -> bool | None:
    """Run once; None if something arrived just as the run would have been suspended or ended.

    Raises:
        Cancelled: another process asked the run to stop.
    """
    run = created[0] if created else await context.ledger.read(lambda tx: tx.get_run(run_id))
    if run is None:
        raise NotFound(f"Run {run_id} not found.")
    loop = AgentLoop(run, context, created[1] if created else None)
    try:
        with interrupts.register(run_id, loop.interrupt):
            outcome = await loop.run_to_end()
        if outcome.suspension is not None:
            return await _suspend_in_tool_call(loop, outcome.suspension)
    except asyncio.CancelledError:
        await save_counters(loop.run, context)
        raise
    except RetinueError as error:
        outcome = outcome_for_error(error)
    if outcome.waiting_for is WaitReason.MODEL:
        return await suspend_for_model(loop.run, outcome, loop.context) or None
    if outcome.reason is Reason.TURN_LIMIT and outcome.waiting_for is not None:
        return await suspend_at_turn_limit(loop.run, loop.max_turns or 0, loop.context) or None
    if outcome.waiting_for is not None:
        return await suspend_between_turns(loop.run, outcome.waiting_for, loop.context) or None
    return await _record_outcome(loop.run, outcome, loop.context)


async def _suspend_in_tool_call(loop: "AgentLoop", suspension: Suspension) -> bool | None:
    """Suspend the run; None if what it would wait for has already arrived.

    Raises:
        Cancelled: another process asked the run to stop.
    """
    try:
        return await suspend_in_tool_call(loop.run, loop.context, suspension) or None
    except Cancelled:
        await close_transcript(loop.run, loop.context)
        raise


async def _record_outcome(run: Run, outcome: RunOutcome, context: RuntimeContext) -> bool | None:
    run = await _with_report(run, context)
    if run.exit_tool and outcome.status is Status.DONE:
        await finish_by_exit_tool(run, context)
        return False
    ended = await finish_run(run, outcome.status, context, reason=outcome.reason, error=outcome.error)
    if ended.status.is_live:
        return True if ended.status is Status.WAITING else None
    await cancel_abandoned_children(ended, context)
    return False


async def _with_report(run: Run, context: RuntimeContext) -> Run:
    """Return the run with the files that a sub-agent hands over; without them if its session is gone."""
    if run.request.requester == PERSON or not run.tool_calls:
        return run
    with suppress(RetinueError):
        return await with_result_files(run, await context.store.find(run.transcript_path), context)
    return run


async def fail_run(run_id: str, error: BaseException, context: RuntimeContext) -> None:
    """End a run whose loop raised an error; the worker calls this."""
    run = await context.ledger.read(lambda tx: tx.get_run(run_id))
    if run is not None:
        outcome = outcome_for_error(error)
        run = await _with_report(run, context)
        await cancel_abandoned_children(
            await finish_run(run, outcome.status, context, reason=outcome.reason, error=outcome.error),
            context,
        )


class AgentLoop:
    """State and steps of one attempt at a run, starting from its transcript."""

    def __init__(self, run: Run, context: RuntimeContext, origin_session: Session | None) -> None:
        self.origin_session = origin_session
        """Session of a run that was just created; None: the run may have been executed before."""
        self.disk_retry = DiskFullRetry(
            run,
            context,
            on_wait_start=lambda: self.deadline.pause(),  # noqa: PLW0108  (assigned below)
            on_wait_end=lambda: self.deadline.resume(),  # noqa: PLW0108  (assigned below)
        )
        self.context = self.disk_retry.context
        self.attempt = RunAttempt(run, self.context)
        self.deadline = Deadline(self.attempt)
        self.turn_timer = TurnTimer()
        self.loop_detector = LoopDetector(context.limits)
        self.max_turns: float | None = context.limits.max_turns
        self.model_turn = ModelTurn(self.attempt, self.turn_timer, self.deadline)
        self.tool_call_runner = ToolCallRunner(self.attempt, self.loop_detector, self.turn_timer)
        self.exit_tool_flow: ExitToolFlow | None = None
        """Exit rules, if the definition names exit tools; without them the run ends with its last message."""
        self.counters_saved_at = context.clock.now()
        self.is_woken = run.request.source == WAKE_SOURCE
        self.may_have_announcements = self.is_woken
        """Announcements may arrive, because a run of this session has requested others."""
        if run.reason is Reason.INTERRUPTED:
            self.interrupt()

    @property
    def run(self) -> Run:
        return self.attempt.run

    def interrupt(self) -> None:
        """Interrupt the run, which then only summarises; repeated requests have no effect."""
        if not self.turn_timer.interrupted:
            self.turn_timer.interrupt_turn()
            self.attempt.emit_event("run.state", phase="wait", note=INTERRUPTED_NOTE)

    async def run_to_end(self) -> RunOutcome:
        async with OpenConversation(self.attempt, self.origin_session) as conversation:
            if conversation.torn_tail_path:
                self.attempt.emit_event(
                    "run.state",
                    phase="wait",
                    note=TORN_TAIL_NOTE.format(where=conversation.torn_tail_path),
                    torn_tail_path=conversation.torn_tail_path,
                )
            is_suspended = False
            try:
                async with self.deadline:
                    outcome = await self._run_turns(conversation)
                    if outcome.suspension is not None:
                        self.deadline.raise_if_passed()
                is_suspended = outcome.suspension is not None
                return outcome
            finally:
                if not is_suspended and not self._process_is_stopping():
                    with self.disk_retry.without_waiting():
                        await self._close_transcript(conversation)

    def _process_is_stopping(self) -> bool:
        """Return True if the process is ending and the run was not cancelled, so that another process will resume it."""
        stopping = isinstance(sys.exception(), asyncio.CancelledError)
        return stopping and not self.context.worker.is_cancelled(self.run.id)

    async def _run_turns(self, conversation: Conversation) -> RunOutcome:
        plan = await self._build_plan(conversation)
        progress = await self._restore_progress(conversation, plan)
        await self._append_task(conversation)
        if progress.was_started:
            # The task was already in the file, and the file may have changed since it was read.
            self.attempt.just_appended = False
            await self._release_orphaned_calls(conversation)
        await self._append_announcements(conversation)
        if self._is_wake_run_without_announcements(conversation):
            return RunOutcome(status=Status.DONE)
        if outcome := await self._resume_unfinished(conversation, plan, progress):
            return outcome
        authorized_plan = await self._authorize_plan(conversation, plan)
        if isinstance(authorized_plan, Suspension):
            return suspended_outcome(authorized_plan)
        plan = authorized_plan
        while True:
            await self._reload_if_edited(conversation)
            await self._append_announcements(conversation)
            if outcome := await self._check_may_continue(conversation, plan):
                return outcome
            try:
                reply = await self.model_turn.request_reply(conversation, plan)
            except TurnInterrupted:
                await self.model_turn.save_partial_reply(conversation)
                continue
            message, calls = await self.model_turn.save_reply(reply, conversation)
            if outcome := await self._check_finished(message, calls, conversation, plan):
                return outcome
            if outcome := await self._execute_tool_calls(calls, conversation, plan):
                return outcome

    async def _check_may_continue(self, conversation: Conversation, plan: RunPlan) -> RunOutcome | None:
        if self.turn_timer.interrupted:
            await self.model_turn.request_summary(conversation, plan)
            return RunOutcome(status=Status.CANCELLED, reason=Reason.INTERRUPTED, error="interrupted")
        return AT_TURN_LIMIT if is_turn_limit_reached(self.run, self.max_turns) else None

    async def _authorize_plan(self, conversation: Conversation, plan: RunPlan) -> RunPlan | Suspension:
        """Restrict the plan of a CLI agent to what it may do, with approval where one is needed."""
        if not cli_agents.is_cli_agent(plan):
            return plan
        await cli_agents.append_interrupted_notice(conversation, self.attempt)
        authorized = await cli_agents.authorize_cli_agent(plan, self.attempt, conversation.session)
        self.attempt.just_appended = False
        return authorized

    async def _reload_if_edited(self, conversation: Conversation) -> None:
        """Read the file again if a person changed it; right after an append there is nothing to check."""
        if not self.attempt.just_appended and await conversation.reload_if_edited():
            self.attempt.emit_event("session.changed", change="file")
        self.attempt.just_appended = False

    async def _restore_progress(self, conversation: Conversation, plan: RunPlan) -> "_Progress":
        """Find out what earlier attempts did, and restore the counters from the transcript."""
        run = self.run
        may_be_resumed = self.origin_session is None
        was_interrupted = may_be_resumed and (
            run.attempts > 1 or (not run.turns and _is_task_appended(run.id, conversation))
        )
        was_started = was_interrupted or run.turns > 0
        earlier_entries = await conversation.read_earlier_entries(run.id) if was_started else ()
        entries = _all_entries(earlier_entries, conversation)
        if was_started:
            run = recount_run(run, entries, self.context.is_long_prompt)
            self.loop_detector.restore(entries, run.id)
            if run.recovery.is_first_crash and has_completed_call(run, entries):
                run = replace(run, recovery=run.recovery.record_progress())
        exit_names = plan.agent.exits or ()
        effective_calls = (
            await side_effects.count_effective_calls(run.id, exit_names, entries, self.context)
            if run.turns
            else 0
        )
        self.attempt.run = replace(
            run,
            effective_calls=effective_calls,
            scope_hash=plan.scope_hash,
            model=plan.model.full_name,
            report=replace(run.report, can_only_think=plan.can_only_think),
        )
        if exit_names:
            self.exit_tool_flow = ExitToolFlow(self.attempt, plan, earlier_entries)
        self.may_have_announcements = self.may_have_announcements or bool(conversation.entries)
        return _Progress(
            was_started=was_started, was_interrupted=was_interrupted, earlier_entries=earlier_entries
        )

    def _is_wake_run_without_announcements(self, conversation: Conversation) -> bool:
        """Return True if another run has already read the announcement that this run was created for."""
        return self.is_woken and not any(entry.run == self.run.id for entry in conversation.entries)

    async def _build_plan(self, conversation: Conversation) -> RunPlan:
        """Build the plan and apply the definition's deadline, time limits of replies and exit tools.

        A top-level run has no idle timeout, because a person watches it.
        """
        plan = await build_run_plan(self.run, conversation.session, self.context, conversation.provider_cache)
        own_limits, limits = plan.agent.limits, self.context.limits
        self.turn_timer.reply_timeout_s = own_limits.get("reply_seconds", limits.reply_seconds)
        if self.run.depth:
            self.turn_timer.idle_timeout_s = own_limits.get("idle_seconds", limits.idle_seconds)
        self.max_turns = own_limits.get("max_turns", limits.max_turns) or None
        await self.deadline.apply_definition_deadline(own_limits.get("deadline_seconds"))
        plan = structured_output.with_output_section(plan, self.context)
        plan = with_exit_tools(plan, self.context) if plan.agent.exits else plan
        return keep_prefix(plan, self.run, conversation.provider_cache)

    async def _resume_unfinished(
        self, conversation: Conversation, plan: RunPlan, progress: "_Progress"
    ) -> RunOutcome | None:
        """Finish what an earlier attempt started.

        That is a last message that ended the run, calls without a result, or a task that is followed by later
        messages.
        """
        is_interrupted = self.turn_timer.interrupted
        if self.is_woken:
            woken_history = _all_entries(progress.earlier_entries, conversation)
            self.loop_detector.restore(woken_history, self.run.id, is_woken=True)
        if self.exit_tool_flow is not None and (
            outcome := await self.exit_tool_flow.resume(conversation, is_interrupted=is_interrupted)
        ):
            return outcome
        message = (
            final_reply(self.run, _all_entries(progress.earlier_entries, conversation))
            if self.run.turns and not is_interrupted
            else None
        )
        if message and (
            outcome := await self._check_finished(
                message, _open_calls(conversation, self.run), conversation, plan
            )
        ):
            return outcome
        to_repeat, results = split_unanswered_calls(conversation.entries, self.run)
        if is_interrupted:
            to_repeat, abandoned = await self._split_delegated_calls(to_repeat)
            await void_approvals(self.run.id, [each.call_id for each in abandoned], self.context)
            results += abandoned
        if results:
            await self.attempt.append_entries(conversation, *results)
        if outcome := await self._execute_tool_calls(to_repeat, conversation, plan, is_repeat=True):
            return outcome
        if progress.was_interrupted and ends_with_final_reply(conversation.entries):
            await self.attempt.append_entries(
                conversation,
                self.attempt.make_notice("resumed", RESUME_PROMPT.format(task=self.run.request.task)),
            )
        return None

    async def _split_delegated_calls(
        self, calls: Sequence[ToolCall]
    ) -> tuple[list[ToolCall], list[ToolResult]]:
        """Split the open calls of an interrupted run into those that started a child, and failure results for the others.

        The calls that started a child are repeated to get its result.
        """
        delegated = await find_delegated_calls(calls, self.run, self.context)
        others = [call for call in calls if call.id not in delegated]
        reason = f"No result: {INTERRUPTED_REASON}."
        failures = [self.attempt.make_failed_result(call, reason) for call in others]
        return [call for call in calls if call.id in delegated], failures

    async def _save_counters(self) -> None:
        """Save the counters of a live run for viewers, at most once per interval."""
        now = self.context.clock.now()
        if (now - self.counters_saved_at).total_seconds() >= COUNTER_SAVE_SECONDS:
            self.counters_saved_at = now
            await save_counters(self.run, self.context)

    async def _append_announcements(self, conversation: Conversation) -> None:
        """Append announcements to the transcript, then mark them as delivered.

        Each has its own id, so it is appended only once.
        """
        if not self.may_have_announcements:
            return
        self.may_have_announcements = False
        if deliveries := await self.context.ledger.read(lambda tx: undelivered_announcements(self.run, tx)):
            notices = (self.attempt.make_notice(ANNOUNCEMENT, each.text) for each in deliveries)
            pairs = zip(notices, deliveries, strict=True)
            try:
                await self.attempt.append_entries(
                    conversation, *(replace(notice, id=each.id) for notice, each in pairs)
                )
            finally:
                # Also if the run is cancelled meanwhile: an announcement in the file is delivered.
                if any(entry.id == deliveries[-1].id for entry in reversed(conversation.entries)):
                    await mark_delivered(deliveries, self.context)

    async def _release_orphaned_calls(self, conversation: Conversation) -> None:
        """Announce the results of children whose tool call is not open any more.

        A person may have removed the call from the file, or another process may have answered it while no
        process executed the run.
        """
        run = self.run
        open_call_ids = [
            tool_call.id for tool_call in unanswered_calls(conversation.entries) if tool_call.run == run.id
        ]
        call_ids = {
            tool_call.id
            for tool_call in conversation.entries
            if isinstance(tool_call, ToolCall) and tool_call.run == run.id
        }
        answered_elsewhere = [
            each.call_id
            for each in conversation.entries
            if isinstance(each, ToolResult) and each.call_id in call_ids and each.run != run.id
        ]
        if answered_elsewhere or await self.context.ledger.read(
            lambda tx: runs_without_open_call(run, tx, open_call_ids=open_call_ids)
        ):
            await self.context.ledger.write(
                lambda tx: release_waiting_calls(
                    run, tx, self.context, open_call_ids=open_call_ids, answered_elsewhere=answered_elsewhere
                )
            )

    async def _append_task(self, conversation: Conversation) -> None:
        """Append the task to the transcript, from which requests are built."""
        run = self.run
        if run.request.source == WAKE_SOURCE:
            return
        task = Message(
            id=run.id,
            role="user",
            text=run.request.task or "",
            at=self.attempt.timestamp(),
            origin="" if run.request.requester == "person" else run.request.requester,
            run=run.id,
        )
        if run.request.is_typed:
            if conversation.typed_text().strip() and not run.turns:
                await conversation.save_typed_text(task)
                self.attempt.emit_saved(
                    conversation.entries[-1]
                )  # under the id of the open user line above it
        else:
            # The ledger has the task on disk too, and a resumed run appends it again.
            await self.attempt.append_entries(conversation, task, sync=False)

    async def _check_finished(
        self, message: Message, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan
    ) -> RunOutcome | None:
        """Return the outcome if this reply ended the run; a reply with tool calls never does."""
        if message.stop_reason == StopReason.REFUSED:
            return RunOutcome(
                status=Status.FAILED, reason=Reason.REFUSED, error="the model refused to answer"
            )
        if self.exit_tool_flow is not None:
            return await self.exit_tool_flow.check_finished(message, calls, conversation)
        if (
            plan.agent.max_turns is not None
            and self.run.turns >= plan.agent.max_turns
            and message.tool_call_count
        ):
            await self.attempt.append_entries(
                conversation,
                *self.attempt.make_unanswered_results(conversation, "the agent's turn limit was reached"),
            )
            error = f"{self.run.agent} reached its limit of {plan.agent.max_turns} turns (max_turns)"
            return RunOutcome(status=Status.FAILED, reason=Reason.TURN_LIMIT, error=error)
        if message.tool_call_count or message.stop_reason == STOP_CANCELLED:
            return None
        if plan.output_schema is not None:
            return await structured_output.check_final_answer(message, conversation, plan, self.attempt)
        cut_text = cut_text_before(message, conversation.entries)
        if cut_text is not None:
            self.attempt.run = replace(self.run, text=cut_text + message.text)
        if message.stop_reason == CUT_STOP_REASON:
            return await self._continue_cut_reply(conversation, plan, is_continued=cut_text is not None)
        if message.text.strip():
            return RunOutcome(status=Status.DONE)
        texts = await self._reply_texts(conversation) if self.run.depth else []
        if self.run.depth and (self.run.effective_calls or texts):
            # A sub-agent that worked and has nothing more to say is done: its parent gets a summary of its replies.
            summary = work_summary(self.run.agent, texts) if texts else missing_summary(self.run)
            self.attempt.run = replace(self.run, text=summary)
            return RunOutcome(status=Status.DONE)
        await self.attempt.append_entries(
            conversation, self.attempt.make_notice("nudge", self.loop_detector.on_empty_reply())
        )
        return None

    async def _continue_cut_reply(
        self, conversation: Conversation, plan: RunPlan, *, is_continued: bool
    ) -> RunOutcome | None:
        """Ask the model to continue its last reply; the second time, end the run as incomplete.

        The request ends with a message of the user: some servers refuse one that ends with the model's own.
        """
        max_turns = plan.agent.max_turns
        if is_continued or (max_turns is not None and self.run.turns >= max_turns):
            return RunOutcome(status=Status.DONE, reason=Reason.INCOMPLETE)
        await self.attempt.append_entries(
            conversation, self.attempt.make_notice(CONTINUE_NOTICE, CONTINUE_PROMPT)
        )
        return None

    async def _reply_texts(self, conversation: Conversation) -> list[str]:
        entries = _all_entries(await conversation.read_earlier_entries(self.run.id), conversation)
        return [each.strip() for each in reply_texts(entries, self.run.id)]

    async def _execute_tool_calls(
        self, calls: Sequence[ToolCall], conversation: Conversation, plan: RunPlan, *, is_repeat: bool = False
    ) -> RunOutcome | None:
        """Run the calls of one reply; return an outcome if one of them ended the run.

        An interrupted run starts no new calls.
        """
        runner = self.tool_call_runner
        if calls and (is_repeat or not self.turn_timer.interrupted):
            self.may_have_announcements = True
            await self._save_counters()
            await runner.prepare_calls(calls, conversation, plan, is_repeat=is_repeat)
            if self.exit_tool_flow is not None:
                if outcome := await self.exit_tool_flow.run_calls(conversation, runner, is_repeat=is_repeat):
                    return outcome
            elif suspension := await runner.run_calls(
                runner.open_calls, conversation, plan, is_repeat=is_repeat
            ):
                return suspended_outcome(suspension)
        if self.turn_timer.interrupted:
            await runner.abandon_open_calls(INTERRUPTED_REASON, conversation)
        return None

    async def _close_transcript(self, conversation: Conversation) -> None:
        """Save received text, give open calls a result, and end the file with an idle prompt."""
        try:
            await self.model_turn.save_partial_reply(conversation)
            if unanswered_results := self.attempt.make_unanswered_results(conversation, STOPPED_REASON):
                await self.attempt.append_entries(
                    conversation, *await side_effects.mark_unknown_outcomes(unanswered_results, self.context)
                )
            await conversation.write_idle_prompt()
        except RetinueError:
            return  # full disk or damaged file: the outcome is known, and the file stays as it is


class _Progress(Struct, frozen=True, kw_only=True):
    """Progress of earlier attempts at the run."""

    was_started: bool
    was_interrupted: bool
    """The process of an earlier attempt died, or its task was appended and nothing else."""
    earlier_entries: Sequence[Entry]
    """The run's entries that precede those in memory."""


def _open_calls(conversation: Conversation, run: Run) -> list[ToolCall]:
    """Return the run's calls without a result."""
    return [call for call in unanswered_calls(conversation.entries) if call.run == run.id]


def _is_task_appended(entry_id: str, conversation: Conversation) -> bool:
    """Return True if the task is already among the latest entries of the file."""
    return any(entry.id == entry_id for entry in islice(reversed(conversation.entries), RECENT_ENTRIES))


def _all_entries(earlier_entries: Sequence[Entry], conversation: Conversation) -> Sequence[Entry]:
    return [*earlier_entries, *conversation.entries] if earlier_entries else conversation.entries
