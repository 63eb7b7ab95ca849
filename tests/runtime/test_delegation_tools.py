"""Doors are alike behind: one run, one delivery, one order of things, whatever the tool is called."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gates import make_gated_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.agents.definition_file import parse_preset
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.delivery import DeliveryState as Delivered
from retinue.domain.event import Event
from retinue.domain.limits import Limits
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Notice, ToolResult
from retinue.interfaces import Transaction
from retinue.testing.scripted_provider import text_reply, tool_call_reply


async def quiet(process: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""

    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    while True:
        runs = await process.context.ledger.read(step)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await process.worker.wait_for_change()


BACKGROUND: dict[str, dict[str, Any]] = {
    "sessions_spawn": {"task": "Look."},
    "agents_message": {"agentId": "helper", "content": "Look.", "mode": "async"},
    "spawn_subagent": {"agentId": "helper", "prompt": "Look.", "returnMode": "background"},
}


@pytest.mark.parametrize("door", BACKGROUND)
async def test_every_door_to_the_background_tells_its_end_in_the_same_way(runtime: RuntimeFixture, door: str):
    """Shows: L030, L012, D022."""
    runtime.write_agent("main", "model: scripted:mine\n", "I am the one who asked.")
    runtime.write_agent("helper")
    main = [tool_call_reply((door, json.dumps(BACKGROUND[door]))), text_reply("Sent."), text_reply("Heard.")]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Found, and here it is.")]
    gate = asyncio.Event()
    async with runtime.open(
        by_agent={"Go.": main, "Look.": helper}, tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")
        while (await process.reload(run)).status is not Status.WAITING:
            await process.worker.wait_for_change()
        gate.set()
        parent, child = await quiet(process)
        assert (parent.status, parent.text, child.status) == (Status.DONE, "Heard.", Status.DONE)
        assert (child.request.parent_run, child.root_id, child.depth, child.request.entry_point) == (
            run.id,
            run.id,
            1,
            door,
        )
        told = [each for each in await process.entries(run) if isinstance(each, Notice)]
        assert (len(told), "Found, and here it is." in told[0].text) == (1, True)

        def step(tx: Transaction) -> list[Delivered]:
            return [each.state for each in tx.find_deliveries()]

        assert await process.context.ledger.read(step) == [Delivered.DELIVERED]
        last = process.provider.requests[-1].request
        assert (last.model.full_name, "I am the one who asked." in last.system) == ("scripted:mine", True)


async def test_paths_that_a_call_allows_and_denies_stand_in_the_childs_own_file(runtime: RuntimeFixture):
    """Shows: A003, A015, A056."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    wish = {"preset": "helper", "description": "look", "prompt": "Look."}
    paths = {"allowed_paths": ["/srv/**"], "denied_paths": ["**/secret"]}
    main = [tool_call_reply(("PersistentAgent", json.dumps(wish | paths))), text_reply("Done.")]
    async with runtime.open(by_agent={"main": main, "helper": [text_reply("x")]}) as process:
        await process.submit("Go.", agent="main")
        _, child = await quiet(process)
        own = parse_preset((Path(child.transcript_path).parent / "preset.md").read_text(), "x")
        assert own.paths is not None
        assert (own.paths.read, own.paths.deny) == (("/srv/**",), ("**/secret",))
    async with runtime.open() as process:
        assert child.session_id in [each.id for each in await process.store.sessions()]


async def test_what_a_run_is_about_to_do_is_told_before_it_is_done(runtime: RuntimeFixture):
    """Shows: A041, A045."""
    async with runtime.open(tool_call_reply(("ls", "{}")), text_reply("Done.")) as process:
        await process.run("Go.")
        told = [
            (event.kind, event.data.get("phase"))
            for event in process.events
            if event.kind in ("run.state", "tool.started", "tool.ended")
        ]
    wait, doing = ("run.state", "wait"), ("run.state", "tool")
    assert told == [wait, doing, ("tool.started", None), ("tool.ended", None), wait]


