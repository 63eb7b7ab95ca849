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
from retinue.domain.transcript import Entry, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.interfaces import Transaction

WAKE = "wake"
MOMENT = timedelta(milliseconds=10)
MOVING = (Status.QUEUED, Status.RUNNING)

KNOWN_VIOLATIONS = (
    # A person spoke to the child at the moment at which its answer was fetched.
    re.compile(r"was taken, and the call's result is .* is open in "),
)
"""Violations that are known and not fixed yet."""


class Steps:
    """Invariants of each transaction. Violations are recorded and not raised, because the transaction would fail."""

    def __init__(self, plan: Plan, breach: Callable[[str], None]) -> None:
        self._plan = plan
        self._breach = breach
        self._before: dict[str, Run] = {}

    def check(self, tx: Transaction) -> None:
        runs = tx.find_runs()
        self._check_limits(runs)
        for run in runs:
            if (old := self._before.get(run.id)) != run:
                self._check_transition(old, run)
                self._before[run.id] = run
        inside = Counter(
            run.session_id
            for run in runs
            if run.status in (Status.RUNNING, Status.WAITING) and not run.waits_between_turns
        )
        for session, count in inside.items():
            if count > 1:
                self._breach(f"{count} runs of session {session} go on at once")

    def _check_limits(self, runs: Iterable[Run]) -> None:
        plan = self._plan
        running = [run for run in runs if run.status is Status.RUNNING]
        if len(running) > plan.max_live:
            self._breach(f"{len(running)} runs are running, and {plan.max_live} is the most")
        for requester, count in Counter(
            run.request.requester for run in running if run.request.parent_run
        ).items():
            if count > plan.per_requester:
                self._breach(f"{count} runs of {requester} are running, and {plan.per_requester} is the most")
        trees = Counter(run.root_id for run in runs if run.request.source != WAKE)
        for root, count in trees.items():
            if count > plan.per_tree:
                self._breach(f"the tree of {root} has {count} runs, and {plan.per_tree} is the most")

    def _check_transition(self, old: Run | None, run: Run) -> None:
        if (
            old is not None
            and old.status is not run.status
            and run.status not in ALLOWED_TRANSITIONS[old.status]
        ):
            self._breach(f"run {run.id} was {old.status} and became {run.status}")
        if run.status.is_final and (run.owner_id or run.is_awaited):
            self._breach(f"run {run.id} is {run.status} and still has an owner or is awaited")
        if run.depth > self._plan.depth:
            self._breach(f"run {run.id} is {run.depth} deep, and {self._plan.depth} is the deepest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """The final state, once nothing runs any more."""

    runs: Mapping[str, Run]
    deliveries: list[Delivery]
    approvals: list[Approval]
    talks: Mapping[str, list[Entry]]
    """The conversations that are still there, by session."""
    killed: list[datetime]
    """When processes were."""

    def breaches(self) -> Iterable[str]:
        for run in self.runs.values():
            if run.status.is_live and not self._may_be_live(run):
                yield f"an orphan: run {run.id} of {run.agent} is {run.status} ({run.waiting_for})"
            yield from self._check_delivery_count(run)
        for delivery in self.deliveries:
            yield from self._check_delivery(delivery)
        for session, entries in self.talks.items():
            yield from self._check_conversation(session, entries)

    def lines(self) -> Iterable[str]:
        """What stands in the ledger, for whoever looks into a case."""
        for run in self.runs.values():
            state = f"{run.status} {run.waiting_for or ''}{' aside' * run.waits_between_turns}{' awaited' * run.is_awaited}"
            yield f"run {run.id} {run.request.entry_point} of {run.request.parent_run} in {run.session_id}: {state} {run.owner_id}"
        for each in self.deliveries:
            yield f"delivery {each.id} of {each.run} to {each.requester_run}: {each.state} answers={each.answers_call} {each.taken_by}"

    def _may_be_live(self, run: Run, above: tuple[str, ...] = ()) -> bool:
        """It waits for a person, or for one who does. Those that wait for each other wait until their clocks say so."""
        if run.id in above:
            return True
        if run.status is Status.WAITING and run.waiting_for is WaitReason.APPROVAL:
            return any(each.run == run.id and each.state is ApprovalState.PENDING for each in self.approvals)
        if run.status is Status.WAITING and run.waiting_for is WaitReason.CHILD:
            asked = [
                each
                for each in self.runs.values()
                if each.request.parent_run == run.id and each.status.is_live
            ]
            return any(self._may_be_live(each, (*above, run.id)) for each in asked)
        return run.status is Status.QUEUED and any(
            each.status is Status.WAITING
            and not each.waits_between_turns
            and self._may_be_live(each, (*above, run.id))
            for each in self.runs.values()
            if each.session_id == run.session_id and each.id != run.id
        )

    def _check_delivery_count(self, run: Run) -> Iterable[str]:
        count = sum(each.run == run.id for each in self.deliveries)
        due = 1 if run.status.is_final and run.request.parent_run is not None else 0
        if count != due:
            yield f"run {run.id} ({run.status}) has {count} deliveries instead of {due}"

    def _check_delivery(self, delivery: Delivery) -> Iterable[str]:
        asker, ended = self.runs[delivery.requester_run], self.runs[delivery.run]
        what = f"delivery {delivery.id} of run {ended.id} ({ended.status}, {ended.request.entry_point}) to {asker.id} ({asker.status})"
        if delivery.state is DeliveryState.DISCARDED:
            if asker.status is not Status.CANCELLED and not (delivery.answers_call and asker.status.is_final):
                yield f"{what} was discarded"
        elif delivery.state is DeliveryState.PENDING:
            if not self._may_be_pending(delivery, asker):
                yield f"{what} was never heard (answers: {delivery.answers_call})"
        elif delivery.state is DeliveryState.FAILED:
            if not self._may_be_failed(delivery):
                yield f"{what} counts as failed"
        elif delivery.session in self.talks:
            yield from self._check_delivered_text(delivery, asker, ended, what)
        unneeded = (
            not delivery.keep_session
            and delivery.state is not DeliveryState.PENDING
            and not delivery.is_session_deleted
        )
        if unneeded and ended.session_id in self.talks:
            yield f"{what}: its session was not to be kept and is still there"

    def _may_be_pending(self, delivery: Delivery, asker: Run) -> bool:
        """Nobody is left to hear it, or somebody still will, or a person stopped whoever would have."""
        if delivery.session not in self.talks:
            return True
        if delivery.answers_call:
            return asker.status.is_live
        here = [run for run in self.runs.values() if run.session_id == delivery.session]
        return any(run.status.is_live or run.status is Status.CANCELLED for run in here)

    def _may_be_failed(self, delivery: Delivery) -> bool:
        """Somebody was woken for it, and came to an end before it could hear."""
        woken = (run for run in self.runs.values() if run.request.key == f"wake:{delivery.id}")
        return any(run.status in (Status.FAILED, Status.TIMED_OUT, Status.LOST) for run in woken)

    def _check_delivered_text(self, delivery: Delivery, asker: Run, ended: Run, what: str) -> Iterable[str]:
        entries = self.talks[delivery.session]
        if delivery.answers_call:
            found = [
                each for each in entries if isinstance(each, ToolResult) and each.call_id == delivery.taken_by
            ]
            if len(found) != 1:
                yield f"{what} stands {len(found)} times in the conversation"
            elif (
                asker.status is Status.DONE
                and ended.status is Status.DONE
                and not self._contains_reply(found[0], ended)
            ):
                yield f"{what} was taken, and the call's result is {found[0].text!r}"
            return
        notices = [each for each in entries if isinstance(each, Notice) and each.id == delivery.id]
        if len(notices) != 1:
            yield f"{what} stands {len(notices)} times in the conversation"
        elif notices[0].text != delivery.text:
            yield f"{what} was told in other words"

    def _contains_reply(self, result: ToolResult, ended: Run) -> bool:
        """Whether the result holds what the child said last; one door asks a child that said little once more."""
        return ended.request.entry_point in ("agent", "agent_ask") or ended.text in result.text

    def _was_killed_meanwhile(self, called: ToolCall) -> bool:
        """Whether the process that stopped the call's run was killed in that moment, before it could say so in the file:
        whoever speaks next in the conversation finds it answered."""
        run = self.runs.get(called.run)
        if run is None or run.status is not Status.CANCELLED or run.ended_at is None:
            return False
        return any(timedelta() <= at - run.ended_at < MOMENT for at in self.killed)

    def _check_conversation(self, session: str, entries: list[Entry]) -> Iterable[str]:
        live = [run for run in self.runs.values() if run.session_id == session and run.status.is_live]
        left = [each for each in unanswered_calls(entries) if not self._was_killed_meanwhile(each)]
        if not live and left:
            yield f"session {session} is idle and its call {left[0].id} of {left[0].tool} has no result"
        for call, count in Counter(each.call_id for each in entries if isinstance(each, ToolResult)).items():
            if count > 1:
                yield f"call {call} of session {session} has {count} results"
        known = {
            each.id
            for each in self.deliveries
            if each.state is DeliveryState.DELIVERED and not each.answers_call
        }
        for each in entries:
            if isinstance(each, Notice) and each.topic == "announcement" and each.id not in known:
                yield f"session {session} heard {each.id}, which is not in the outbox as delivered"
