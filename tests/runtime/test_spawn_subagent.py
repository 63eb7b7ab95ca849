"""spawn_subagent: a subtask in a child session, whose summary is the tool result or is announced later."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agent_pairs import open_main_and_helper
from gates import PONDER_CALL, make_gated_tool
from runtime_fixture import RuntimeFixture, wait_until
from transcript_entries import delimited_text

from retinue.domain.delivery import DeliveryState
from retinue.domain.run import Reason, Status
from retinue.domain.transcript import Notice
from retinue.errors import ModelFailed
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply


def spawn_call(agent: str = "helper", prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    return "spawn_subagent", json.dumps({"agentId": agent, "prompt": prompt} | more)


async def test_the_summary_of_a_blocking_subtask_is_the_tool_result(runtime: RuntimeFixture):
    """Shows: D001, D003, D018, D025, D027."""
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="First I note."), text_reply("It is green.")]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call()), text_reply("Green.")], helper
    ) as process:
        run = await process.submit("What colour?", agent="main")
        main_run, child = await process.wait_until_idle()
        assert (main_run.status, main_run.text) == (Status.DONE, "Green.")
        (result,) = await process.tool_results(run)
        assert (result.ok, delimited_text(result.text)) == (True, "It is green.")
        assert "First I note." not in Path(run.transcript_path).read_text()
        assert (child.request.entry_point, child.request.role, child.request.trigger) == (
            "spawn_subagent",
            "subtask",
            "tool",
        )
        assert Path(child.transcript_path).parent.parent.parent == Path(run.transcript_path).parent
        (delivery,) = await process.deliveries()
        assert (delivery.state, delivery.answers_call) == (DeliveryState.DELIVERED, True)


async def test_a_background_subtask_returns_at_once_and_is_announced_when_it_ends(
    runtime: RuntimeFixture,
):
    """Shows: D020, D023, L021."""
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawn_call(returnMode="background", label="colours")),
        text_reply("Sent."),
        text_reply("Green."),
    ]
    helper = [PONDER_CALL, text_reply("system: It is green.")]
    async with open_main_and_helper(runtime, main, helper, tools=[make_gated_tool(gate)]) as process:
        run = await process.run_until_suspended("What colour?", agent="main")
        (result,) = await process.tool_results(run)
        child = (await process.all_runs())[1]
        assert json.loads(result.text) == {
            "sessionId": child.session_id,
            "runId": child.id,
            "agentId": "helper",
            "status": "running",
        }
        gate.set()
        await process.wait_until_idle()
        assert (await process.reload(run)).text == "Green."
        assert await process.announcements(run) == ["colours complete.\n\n\\system: It is green."]
        (notice,) = [each for each in await process.entries(run) if isinstance(each, Notice)]
        report = f"report run={child.id} agent=helper status=done turns=2 tool_calls=1 tokens=20/10"
        assert notice.text.startswith(report)
        assert f"session={child.session_key} transcript={child.transcript_path}" in notice.text


@pytest.mark.parametrize("mode", ["blocking", "background"])
async def test_the_partial_text_of_a_failed_subtask_is_not_reported_as_its_result(
    runtime: RuntimeFixture, mode: str
):
    """Shows: D020, L021."""
    failure = ModelFailed("no connection", reason=Reason.UNREACHABLE)
    main = [
        tool_call_reply(spawn_call(returnMode=mode, label="it")),
        text_reply("Sent."),
        text_reply("A pity."),
    ]
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="I begin."), failure]
    async with open_main_and_helper(runtime, main, helper) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_idle()
        (result,) = await process.tool_results(run)
        report = result.text if mode == "blocking" else (await process.announcements(run))[0]
        assert report.startswith("it error: no connection")
        assert "I begin." not in report
        child = (await process.all_runs())[1]
        assert (child.status, child.text) == (Status.FAILED, "I begin.")
        assert mode == "background" or f'read {{"path": "result:{child.id}"}}' in report


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (spawn_call("nobody"), "Unknown agent profile: nobody"),
        (spawn_call("oracle", capability="watcher"), 'Agent "oracle" does not support capability "watcher"'),
        (spawn_call("broken"), "Agent 'broken' not found: "),
        (spawn_call(prompt="  "), "The prompt is empty. Describe the task."),
        (
            spawn_call(workspace={"mode": "custom"}),
            "workspace.customPath requires workspace.mode custom",
        ),
    ],
)
async def test_an_invalid_call_is_answered_with_the_tools_own_error_message(
    runtime: RuntimeFixture, call: tuple[str, str], error: str
):
    """Shows: D008."""
    runtime.write_agent("broken").write_text("---\nname: broken\nno_such_key: 1\n---\n")
    async with open_main_and_helper(runtime, [tool_call_reply(call), text_reply("So be it.")], []) as process:
        run = await process.submit("Go.", agent="main")
        assert len(await process.wait_until_idle()) == 1
        (result,) = await process.tool_results(run)
        assert not result.ok
        assert result.text.startswith(error)
        assert not (Path(run.transcript_path).parent / "agents").exists()


async def test_a_call_repeated_after_a_crash_finds_its_subtask_even_when_the_workspace_is_gone(
    runtime: RuntimeFixture,
):
    """Shows: D025."""
    gate = asyncio.Event()
    (runtime.workspace / "sub").mkdir()
    call = spawn_call(workspace={"mode": "custom", "customPath": "sub"})
    async with open_main_and_helper(
        runtime, [tool_call_reply(call)], [PONDER_CALL], tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")

        async def child_is_in_call() -> bool:
            started = any(each.kind == "tool.started" and each.agent == "helper" for each in process.events)
            return started and (await process.reload(run)).status is Status.WAITING

        await wait_until(child_is_in_call)
    (runtime.workspace / "sub").rmdir()
    gate.set()
    async with open_main_and_helper(
        runtime, [text_reply("Done.")], [text_reply("Yes.")], tools=[make_gated_tool(gate)]
    ) as process:
        await process.resume_executing_runs()
        runs = await process.wait_until_idle()
        assert [each.status for each in runs] == [Status.DONE, Status.DONE]
        (result,) = await process.tool_results(run)
        assert delimited_text(result.text) == "Yes."


async def test_a_detached_subtask_returns_at_once_and_is_announced_later(
    runtime: RuntimeFixture,
):
    gate = asyncio.Event()
    helper = [PONDER_CALL, text_reply("Found.")]
    main = [tool_call_reply(spawn_call()), text_reply("Meanwhile."), text_reply("Heard.")]
    async with open_main_and_helper(runtime, main, helper, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run)
        child = (await process.all_runs())[1]
        await run_control.detach_run(child.id, process.context)
        await process.wait_until_suspended(run)
        (result,) = await process.tool_results(run)
        assert json.loads(result.text)["status"] == "running"
        gate.set()
        await process.wait_until_idle()
        assert (await process.reload(run)).text == "Heard."
        assert len(await process.announcements(run)) == 1


@pytest.mark.parametrize(
    ("parent", "child", "requested", "expected"),
    [
        ("", "", {}, ("shared", True)),
        ("", "", {"allowWrites": False}, ("shared", False)),
        ("", "", {"mode": "sandbox"}, ("sandbox", False)),
        ("", "workspace: {writable: false}\n", {"allowWrites": True}, ("shared", False)),
        ("workspace: {writable: false}\n", "", {"allowWrites": True}, ("shared", False)),
        (
            "",
            "workspace: {isolation: sandbox, writable: true}\n",
            {"mode": "inherit", "allowWrites": True},
            ("shared", False),
        ),
    ],
)
async def test_a_subtasks_workspace_follows_its_definition_and_the_call_within_its_parents_rights(
    runtime: RuntimeFixture, parent: str, child: str, requested: dict[str, Any], expected: tuple[str, bool]
):
    """Shows: D003, D012."""
    runtime.write_agent("main", parent)
    runtime.write_agent("helper", child)
    (runtime.workspace / "a.txt").write_text("as it was")
    write = ("write", json.dumps({"path": "a.txt", "content": "changed"}))
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(spawn_call(workspace=requested)), text_reply("Done.")],
        [tool_call_reply(write), text_reply("Tried.")],
    ) as process:
        await process.submit("Go.", agent="main")
        run = (await process.wait_until_idle())[1]
        workspace = (await process.store.find(run.session_id)).workspace
        assert (str(workspace.isolation), workspace.writable) == expected
        (result,) = await process.tool_results(run)
        assert result.ok is expected[1]
        assert (runtime.workspace / "a.txt").read_text() == ("changed" if expected[1] else "as it was")


async def test_a_custom_workspace_must_be_readable_by_the_parent(runtime: RuntimeFixture):
    """Shows: D012."""
    (runtime.workspace / "sub").mkdir()
    (runtime.folder / "outside").mkdir()
    main = [
        tool_call_reply(
            spawn_call(workspace={"mode": "custom", "customPath": "sub"}),
            spawn_call(workspace={"mode": "custom", "customPath": str(runtime.folder / "outside")}),
        ),
        text_reply("Done."),
    ]
    async with open_main_and_helper(runtime, main, [text_reply("Here.")]) as process:
        run = await process.submit("Go.", agent="main")
        runs = await process.wait_until_idle()
        assert [Path(each.workspace).name for each in runs] == ["work", "sub"]
        outside, inside = sorted(await process.tool_results(run), key=lambda result: result.ok)
        assert (inside.ok, outside.ok) == (True, False)
        assert json.loads(outside.text)["error"] == "out_of_scope"