async def test_how_deep_agents_may_start_others_is_set_and_named_where_it_ends(runtime: RuntimeFixture):
    """Shows: L017, C03."""
    for name in ("a", "b", "c"):
        runtime.write_agent(name, "tools: [agent]\n")
    asks = {
        name: [
            tool_call_reply(("agent", json.dumps({"agent_name": below, "task_prompt": "Go."}))),
            text_reply("Back." * 9),
        ]
        for name, below in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    async with runtime.open(by_agent=asks, limits=Limits(max_depth=1)) as process:
        await process.submit("Go.", agent="a")
        runs = await quiet(process)
        assert [(each.agent, each.depth) for each in runs] == [("a", 0), ("b", 1)]
        (refused,) = await process.tool_results(runs[1])
        assert "maximum depth is 1" in refused.text


async def test_a_child_asked_once_more_brings_a_second_report(runtime: RuntimeFixture):
    """Shows: L027."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    first = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))

    def more(request: Request) -> Reply:
        (result,) = [entry for entry in request.entries if isinstance(entry, ToolResult)]
        wish = {"agent_id": json.loads(result.text)["agent_id"], "message": "And then?"}
        return tool_call_reply(("agent_ask", json.dumps(wish)))

    helper = [text_reply("The first report, in full."), text_reply("The second report, in full.")]
    by_agent = {"main": [first, more, text_reply("Both.")], "helper": helper}
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.submit("Go.", agent="main")
        await asyncio.wait_for(quiet(process), 30)
        one, two = [json.loads(result.text)["result"] for result in await process.tool_results(run)]
        assert ("first report" in one, "second report" in two) == (True, True)


async def test_a_child_reads_neither_its_parents_conversation_nor_its_own_definition(runtime: RuntimeFixture):
    """Shows: X15, C16."""
    runtime.write_agent("main")
    runtime.write_agent("helper")

    def looks(request: Request) -> Reply:
        own = Path(next(each for each in runtime.folder.rglob("agents/*/preset.md")))
        parent = own.parents[2] / "session.md"
        wishes = [("read", json.dumps({"path": str(path)})) for path in (parent, own)]
        return tool_call_reply(*wishes, ("write", json.dumps({"path": str(own), "content": "x"})))

    closed = (f"{runtime.folder}/sessions/**",)
    main = [
        tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."}))),
        text_reply("Done."),
    ]
    by_agent = {"main": main, "helper": [looks, text_reply("Nothing could be read.")]}
    async with runtime.open(
        by_agent=by_agent, operator_policy=lambda: OperatorPolicy(closed_paths=closed)
    ) as process:
        await process.submit("Go.", agent="main")
        _, child = await quiet(process)
        assert [result.ok for result in await process.tool_results(child)] == [False, False, False]


async def test_whoever_is_as_deep_as_may_be_is_shown_no_tool_that_starts_others(runtime: RuntimeFixture):
    for name in ("a", "b"):
        runtime.write_agent(name, "tools: [agent, ls]\n")
    first = tool_call_reply(("agent", json.dumps({"agent_name": "b", "task_prompt": "Go."})))
    asks = {"a": [first, text_reply("Back." * 9)], "b": [text_reply("Here. " * 9)]}
    for deepest, shown in ((1, ["ls"]), (2, ["agent", "ls"])):
        async with runtime.open(by_agent=asks, limits=Limits(max_depth=deepest)) as process:
            await process.submit("Go.", agent="a")
            await quiet(process)
            _, below, _ = process.provider.requests
            assert [spec.name for spec in below.request.tools] == shown


async def test_the_same_call_to_a_door_for_ever_is_ended_though_each_waits_for_a_child(
    runtime: RuntimeFixture,
):
    """Shows: M16."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    again = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    asks = {"main": [again] * 20, "helper": [text_reply("Nothing new, as I have said before.")] * 20}
    async with runtime.open(by_agent=asks, limits=Limits(identical_calls=3)) as process:
        await process.submit("Go.", agent="main")
        runs = await quiet(process)
        (stuck,) = [run for run in runs if run.agent == "main"]
        assert (stuck.status, stuck.reason) == (Status.FAILED, "stuck")
        assert len(runs) == 1 + 3
        assert sum("this same call" in each.text for each in await process.tool_results(stuck)) == 3


async def test_a_call_that_waited_for_a_child_tells_once_that_it_began_and_how_long_it_took(
    runtime: RuntimeFixture,
):
    """Shows: C039, B018."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    wish = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    slow = [tool_call_reply(("ponder", "{}")), text_reply("Found, and here it is, in full.")]
    gate = asyncio.Event()
    async with runtime.open(
        by_agent={"main": [wish, text_reply("So.")], "helper": slow}, tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")
        while not any(event.data.get("tool") == "ponder" for event in process.events):
            await process.worker.wait_for_change()
        await asyncio.sleep(0.3)
        gate.set()
        await quiet(process)
        (result,) = await process.tool_results(run)
        assert result.duration_ms >= 300
        own = [
            event.kind
            for event in process.events
            if event.run == run.id and event.data.get("tool") == "agent"
        ]
        assert own == ["tool.started", "tool.ended"]
        durable = await process.context.ledger.read(_told)
        told = [event.kind for event in durable if event.kind.startswith("announcement.")]
        assert told == ["announcement.posted", "announcement.delivered"]
        ended = [event.data["result"] for event in durable if event.kind == "run.ended"]
        assert ended == ["Found, and here it is, in full.", "So."]


def _told(tx: Transaction) -> list[Event]:
    return tx.find_events(limit=100)


async def test_an_announcement_tells_what_the_run_came_to_where_its_model_has_a_price(
    runtime: RuntimeFixture,
):
    """Shows: L021."""
    runtime.write_agent("main")
    door = tool_call_reply(("sessions_spawn", json.dumps({"task": "Look."})))
    prices: list[tuple[Callable[[Run], float | None], str]] = [
        (lambda _: 0.0125, " cost=$0.0125 "),
        (lambda _: None, ""),
    ]
    for price, words in prices:
        asks = {"Go.": [door, text_reply("Sent."), text_reply("Heard.")], "Look.": [text_reply("Found.")]}
        async with runtime.open(by_agent=asks, run_cost=price) as process:
            run = await process.submit("Go.", agent="main")
            await quiet(process)
            (told,) = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
            assert (words in told, "cost=" in told) == (True, bool(words))
