"""Delegation tools: what all of them have in common, whatever the tool is called."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gates import PONDER_CALL, make_gated_tool
from runtime_fixture import RuntimeFixture

from retinue.agents.definition_file import parse_preset
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.delivery import DeliveryState
from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply, ModelRequest
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Notice, ToolResult
from retinue.testing.scripted_provider import text_reply, tool_call_reply

BACKGROUND_CALLS: dict[str, dict[str, Any]] = {
    "sessions_spawn": {"task": "Look."},
    "agents_message": {"agentId": "helper", "content": "Look.", "mode": "async"},
    "spawn_subagent": {"agentId": "helper", "prompt": "Look.", "returnMode": "background"},
}


@pytest.mark.parametrize("tool_name", BACKGROUND_CALLS)
async def test_every_background_call_is_announced_in_the_same_way(runtime: RuntimeFixture, tool_name: str):
    """Shows: L030, L012, D022."""
    runtime.write_agent("main", "model: scripted:mine\n", "I am the one who asked.")
    runtime.write_agent("helper")
    script = [
        tool_call_reply((tool_name, json.dumps(BACKGROUND_CALLS[tool_name]))),
        text_reply("Sent."),
        text_reply("Heard."),
    ]
    helper = [PONDER_CALL, text_reply("Found, and here it is.")]
    gate = asyncio.Event()
    async with runtime.open(
        by_agent={"Go.": script, "Look.": helper}, tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")
        while (await process.reload(run)).status not in (Status.WAITING, Status.DONE):
            await process.worker.wait_for_change()
        gate.set()
        parent, child, *callbacks = await process.wait_until_idle()
        # A message is independent: a later run of the same session reads the response.
        last = callbacks[0] if tool_name == "agents_message" else parent
        assert (last.session_id, last.text) == (parent.session_id, "Heard.")
        assert (parent.status, last.status, child.status) == (Status.DONE, Status.DONE, Status.DONE)
        assert (child.request.parent_run, child.root_id, child.depth, child.request.entry_point) == (
            run.id,
            run.id,
            1,
            tool_name,
        )
        notices = [each for each in await process.entries(run) if isinstance(each, Notice)]
        assert (len(notices), "Found, and here it is." in notices[0].text) == (1, True)
        assert [each.state for each in await process.deliveries()] == [DeliveryState.DELIVERED]
        last_request = process.provider.requests[-1].request
        assert (last_request.model.full_name, "I am the one who asked." in last_request.system) == (
            "scripted:mine",
            True,
        )


async def test_allowed_and_denied_paths_of_a_call_are_saved_in_the_childs_preset(runtime: RuntimeFixture):
    """Shows: A003, A015, A056."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    arguments = {"preset": "helper", "description": "look", "prompt": "Look."}
    paths = {"allowed_paths": ["/srv/**"], "denied_paths": ["**/secret"]}
    main = [tool_call_reply(("PersistentAgent", json.dumps(arguments | paths))), text_reply("Done.")]
    async with runtime.open(by_agent={"main": main, "helper": [text_reply("x")]}) as process:
        await process.submit("Go.", agent="main")
        _, child = await process.wait_until_idle()
        preset = parse_preset((Path(child.transcript_path).parent / "preset.md").read_text(), "x")
        assert preset.paths is not None
        assert preset.paths.read == ("/srv/**",)
        assert preset.paths.deny == (*DEFAULT_DENIED_PATHS, "**/secret")
    async with runtime.open() as process:
        assert child.session_id in [each.id for each in await process.store.sessions()]


async def test_the_phase_of_a_run_is_emitted_before_its_calls_start(runtime: RuntimeFixture):
    """Shows: A041, A045."""
    async with runtime.open(tool_call_reply(("ls", "{}")), text_reply("Done.")) as process:
        await process.run("Go.")
        events = [
            (event.kind, event.data.get("phase"))
            for event in process.events
            if event.kind in ("run.state", "tool.started", "tool.ended")
        ]
    wait, calling_tool = ("run.state", "wait"), ("run.state", "tool")
    assert events == [wait, calling_tool, ("tool.started", None), ("tool.ended", None), wait]


async def test_max_depth_limits_delegation_and_the_refusal_names_it(runtime: RuntimeFixture):
    """Shows: L017, C03."""
    for name in ("a", "b", "c"):
        runtime.write_agent(name, "tools: [agent]\n")
    by_agent = {
        name: [
            tool_call_reply(("agent", json.dumps({"agent_name": below, "task_prompt": "Go."}))),
            text_reply("Back." * 9),
        ]
        for name, below in (("a", "b"), ("b", "c"), ("c", "a"))
    }
    async with runtime.open(by_agent=by_agent, limits=Limits(max_depth=1)) as process:
        await process.submit("Go.", agent="a")
        runs = await process.wait_until_idle()
        assert [(each.agent, each.depth) for each in runs] == [("a", 0), ("b", 1)]
        (result,) = await process.tool_results(runs[1])
        assert "maximum depth is 1" in result.text


