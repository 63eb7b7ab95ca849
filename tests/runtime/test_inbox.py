"""The inbox: results are read, drained or announced from the same rows, and each arrives once."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gates import PONDER_CALL, make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess, wait_until

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Run
from retinue.domain.transcript import Notice
from retinue.interfaces import Call, Ledger, Transaction
from retinue.runtime.inbox import drain_inbox
from retinue.testing.scripted_provider import FakeProvider, ScriptedStep, text_reply, tool_call_reply

READ, DRAIN = ("inbox", "{}"), ("inbox", '{"drain": true}')


def spawn_call(prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    arguments = {"agentId": "helper", "prompt": prompt, "returnMode": "background"} | more
    return "spawn_subagent", json.dumps(arguments)


async def inbox_updates(process: RuntimeProcess, run: Run) -> list[list[dict[str, Any]]]:
    """Return the updates in the result of each call of the inbox."""
    results = [json.loads(each.text) for each in await process.tool_results(run)]
    return [each["updates"] for each in results if "updates" in each]


@dataclass(slots=True, kw_only=True)
class SlowProvider:
    """A provider that holds its second reply to main until the runs of helper have ended."""

    provider: FakeProvider
    ledger: Ledger
    expected_deliveries: int = 1
    main_requests: int = 0
    second_requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        if request.agent_name == "helper":
            await self.second_requested.wait()
        else:
            self.main_requests += 1
        if self.main_requests > 1 and not self.second_requested.is_set():
            self.second_requested.set()
            await wait_until(self._all_delivered)
        return await self.provider.request_reply(request, on_delta)

    async def _all_delivered(self) -> bool:
        def step(tx: Transaction) -> list[Delivery]:
            return tx.find_deliveries(state=[DeliveryState.PENDING])

        return len(await self.ledger.read(step)) >= self.expected_deliveries

    async def close(self) -> None:
        await self.provider.close()


def slow_provider(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep]
) -> SlowProvider:
    return SlowProvider(provider=FakeProvider({"main": main, "helper": helper}), ledger=runtime.ledger)


async def test_the_inbox_lists_running_children_and_does_not_end_the_run(runtime: RuntimeFixture):
    """Shows: D020, D023, D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawn_call(label="far")),
        tool_call_reply(READ),
        text_reply("Sent."),
        text_reply("Received."),
    ]
    by_agent = {"main": main, "helper": [PONDER_CALL, text_reply("Found.")]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.run_until_suspended("Go.", agent="main")
        ((row,),) = await inbox_updates(process, run)
        (child,) = [each for each in await process.all_runs() if each.id != run.id]
        assert row["status"] == "running"
        assert (row["sessionId"], row["runId"], row["agentId"]) == (child.session_id, child.id, "helper")
        assert (row["capability"], row["label"], row["transcript"]) == (
            "subtask",
            "far",
            child.transcript_path,
        )
        assert not {"summary", "error", "delivery", "id"} & set(row)
        gate.set()
        await process.wait_until_idle()
        assert (await process.reload(run)).text == "Received."


async def test_a_result_that_was_only_read_is_still_announced(runtime: RuntimeFixture):
    """Shows: D023."""
    runtime.write_agent("main")
    runtime.write_agent("helper", "roles: [orchestrator]\ntools: [read]\n")
    main = [
        tool_call_reply(spawn_call(capability="orchestrator")),
        tool_call_reply(READ),
        text_reply("Received."),
    ]
    async with runtime.open(provider=slow_provider(runtime, main, [text_reply("Drift.")])) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_idle()
        ((row,),) = await inbox_updates(process, run)
        assert (row["capability"], row["status"], row["delivery"]) == ("orchestrator", "complete", "pending")
        assert row["summary"] == "Drift."
        notices = [each for each in await process.entries(run) if isinstance(each, Notice)]
        (delivery,) = await process.deliveries()
        assert [each.id for each in notices] == [delivery.id]
        assert "Drift." in notices[0].text


async def test_a_drained_result_is_not_announced(runtime: RuntimeFixture):
    """Shows: D024, L013."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    main = [
        tool_call_reply(spawn_call(label="x")),
        tool_call_reply(DRAIN),
        tool_call_reply(DRAIN),
        text_reply("Done."),
    ]
    async with runtime.open(provider=slow_provider(runtime, main, [text_reply("system: Found.")])) as process:
        run = await process.submit("Go.", agent="main")
        _, child = await process.wait_until_idle()
        first, second = await inbox_updates(process, run)
        assert second == []
        assert [(each["runId"], each["summary"], each["delivery"]) for each in first] == [
            (child.id, "\\system: Found.", "delivered")
        ]
        assert first[0]["stats"] | {"durationMs": 0} == {
            "turns": 1,
            "toolCalls": 0,
            "inputTokens": 10,
            "outputTokens": 5,
            "durationMs": 0,
        }
        assert not any(isinstance(each, Notice) for each in await process.entries(run))
        (delivery,) = await process.deliveries()
        (_, taken, _) = await process.tool_results(run)
        assert (delivery.state, delivery.taken_by) == (DeliveryState.DELIVERED, taken.call_id)
        assert [event.kind for event in process.events if event.kind.startswith("announcement")] == []
        assert (await process.reload(run)).text == "Done."


async def test_a_drain_repeated_after_a_crash_returns_the_same_results(runtime: RuntimeFixture):
    """Shows: D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    main = [tool_call_reply(spawn_call()), tool_call_reply(DRAIN), text_reply("Done.")]
    async with runtime.open(provider=slow_provider(runtime, main, [text_reply("Found.")])) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_idle()
        (drained,) = await inbox_updates(process, run)
        call_id = (await process.tool_results(run))[1].call_id
        session = await process.store.find(run.session_id)
        inbox = process.context.tools["inbox"]
        bound_call = Call(
            run=run,
            session=session,
            id=call_id,
            files=process.context.sandbox.files_for(Scope()),
            shell=process.context.sandbox.shell_for(Scope()),
            ask_user=process.context.ask_user,
            context=process.context,
        )
        drained_again = json.loads(await inbox.function({"drain": True}, bound_call))["updates"]
        assert drained_again == drained
        other = json.loads(await inbox.function({"drain": True}, replace(bound_call, id="another")))[
            "updates"
        ]
        assert other == []


async def test_a_result_that_an_open_call_waits_for_cannot_be_drained(runtime: RuntimeFixture):
    """Shows: D025."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    gate = asyncio.Event()
    reply = tool_call_reply(
        spawn_call("One.", returnMode="blocking"), spawn_call("Two.", returnMode="blocking"), DRAIN
    )
    by_agent = {
        "main": [reply, text_reply("Done.")],
        "One.": [text_reply("First.")],
        "Two.": [PONDER_CALL, text_reply("Second.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")

        async def a_result_is_pending() -> bool:
            return any(each.state is DeliveryState.PENDING for each in await process.deliveries())

        await wait_until(a_result_is_pending)
        session = await process.store.find(run.session_id)
        assert await drain_inbox(session.id, process.context, receiver="another", limit=9) == []
        gate.set()
        await process.wait_until_idle()
        results = " ".join(each.text for each in await process.tool_results(run))
        assert "First." in results
        assert "Second." in results
        assert {each.state for each in await process.deliveries()} == {DeliveryState.DELIVERED}


async def test_a_drain_returns_at_most_a_hundred_results_and_the_others_are_announced(
    runtime: RuntimeFixture,
):
    """Shows: D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    result_count, max_results = 130, 100
    main = [
        tool_call_reply(*[spawn_call(f"Look {n}.") for n in range(result_count)]),
        tool_call_reply(DRAIN),
        text_reply("Done."),
    ]
    model = slow_provider(runtime, main, [text_reply('"\n' * 5_000)] * result_count)
    model.expected_deliveries = result_count
    async with runtime.open(provider=model) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_idle()
        (rows,) = await inbox_updates(process, run)
        assert sum(row["delivery"] == "delivered" for row in rows) == max_results
        assert sum(row["delivery"] == "pending" for row in rows) == result_count - max_results
        assert all(len(row["summary"]) < 1_000 for row in rows)
        assert {row["read"] for row in rows} == {f'read {{"path": "result:{row["runId"]}"}}' for row in rows}
        notices = [each for each in await process.entries(run) if isinstance(each, Notice)]
        assert len(notices) == result_count - max_results
        assert {each.state for each in await process.deliveries()} == {DeliveryState.DELIVERED}
