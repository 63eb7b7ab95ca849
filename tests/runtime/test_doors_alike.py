"""Doors are alike behind: one run, one delivery, one order of things, whatever the tool is called."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gates import gated
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.agents.definition_file import parse_preset
from retinue.domain.ceiling import Bounds
from retinue.domain.delivery import State as Delivered
from retinue.domain.event import Event
from retinue.domain.limits import Limits
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Notice, Returned
from retinue.interfaces import Tx
from retinue.testing.scripted_provider import calls, says


async def quiet(house: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""

    def step(tx: Tx) -> list[Run]:
        return sorted(tx.runs(), key=lambda run: run.id)

    while True:
        runs = await house.ports.ledger.look(step)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await house.engine.change()


BACKGROUND: dict[str, dict[str, Any]] = {
    "sessions_spawn": {"task": "Look."},
    "agents_message": {"agentId": "helper", "content": "Look.", "mode": "async"},
    "spawn_subagent": {"agentId": "helper", "prompt": "Look.", "returnMode": "background"},
}


@pytest.mark.parametrize("door", BACKGROUND)
async def test_every_door_to_the_background_tells_its_end_in_the_same_way(world: RuntimeFixture, door: str):
    """Shows: L030, L012, D022."""
    world.agent("main", "model: scripted:mine\n", "I am the one who asked.")
    world.agent("helper")
    main = [calls((door, json.dumps(BACKGROUND[door]))), says("Sent."), says("Heard.")]
    helper = [calls(("ponder", "{}")), says("Found, and here it is.")]
    gate = asyncio.Event()
    async with world.open(by_agent={"Go.": main, "Look.": helper}, tools=[gated(gate)]) as house:
        run = await house.ask("Go.", agent="main")
        while (await house.now(run)).status is not Status.WAITING:
            await house.engine.change()
        gate.set()
        parent, child = await quiet(house)
        assert (parent.status, parent.text, child.status) == (Status.DONE, "Heard.", Status.DONE)
        assert (child.ask.parent_run, child.root, child.depth, child.ask.door) == (run.id, run.id, 1, door)
        told = [each for each in await house.entries(run) if isinstance(each, Notice)]
        assert (len(told), "Found, and here it is." in told[0].text) == (1, True)

        def step(tx: Tx) -> list[Delivered]:
            return [each.state for each in tx.deliveries()]

        assert await house.ports.ledger.look(step) == [Delivered.DELIVERED]
        last = house.driver.asked[-1].request
        assert (last.model.full, "I am the one who asked." in last.system) == ("scripted:mine", True)


async def test_paths_that_a_call_allows_and_denies_stand_in_the_childs_own_file(world: RuntimeFixture):
    """Shows: A003, A015, A056."""
    world.agent("main")
    world.agent("helper")
    wish = {"preset": "helper", "description": "look", "prompt": "Look."}
    paths = {"allowed_paths": ["/srv/**"], "denied_paths": ["**/secret"]}
    main = [calls(("PersistentAgent", json.dumps(wish | paths))), says("Done.")]
    async with world.open(by_agent={"main": main, "helper": [says("x")]}) as house:
        await house.ask("Go.", agent="main")
        _, child = await quiet(house)
        own = parse_preset((Path(child.path).parent / "preset.md").read_text(), "x")
        assert own.paths is not None
        assert (own.paths.read, own.paths.deny) == (("/srv/**",), ("**/secret",))
    async with world.open() as house:
        assert child.session_id in [each.id for each in await house.store.sessions()]


async def test_what_a_run_is_about_to_do_is_told_before_it_is_done(world: RuntimeFixture):
    """Shows: A041, A045."""
    async with world.open(calls(("ls", "{}")), says("Done.")) as house:
        await house.run("Go.")
        told = [
            (event.kind, event.data.get("phase"))
            for event in house.events
            if event.kind in ("run.state", "tool.started", "tool.ended")
        ]
    wait, doing = ("run.state", "wait"), ("run.state", "tool")
    assert told == [wait, doing, ("tool.started", None), ("tool.ended", None), wait]


async def test_how_deep_agents_may_start_others_is_set_and_named_where_it_ends(world: RuntimeFixture):
    """Shows: L017, C03."""
    for name in ("a", "b", "c"):
        world.agent(name, "tools: [agent]\n")
    asks = {
        name: [calls(("agent", json.dumps({"agent_name": below, "task_prompt": "Go."}))), says("Back." * 9)]
        for name, below in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    async with world.open(by_agent=asks, limits=Limits(max_depth=1)) as house:
        await house.ask("Go.", agent="a")
        runs = await quiet(house)
        assert [(each.agent, each.depth) for each in runs] == [("a", 0), ("b", 1)]
        (refused,) = await house.results(runs[1])
        assert "1 is the limit" in refused.text


async def test_a_child_asked_once_more_brings_a_second_report(world: RuntimeFixture):
    """Shows: L027."""
    world.agent("main")
    world.agent("helper")
    first = calls(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))

    def more(request: Request) -> Reply:
        (result,) = [entry for entry in request.entries if isinstance(entry, Returned)]
        wish = {"agent_id": json.loads(result.text)["agent_id"], "message": "And then?"}
        return calls(("agent_ask", json.dumps(wish)))

    helper = [says("The first report, in full."), says("The second report, in full.")]
    by_agent = {"main": [first, more, says("Both.")], "helper": helper}
    async with world.open(by_agent=by_agent) as house:
        run = await house.ask("Go.", agent="main")
        await asyncio.wait_for(quiet(house), 30)
        one, two = [json.loads(result.text)["result"] for result in await house.results(run)]
        assert ("first report" in one, "second report" in two) == (True, True)


async def test_a_child_reads_neither_its_parents_conversation_nor_its_own_definition(world: RuntimeFixture):
    """Shows: X15, C16."""
    world.agent("main")
    world.agent("helper")

    def looks(request: Request) -> Reply:
        own = Path(next(each for each in world.folder.rglob("agents/*/preset.md")))
        parent = own.parents[2] / "session.md"
        wishes = [("read", json.dumps({"path": str(path)})) for path in (parent, own)]
        return calls(*wishes, ("write", json.dumps({"path": str(own), "content": "x"})))

    closed = (f"{world.folder}/sessions/**",)
    main = [calls(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."}))), says("Done.")]
    by_agent = {"main": main, "helper": [looks, says("Nothing could be read.")]}
    async with world.open(by_agent=by_agent, bounds=lambda: Bounds(closed=closed)) as house:
        await house.ask("Go.", agent="main")
        _, child = await quiet(house)
        assert [result.ok for result in await house.results(child)] == [False, False, False]


async def test_whoever_is_as_deep_as_may_be_is_shown_no_tool_that_starts_others(world: RuntimeFixture):
    for name in ("a", "b"):
        world.agent(name, "tools: [agent, ls]\n")
    first = calls(("agent", json.dumps({"agent_name": "b", "task_prompt": "Go."})))
    asks = {"a": [first, says("Back." * 9)], "b": [says("Here. " * 9)]}
    for deepest, shown in ((1, ["ls"]), (2, ["agent", "ls"])):
        async with world.open(by_agent=asks, limits=Limits(max_depth=deepest)) as house:
            await house.ask("Go.", agent="a")
            await quiet(house)
            _, below, _ = house.driver.asked
            assert [spec.name for spec in below.request.tools] == shown


async def test_the_same_call_to_a_door_for_ever_is_ended_though_each_waits_for_a_child(world: RuntimeFixture):
    """Shows: M16."""
    world.agent("main")
    world.agent("helper")
    again = calls(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    asks = {"main": [again] * 20, "helper": [says("Nothing new, as I have said before.")] * 20}
    async with world.open(by_agent=asks, limits=Limits(identical_calls=3)) as house:
        await house.ask("Go.", agent="main")
        runs = await quiet(house)
        (stuck,) = [run for run in runs if run.agent == "main"]
        assert (stuck.status, stuck.reason) == (Status.FAILED, "stuck")
        assert len(runs) == 1 + 3
        assert sum("this very call" in each.text for each in await house.results(stuck)) == 3


async def test_a_call_that_waited_for_a_child_tells_once_that_it_began_and_how_long_it_took(
    world: RuntimeFixture,
):
    """Shows: C039, B018."""
    world.agent("main")
    world.agent("helper")
    wish = calls(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    slow = [calls(("ponder", "{}")), says("Found, and here it is, in full.")]
    gate = asyncio.Event()
    async with world.open(
        by_agent={"main": [wish, says("So.")], "helper": slow}, tools=[gated(gate)]
    ) as house:
        run = await house.ask("Go.", agent="main")
        while not any(event.data.get("tool") == "ponder" for event in house.events):
            await house.engine.change()
        await asyncio.sleep(0.3)
        gate.set()
        await quiet(house)
        (result,) = await house.results(run)
        assert result.ms >= 300
        own = [
            event.kind for event in house.events if event.run == run.id and event.data.get("tool") == "agent"
        ]
        assert own == ["tool.started", "tool.ended"]
        durable = await house.ports.ledger.look(_told)
        told = [event.kind for event in durable if event.kind.startswith("announcement.")]
        assert told == ["announcement.posted", "announcement.delivered"]
        ended = [event.data["result"] for event in durable if event.kind == "run.ended"]
        assert ended == ["Found, and here it is, in full.", "So."]


def _told(tx: Tx) -> list[Event]:
    return tx.events(limit=100)


async def test_an_announcement_tells_what_the_run_came_to_where_its_model_has_a_price(world: RuntimeFixture):
    """Shows: L021."""
    world.agent("main")
    door = calls(("sessions_spawn", json.dumps({"task": "Look."})))
    prices: list[tuple[Callable[[Run], float | None], str]] = [
        (lambda _: 0.0125, " cost=$0.0125 "),
        (lambda _: None, ""),
    ]
    for price, words in prices:
        asks = {"Go.": [door, says("Sent."), says("Heard.")], "Look.": [says("Found.")]}
        async with world.open(by_agent=asks, cost=price) as house:
            run = await house.ask("Go.", agent="main")
            await quiet(house)
            (told,) = [each.text for each in await house.entries(run) if isinstance(each, Notice)]
            assert (words in told, "cost=" in told) == (True, bool(words))
