"""Interleavings: in any order of events no result is lost or repeated, no limit is exceeded, and all runs end."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gates import PONDER_CALL, make_gated_tool
from intercepted_io import InterceptedLedger, run_until_ledger_write
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture

from retinue.domain.delivery import DeliveryState
from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta
from retinue.domain.run import Reason, Status
from retinue.domain.transcript import Message, Notice
from retinue.errors import ModelFailed
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import FakeProvider, RecordedRequest, text_reply, tool_call_reply
from retinue.worker.clock import system_clock

HELPER = json.dumps({"preset": "main", "description": "look", "prompt": "Look."})
INTERLEAVE = Path(__file__).resolve().parents[1] / "interleave"


def run_cases(*args: str) -> str:
    """Run random cases, and return their output if one violated an invariant."""
    process = subprocess.run(
        [sys.executable, "-B", INTERLEAVE, *args], capture_output=True, text=True, check=False
    )
    return "" if process.returncode == 0 and "cases" in process.stdout else process.stdout + process.stderr


def test_random_run_trees_in_random_order_violate_no_invariant():
    """Shows: C01, C07, C11, C12, L007, L012, L018, L020."""
    assert run_cases("--cases", "150", "--known") == ""


def test_random_run_trees_violate_no_invariant_on_a_sqlite_ledger():
    assert run_cases("--cases", "25", "--first", "100000", "--sqlite", "--known") == ""


def spawn_call(task: str) -> tuple[str, str]:
    return "sessions_spawn", json.dumps({"task": task})


@dataclass(slots=True)
class FailingProvider(FakeProvider):
    """A provider whose second request of the requester fails after its worker has ended; the worker replies only then."""

    second_requested: asyncio.Event = field(default_factory=asyncio.Event)
    worker_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        is_requester = request.entries[0].text == "Go." if isinstance(request.entries[0], Message) else False
        if (
            is_requester
            and len([each for each in self.requests if each.entries[0] == request.entries[0]]) == 1
        ):
            self.requests.append(RecordedRequest(request=request, entries=tuple(request.entries)))
            self.second_requested.set()
            await self.worker_ended.wait()
            raise ModelFailed("gone", reason="unreachable")
        if not is_requester:
            await self.second_requested.wait()
        # Not super(): a dataclass with slots is created twice, and super() refers to the first class.
        return await FakeProvider.request_reply(self, request, on_delta)


async def test_a_result_that_arrives_during_a_failing_turn_is_delivered_to_a_new_run(
    runtime: RuntimeFixture,
):
    """Shows: L012, E015."""
    runtime.write_agent("main")
    provider = FailingProvider(
        {
            "Go.": [tool_call_reply(spawn_call("Look.")), text_reply("Received after all.")],
            "Look.": [text_reply("Found.")],
        }
    )
    async with runtime.open(provider=provider) as process:
        run = await process.submit("Go.", agent="main")
        while not (pending := await process.deliveries()):
            await process.worker.wait_for_change()
        provider.worker_ended.set()
        requester, _, woken_run = await process.wait_until_idle()
        assert (requester.status, woken_run.status, woken_run.text) == (
            Status.FAILED,
            Status.DONE,
            "Received after all.",
        )
        (delivery,) = await process.deliveries()
        assert (delivery.id, delivery.state) == (pending[0].id, DeliveryState.DELIVERED)
        notices = [each.id for each in await process.entries(run) if isinstance(each, Notice)]
        assert notices == [delivery.id]


async def test_two_runs_created_at_the_same_time_do_not_wait_for_each_other(runtime: RuntimeFixture):
    runtime.write_agent("main")
    gate = asyncio.Event()
    stopped_clock = replace(system_clock(), now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    main = [
        tool_call_reply(spawn_call("Look.")),
        text_reply("Sent."),
        tool_call_reply(spawn_call("See.")),
        text_reply("Sent too."),
    ]
    by_agent = {
        "Go.": [*main, text_reply("Received."), text_reply("Received too.")],
        "Look.": [PONDER_CALL, text_reply("Found.")],
        "See.": [PONDER_CALL, text_reply("Seen.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)], clock=stopped_clock) as process:
        first = await process.submit("Go.", agent="main")
        session = await process.store.find(first.session_id)
        second = await process.submit("And?", session=session)
        while not all([(await process.reload(run)).waits_between_turns for run in (first, second)]):
            await process.worker.wait_for_change()
        gate.set()
        found = await asyncio.wait_for(process.wait_until_idle(), 60)
        assert {run.status for run in found} == {Status.DONE}


async def test_a_run_cancelled_by_another_process_ends_instead_of_waiting_for_its_child(
    runtime: RuntimeFixture,
):
    """The cancel arrives just before the run is suspended, where it would not be noticed."""
    runtime.write_agent("main")
    gate = asyncio.Event()
    main = [tool_call_reply(("PersistentAgent", HELPER)), text_reply("Done.")]
    async with runtime.open(
        by_agent={"Go.": main, "Look.": [text_reply("Found.")]}, tools=[make_gated_tool(gate)]
    ) as process:
        ledger = process.context.ledger

        async def request_cancel() -> None:
            def step(tx: Transaction) -> None:
                run = tx.find_runs(status=[Status.RUNNING], top_only=True)[0]
                tx.update_run(replace(run, reason=Reason.USER_CANCEL))

            await ledger.write(step)

        process.replace_parts(
            ledger=InterceptedLedger(ledger, before_write=request_cancel, steps_of="suspend_run.")
        )
        run = await process.submit("Go.", agent="main")
        found = await process.wait_until_idle()
        assert (await process.reload(run)).status is Status.CANCELLED
        assert not any(each.status.is_live for each in found)
        assert [each.ok for each in await process.tool_results(run)] == [False]


async def test_a_result_taken_before_a_crash_is_announced_if_its_call_was_closed_meanwhile(
    runtime: RuntimeFixture,
):
    """The result is marked as taken in the ledger but not in the file yet; then a person's message comes first."""
    runtime.write_agent("main")
    main = [tool_call_reply(("PersistentAgent", HELPER))]
    async with runtime.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as process:
        run = await run_until_ledger_write(process, "take_child_result", is_committed=True, agent="main")
    async with runtime.open(text_reply("Soon."), text_reply("Received.")) as process:
        await process.run("And now?", session=await process.store.find(run.session_id))
        assert [each.ok for each in await process.tool_results(run)] == [False]
        assert (await process.resume(run)).text == "Received."
        notices = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
        assert [("Found." in text) for text in notices] == [True]
        (delivery,) = await process.deliveries()
        assert (delivery.state, delivery.answers_call) == (DeliveryState.DELIVERED, False)


async def test_a_notice_in_the_file_of_a_run_cancelled_after_a_crash_counts_as_delivered(
    runtime: RuntimeFixture,
):
    """The process dies between writing the notice to the file and marking it as delivered in the ledger."""
    runtime.write_agent("main")
    main = [
        tool_call_reply(("sessions_spawn", json.dumps({"task": "Look."}))),
        text_reply("Sent."),
        text_reply("Received."),
    ]
    async with runtime.open(by_agent={"Go.": main, "Look.": [text_reply("Found.")]}) as process:
        run = await run_until_ledger_write(process, "mark_delivered", is_committed=False, agent="main")
    async with runtime.open() as process:
        await run_control.cancel_run(run.id, process.context, is_alive=lambda _: False)
        assert [each.state for each in await process.deliveries()] == [DeliveryState.DELIVERED]
