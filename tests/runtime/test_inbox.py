"""The inbox: a view on the outbox. Polling it and being told by it are the same rows, and each result arrives once."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gates import make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.model_turn import Reply, ReplyDelta, Request
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Notice
from retinue.interfaces import Call, Transaction
from retinue.runtime.inbox import drain_inbox
from retinue.testing.scripted_provider import FakeProvider, ScriptedStep, text_reply, tool_call_reply

LOOK, DRAIN = ("inbox", "{}"), ("inbox", '{"drain": true}')


def spawns(prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    said = {"agentId": "helper", "prompt": prompt, "returnMode": "background"} | more
    return "spawn_subagent", json.dumps(said)


async def outbox(process: RuntimeProcess) -> list[Delivery]:
    def step(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries()

    return await process.context.ledger.read(step)


async def all_runs(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def quiet(process: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""
    while True:
        runs = await all_runs(process)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await process.worker.wait_for_change()


async def soon(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


async def updates(process: RuntimeProcess, run: Run) -> list[list[dict[str, Any]]]:
    """What each call of the inbox was answered with."""
    found = [json.loads(each.text) for each in await process.tool_results(run)]
    return [each["updates"] for each in found if "updates" in each]


@dataclass(slots=True, kw_only=True)
class Slow:
    """A model that is in the middle of its second reply to main while helper speaks, and until helper has ended."""

    played: FakeProvider
    ledger: Any
    ends: int = 1
    turns: int = 0
    second: asyncio.Event = field(default_factory=asyncio.Event)

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        if request.agent_name == "helper":
            await self.second.wait()
        else:
            self.turns += 1
        if self.turns > 1 and not self.second.is_set():
            self.second.set()
            await soon(self._posted)
        return await self.played.request_reply(request, on_delta)

    async def _posted(self) -> bool:
        def step(tx: Transaction) -> list[Delivery]:
            return tx.find_deliveries(state=[DeliveryState.PENDING])

        return len(await self.ledger.read(step)) >= self.ends

    async def close(self) -> None:
        await self.played.close()


def slow(runtime: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep]) -> Slow:
    return Slow(played=FakeProvider({"main": main, "helper": helper}), ledger=runtime.ledger)


async def test_whoever_looks_sees_who_is_at_work_and_is_not_interrupted(runtime: RuntimeFixture):
    """Shows: D020, D023, D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawns(label="far")),
        tool_call_reply(LOOK),
        text_reply("Sent."),
        text_reply("Heard."),
    ]
    by_agent = {"main": main, "helper": [tool_call_reply(("ponder", "{}")), text_reply("Found.")]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")

        async def aside() -> bool:
            return (await process.reload(run)).waits_between_turns

        await soon(aside)
        ((row,),) = await updates(process, run)
        (child,) = [each for each in await all_runs(process) if each.id != run.id]
        assert row["status"] == "running"
        assert (row["sessionId"], row["runId"], row["agentId"]) == (child.session_id, child.id, "helper")
        assert (row["capability"], row["label"], row["transcript"]) == (
            "subtask",
            "far",
            child.transcript_path,
        )
        assert not {"summary", "error", "delivery", "id"} & set(row)
        gate.set()
        await quiet(process)
        assert (await process.reload(run)).text == "Heard."


async def test_what_is_only_looked_at_is_still_announced(runtime: RuntimeFixture):
    """Shows: D023."""
    runtime.write_agent("main")
    runtime.write_agent("helper", "roles: [watcher]\ntools: [read]\n")
    main = [tool_call_reply(spawns(capability="watcher")), tool_call_reply(LOOK), text_reply("Heard.")]
    async with runtime.open(provider=slow(runtime, main, [text_reply("Drift.")])) as process:
        run = await process.submit("Go.", agent="main")
        await quiet(process)
        ((row,),) = await updates(process, run)
        assert (row["capability"], row["status"], row["delivery"]) == ("watcher", "complete", "pending")
        assert row["summary"] == "Drift."
        notices = [each for each in await process.entries(run) if isinstance(each, Notice)]
        (delivery,) = await outbox(process)
        assert [each.id for each in notices] == [delivery.id]
        assert "Drift." in notices[0].text


async def test_what_was_drained_is_not_announced_again(runtime: RuntimeFixture):
    """Shows: D024, L013."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    main = [
        tool_call_reply(spawns(label="x")),
        tool_call_reply(DRAIN),
        tool_call_reply(DRAIN),
        text_reply("Done."),
    ]
    async with runtime.open(provider=slow(runtime, main, [text_reply("system: Found.")])) as process:
        run = await process.submit("Go.", agent="main")
        _, child = await quiet(process)
        first, second = await updates(process, run)
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
        (delivery,) = await outbox(process)
        (_, taken, _) = await process.tool_results(run)
        assert (delivery.state, delivery.taken_by) == (DeliveryState.DELIVERED, taken.call_id)
        assert [event.kind for event in process.events if event.kind.startswith("announcement")] == []
        assert (await process.reload(run)).text == "Done."


async def test_a_drain_that_a_crash_left_unanswered_gives_the_same_results_again(runtime: RuntimeFixture):
    """Shows: D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    main = [tool_call_reply(spawns()), tool_call_reply(DRAIN), text_reply("Done.")]
    async with runtime.open(provider=slow(runtime, main, [text_reply("Found.")])) as process:
        run = await process.submit("Go.", agent="main")
        await quiet(process)
        (once,) = await updates(process, run)
        called = (await process.tool_results(run))[1].call_id
        session = await process.store.find(run.session_id)
        inbox = process.context.tools["inbox"]
        bound = Call(
            run=run,
            session=session,
            id=called,
            files=process.context.sandbox.files_for(Scope()),
            shell=process.context.sandbox.shell_for(Scope()),
            ask_user=process.context.ask_user,
            context=process.context,
        )
        again = json.loads(await inbox.function({"drain": True}, bound))["updates"]
        assert again == once
        other = json.loads(await inbox.function({"drain": True}, replace(bound, id="another")))["updates"]
        assert other == []


async def test_what_an_open_call_waits_for_cannot_be_drained_from_under_it(runtime: RuntimeFixture):
    """Shows: D025."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    gate = asyncio.Event()
    both = tool_call_reply(
        spawns("One.", returnMode="blocking"), spawns("Two.", returnMode="blocking"), DRAIN
    )
    by_agent = {
        "main": [both, text_reply("Done.")],
        "One.": [text_reply("First.")],
        "Two.": [tool_call_reply(("ponder", "{}")), text_reply("Second.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")

        async def ended() -> bool:
            return any(each.state is DeliveryState.PENDING for each in await outbox(process))

        await soon(ended)
        session = await process.store.find(run.session_id)
        assert await drain_inbox(session.id, process.context, receiver="another", limit=9) == []
        gate.set()
        await quiet(process)
        said = " ".join(each.text for each in await process.tool_results(run))
        assert "First." in said
        assert "Second." in said
        assert {each.state for each in await outbox(process)} == {DeliveryState.DELIVERED}


async def test_more_results_than_one_answer_holds_are_taken_in_part_and_the_others_announced(
    runtime: RuntimeFixture,
):
    """Shows: D024."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    many, most = 130, 100
    main = [
        tool_call_reply(*[spawns(f"Look {n}.") for n in range(many)]),
        tool_call_reply(DRAIN),
        text_reply("Done."),
    ]
    model = slow(runtime, main, [text_reply('"\n' * 5_000)] * many)
    model.ends = many
    async with runtime.open(provider=model) as process:
        run = await process.submit("Go.", agent="main")
        await quiet(process)
        (rows,) = await updates(process, run)
        assert sum(row["delivery"] == "delivered" for row in rows) == most
        assert sum(row["delivery"] == "pending" for row in rows) == many - most
        assert all("characters omitted" in row["summary"] for row in rows)
        notices = [each for each in await process.entries(run) if isinstance(each, Notice)]
        assert len(notices) == many - most
        assert {each.state for each in await outbox(process)} == {DeliveryState.DELIVERED}