async def test_a_follow_up_question_to_a_child_returns_a_second_report(runtime: RuntimeFixture):
    """Shows: L027."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    spawn = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))

    def ask_child(request: ModelRequest) -> ModelReply:
        (result,) = [entry for entry in request.entries if isinstance(entry, ToolResult)]
        arguments = {"agent_id": json.loads(result.text)["agent_id"], "message": "And then?"}
        return tool_call_reply(("agent_ask", json.dumps(arguments)))

    helper = [text_reply("The first report, in full."), text_reply("The second report, in full.")]
    by_agent = {"main": [spawn, ask_child, text_reply("Both.")], "helper": helper}
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.submit("Go.", agent="main")
        await asyncio.wait_for(process.wait_until_idle(), 30)
        first_report, second_report = [
            json.loads(result.text)["result"] for result in await process.tool_results(run)
        ]
        assert ("first report" in first_report, "second report" in second_report) == (True, True)


async def test_a_child_cannot_read_its_parents_transcript_or_its_own_preset(runtime: RuntimeFixture):
    """Shows: X15, C16."""
    runtime.write_agent("main")
    runtime.write_agent("helper")

    def read_protected_files(request: ModelRequest) -> ModelReply:
        preset = Path(next(each for each in runtime.folder.rglob("agents/*/preset.md")))
        parent = preset.parents[2] / "session.md"
        calls = [("read", json.dumps({"path": str(path)})) for path in (parent, preset)]
        return tool_call_reply(*calls, ("write", json.dumps({"path": str(preset), "content": "x"})))

    closed = (f"{runtime.folder}/sessions/**",)
    main = [
        tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."}))),
        text_reply("Done."),
    ]
    by_agent = {"main": main, "helper": [read_protected_files, text_reply("Nothing could be read.")]}
    async with runtime.open(
        by_agent=by_agent, operator_policy=lambda: OperatorPolicy(retinue_paths=closed)
    ) as process:
        await process.submit("Go.", agent="main")
        _, child = await process.wait_until_idle()
        assert [result.ok for result in await process.tool_results(child)] == [False, False, False]


async def test_an_agent_at_the_depth_limit_has_no_delegation_tools(runtime: RuntimeFixture):
    for name in ("a", "b"):
        runtime.write_agent(name, "tools: [agent, ls]\n")
    spawn = tool_call_reply(("agent", json.dumps({"agent_name": "b", "task_prompt": "Go."})))
    by_agent = {"a": [spawn, text_reply("Back." * 9)], "b": [text_reply("Here. " * 9)]}
    for max_depth, expected in ((1, ["ls"]), (2, ["agent", "ls"])):
        async with runtime.open(by_agent=by_agent, limits=Limits(max_depth=max_depth)) as process:
            await process.submit("Go.", agent="a")
            await process.wait_until_idle()
            _, child_request, _ = process.provider.requests
            assert [spec.name for spec in child_request.request.tools] == expected


async def test_loop_detection_ends_a_run_that_repeats_the_same_delegation(
    runtime: RuntimeFixture,
):
    """Shows: M16."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    spawn = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    by_agent = {"main": [spawn] * 20, "helper": [text_reply("Nothing new, as I have said before.")] * 20}
    async with runtime.open(by_agent=by_agent, limits=Limits(identical_calls=3)) as process:
        await process.submit("Go.", agent="main")
        runs = await process.wait_until_idle()
        (stuck,) = [run for run in runs if run.agent == "main"]
        assert (stuck.status, stuck.reason) == (Status.FAILED, "stuck")
        assert len(runs) == 1 + 3
        assert sum("this same call" in each.text for each in await process.tool_results(stuck)) == 3


async def test_a_call_that_waits_for_a_child_emits_one_start_and_its_whole_duration(
    runtime: RuntimeFixture,
):
    """Shows: C039, B018."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    spawn = tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": "Look."})))
    helper = [PONDER_CALL, text_reply("Found, and here it is, in full.")]
    gate = asyncio.Event()
    async with runtime.open(
        by_agent={"main": [spawn, text_reply("So.")], "helper": helper}, tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")
        while not any(event.data.get("tool") == "ponder" for event in process.events):
            await process.worker.wait_for_change()
        await asyncio.sleep(0.3)
        gate.set()
        await process.wait_until_idle()
        (result,) = await process.tool_results(run)
        assert result.duration_ms >= 300
        kinds = [
            event.kind
            for event in process.events
            if event.run == run.id and event.data.get("tool") == "agent"
        ]
        assert kinds == ["tool.started", "tool.ended"]
        stored_events = await process.context.ledger.read(lambda tx: tx.find_events(limit=100))
        announcement_kinds = [event.kind for event in stored_events if event.kind.startswith("announcement.")]
        assert announcement_kinds == ["announcement.posted", "announcement.delivered"]
        results = [event.data["result"] for event in stored_events if event.kind == "run.ended"]
        assert results == ["Found, and here it is, in full.", "So."]


async def test_an_announcement_contains_the_cost_if_the_model_has_a_price(
    runtime: RuntimeFixture,
):
    """Shows: L021."""
    runtime.write_agent("main")
    spawn = tool_call_reply(("sessions_spawn", json.dumps({"task": "Look."})))
    prices: list[tuple[Callable[[Run], float | None], str]] = [
        (lambda _: 0.0125, " cost=$0.0125 "),
        (lambda _: None, ""),
    ]
    for price, cost in prices:
        by_agent = {
            "Go.": [spawn, text_reply("Sent."), text_reply("Heard.")],
            "Look.": [text_reply("Found.")],
        }
        async with runtime.open(by_agent=by_agent, run_cost=price) as process:
            run = await process.submit("Go.", agent="main")
            await process.wait_until_idle()
            (text,) = [each.text for each in await process.entries(run) if isinstance(each, Notice)]
            assert (cost in text, "cost=" in text) == (True, bool(cost))
