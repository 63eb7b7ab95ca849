"""The invariants: some hold after every ledger transaction, others once nothing runs any more."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from plan import Plan

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import ALLOWED_TRANSITIONS, Run, Status, WaitReason
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.interfaces import Transaction

WAKE_SOURCE = "wake"
WORK_SUMMARY = re.compile(r"Agent '[^']+' work summary:\n\n")
KILL_WINDOW = timedelta(milliseconds=10)
ACTIVE = (Status.QUEUED, Status.RUNNING)

KNOWN_VIOLATIONS = (
    # A person sent the child a message at the moment when its result was fetched.
    re.compile(r"was taken, and the call's result is .* is open in "),
)
"""Violations that are known and not fixed yet."""


class TransactionChecks:
    """Invariants of each transaction. Violations are recorded and not raised, because the transaction would fail."""

    def __init__(self, plan: Plan, report_violation: Callable[[str], None]) -> None:
        self._plan = plan
        self._report_violation = report_violation
        self._before: dict[str, Run] = {}

    def check(self, tx: Transaction) -> None:
        runs = tx.find_runs()
        self._check_limits(runs)
        for run in runs:
            if (old := self._before.get(run.id)) != run:
                self._check_transition(old, run)
                self._before[run.id] = run
        active_counts = Counter(
            run.session_id
            for run in runs
            if run.status in (Status.RUNNING, Status.WAITING) and not run.waits_between_turns
        )
        for session, count in active_counts.items():
            if count > 1:
                self._report_violation(f"{count} runs of session {session} are active at once")

    def _check_limits(self, runs: Iterable[Run]) -> None:
        plan = self._plan
        running = [run for run in runs if run.status is Status.RUNNING]
        if len(running) > plan.max_live:
            self._report_violation(f"{len(running)} runs are running; the limit is {plan.max_live}")
        for requester, count in Counter(
            run.request.requester for run in running if run.request.parent_run
        ).items():
            if count > plan.per_requester:
                self._report_violation(
                    f"{count} runs of {requester} are running; the limit is {plan.per_requester}"
                )
        trees = Counter(run.root_id for run in runs if run.request.source != WAKE_SOURCE)
        for root, count in trees.items():
            if count > plan.per_tree:
                self._report_violation(f"the tree of {root} has {count} runs; the limit is {plan.per_tree}")

    def _check_transition(self, old: Run | None, run: Run) -> None:
        if (
            old is not None
            and old.status is not run.status
            and run.status not in ALLOWED_TRANSITIONS[old.status]
        ):
            self._report_violation(f"run {run.id} was {old.status} and became {run.status}")
        if run.status.is_final and (run.owner_id or run.is_awaited):
            self._report_violation(f"run {run.id} is {run.status} and still has an owner or is awaited")
        if run.depth > self._plan.depth:
            self._report_violation(f"run {run.id} has depth {run.depth}; the limit is {self._plan.depth}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """The final state, once nothing runs any more."""

    runs: Mapping[str, Run]
    deliveries: list[Delivery]
    approvals: list[Approval]
    conversations: Mapping[str, list[Entry]]
    """The entries of the sessions that still exist, by session."""
    killed: list[datetime]
    """When processes were killed."""

    def violations(self) -> Iterable[str]:
        for run in self.runs.values():
            if run.status.is_live and not self._may_be_live(run):
                yield f"an orphan: run {run.id} of {run.agent} is {run.status} ({run.waiting_for})"
            yield from self._check_delivery_count(run)
        for delivery in self.deliveries:
            yield from self._check_delivery(delivery)
        for session, entries in self.conversations.items():
            yield from self._check_conversation(session, entries)
            for calls in _calls_by_reply(entries):
                yield from _check_result_order(calls, entries)
                yield from self._check_message_order(calls)

    def describe(self) -> Iterable[str]:
        """Yield the runs and deliveries of the ledger, one per line."""
        for run in self.runs.values():
            state = f"{run.status} {run.waiting_for or ''}{' suspended' * run.waits_between_turns}{' awaited' * run.is_awaited}"
            yield f"run {run.id} {run.request.entry_point} of {run.request.parent_run} in {run.session_id}: {state} {run.owner_id}"
        for each in self.deliveries:
            yield f"delivery {each.id} of {each.run} to {each.requester_run}: {each.state} answers={each.answers_call} {each.taken_by}"

    def _may_be_live(self, run: Run, ancestors: tuple[str, ...] = ()) -> bool:
        """Return whether a run waits for a person, directly or through another run; a cycle ends by a timeout."""
        if run.id in ancestors:
            return True
        if run.status is Status.WAITING and run.waiting_for is WaitReason.APPROVAL:
            return any(each.run == run.id and each.state is ApprovalState.PENDING for each in self.approvals)
        if run.status is Status.WAITING and run.waiting_for is WaitReason.CHILD:
            live_children = [
                each
                for each in self.runs.values()
                if each.request.parent_run == run.id and each.status.is_live
            ]
            return any(self._may_be_live(each, (*ancestors, run.id)) for each in live_children)
        return run.status is Status.QUEUED and any(
            each.status is Status.WAITING
            and not each.waits_between_turns
            and self._may_be_live(each, (*ancestors, run.id))
            for each in self.runs.values()
            if each.session_id == run.session_id and each.id != run.id
        )

    def _check_delivery_count(self, run: Run) -> Iterable[str]:
        count = sum(each.run == run.id for each in self.deliveries)
        reports = run.request.parent_run is not None and not run.request.is_callback
        expected = 1 if run.status.is_final and reports else 0
        if count != expected:
            yield f"run {run.id} ({run.status}) has {count} deliveries instead of {expected}"

    def _check_delivery(self, delivery: Delivery) -> Iterable[str]:
        requester, ended = self.runs[delivery.requester_run], self.runs[delivery.run]
        what = f"delivery {delivery.id} of run {ended.id} ({ended.status}, {ended.request.entry_point}) to {requester.id} ({requester.status})"
        if delivery.state is DeliveryState.DISCARDED:
            if requester.status is not Status.CANCELLED and not (
                delivery.answers_call and requester.status.is_final
            ):
                yield f"{what} was discarded"
        elif delivery.state is DeliveryState.PENDING:
            if not self._may_be_pending(delivery, requester):
                yield f"{what} was never delivered (answers: {delivery.answers_call})"
        elif delivery.state is DeliveryState.FAILED:
            if not self._may_be_failed(delivery):
                yield f"{what} counts as failed"
        elif delivery.session in self.conversations:
            yield from self._check_delivered_text(delivery, requester, ended, what)
        unneeded = (
            not delivery.keep_session
            and delivery.state is not DeliveryState.PENDING
            and not delivery.is_session_deleted
        )
        if unneeded and ended.session_id in self.conversations:
            yield f"{what}: its temporary session was not deleted"

    def _may_be_pending(self, delivery: Delivery, requester: Run) -> bool:
        """Return whether nobody is left to receive it, a run still will, or the receiver was cancelled."""
        if delivery.session not in self.conversations:
            return True
        if delivery.answers_call:
            return requester.status.is_live
        session_runs = [run for run in self.runs.values() if run.session_id == delivery.session]
        return any(run.status.is_live or run.status is Status.CANCELLED for run in session_runs)

    def _may_be_failed(self, delivery: Delivery) -> bool:
        """Return whether a run was woken for it and ended before it received the result."""
        woken = (run for run in self.runs.values() if run.request.key == f"wake:{delivery.id}")
        return any(run.status in (Status.FAILED, Status.TIMED_OUT, Status.LOST) for run in woken)

    def _check_delivered_text(
        self, delivery: Delivery, requester: Run, ended: Run, what: str
    ) -> Iterable[str]:
        entries = self.conversations[delivery.session]
        if delivery.answers_call:
            found = [
                each for each in entries if isinstance(each, ToolResult) and each.call_id == delivery.taken_by
            ]
            if len(found) != 1:
                yield f"{what} is in the conversation {len(found)} times"
            elif (
                requester.status is Status.DONE
                and ended.status is Status.DONE
                and not self._contains_reply(found[0], ended)
            ):
                yield f"{what} was taken, and the call's result is {found[0].text!r}"
            return
        notices = [each for each in entries if isinstance(each, Notice) and each.id == delivery.id]
        if len(notices) != 1:
            yield f"{what} is in the conversation {len(notices)} times"
        elif notices[0].text != delivery.text:
            yield f"{what} was delivered with another text"

    def _contains_reply(self, result: ToolResult, ended: Run) -> bool:
        """Return whether the result contains the last text of the child; `agent` may ask it again for a report.

        The text of a child that ended on an empty reply is a summary of its replies, of which the result has all.
        """
        texts = ended.text.split("\n\n")[1:] if WORK_SUMMARY.match(ended.text) else [ended.text]
        return ended.request.entry_point in ("agent", "agent_ask") or all(
            text in result.text for text in texts
        )

    def _check_message_order(self, calls: list[ToolCall]) -> Iterable[str]:
        """Check that messages of one reply to one agent were sent in the order of their calls."""
        sent = {run.request.key: run for run in self.runs.values()}
        last: dict[str, Run] = {}
        for call in calls:
            run = sent.get(f"call:{call.run}/{call.id}") if call.tool == "agents_message" else None
            if run is None:
                continue
            earlier = last.get(run.agent)
            if earlier is not None and (earlier.created_at, earlier.id) > (run.created_at, run.id):
                yield f"message {run.id} to {run.agent} was sent before the earlier {earlier.id}"
            last[run.agent] = run

    def _was_killed_meanwhile(self, tool_call: ToolCall) -> bool:
        """Return whether a process was killed right after it cancelled the run of the call, before it wrote the result.

        The next run of the session then adds the result.
        """
        run = self.runs.get(tool_call.run)
        if run is None or run.status is not Status.CANCELLED or run.ended_at is None:
            return False
        return any(timedelta() <= at - run.ended_at < KILL_WINDOW for at in self.killed)

    def _check_conversation(self, session: str, entries: list[Entry]) -> Iterable[str]:
        live = [run for run in self.runs.values() if run.session_id == session and run.status.is_live]
        open_calls = [each for each in unanswered_calls(entries) if not self._was_killed_meanwhile(each)]
        if not live and open_calls:
            yield f"session {session} is idle and its call {open_calls[0].id} of {open_calls[0].tool} has no result"
        for call, count in Counter(each.call_id for each in entries if isinstance(each, ToolResult)).items():
            if count > 1:
                yield f"call {call} of session {session} has {count} results"
        delivered = {
            each.id
            for each in self.deliveries
            if each.state is DeliveryState.DELIVERED and not each.answers_call
        }
        for each in entries:
            if isinstance(each, Notice) and each.topic == "announcement" and each.id not in delivered:
                yield f"session {session} contains {each.id}, which is not in the outbox as delivered"


def _calls_by_reply(entries: list[Entry]) -> Iterable[list[ToolCall]]:
    calls: list[ToolCall] = []
    for each in entries:
        if isinstance(each, ToolCall):
            calls.append(each)
        elif isinstance(each, Message) and each.role == "agent" and calls:
            yield calls
            calls = []
    yield calls


def _check_result_order(calls: list[ToolCall], entries: list[Entry]) -> Iterable[str]:
    """Check that a call has its result before those after it succeed, except neighbours that read or delegate.

    Calls that fail may have been answered without running, after a crash.
    """
    positions = {each.call_id: index for index, each in enumerate(entries) if isinstance(each, ToolResult)}
    succeeded = {each.call_id for each in entries if isinstance(each, ToolResult) and each.ok}
    last_before_group = last = -1
    for index, call in enumerate(calls):
        if index and not _may_run_concurrently(calls[index - 1], call):
            last_before_group = last
        position = positions.get(call.id, len(entries))
        if position < last_before_group and call.id in succeeded:
            yield f"call {call.id} of {call.tool} has its result before an earlier call of its reply"
        last = max(last, position)


def _may_run_concurrently(one: ToolCall, other: ToolCall) -> bool:
    kinds = [{"act": "alone", "ponder": "read"}.get(each.tool, "delegation") for each in (one, other)]
    return kinds[0] == kinds[1] != "alone"
