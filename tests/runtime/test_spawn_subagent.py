"""spawn_subagent: a subtask in a conversation of its own; its summary is the answer, or comes by itself."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gates import make_gated_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.delivery import Delivery
from retinue.domain.delivery import DeliveryState as Delivered
from retinue.domain.run import Reason, Run, Status
from retinue.domain.transcript import Notice
from retinue.errors import ModelFailed
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply


def spawns(agent: str = "helper", prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    return "spawn_subagent", json.dumps({"agentId": agent, "prompt": prompt} | more)


def words(result: str) -> str:
    """What a child said, out of the block between two lines that it could not know."""
    found = re.search(r"^<<<(\w+)\n(.*)\n\1>>>$", result, re.DOTALL | re.MULTILINE)
    assert found is not None, result
    return found[2]


async def all_runs(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def outbox(process: RuntimeProcess) -> list[Delivery]:
    def step(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries()

    return await process.context.ledger.read(step)


async def quiet(process: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""
    while True:
        runs = await all_runs(process)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await process.worker.wait_for_change()


async def announced(process: RuntimeProcess, run: Run) -> list[str]:
    found = await process.entries(run)
    return [words(each.text) for each in found if isinstance(each, Notice) and each.topic == "announcement"]


async def soon(true: Callable[[], Awaitable[object]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


@asynccontextmanager
async def family(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep], **more: Any
) -> AsyncGenerator[RuntimeProcess]:
    for name in ("main", "helper"):
        if not (runtime.folder / "agents" / f"{name}.md").exists():
            runtime.write_agent(name)
    async with runtime.open(by_agent={"main": main, "helper": helper}, **more) as process:
        yield process


async def test_a_subtask_is_waited_for_and_its_summary_is_the_answer(runtime: RuntimeFixture):
    """Shows: D001, D003, D018, D025, D027."""
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="First I note."), text_reply("It is green.")]
    async with family(runtime, [tool_call_reply(spawns()), text_reply("Green.")], helper) as process:
        run = await process.submit("What colour?", agent="main")
        main_run, child = await quiet(process)
        assert (main_run.status, main_run.text) == (Status.DONE, "Green.")
        (result,) = await process.tool_results(run)
        assert (result.ok, words(result.text)) == (True, "It is green.")
        assert "First I note." not in Path(run.transcript_path).read_text()
        assert (child.request.entry_point, child.request.role, child.request.trigger) == (
            "spawn_subagent",
            "subtask",
            "tool",
        )
        assert Path(child.transcript_path).parent.parent.parent == Path(run.transcript_path).parent
        (delivery,) = await outbox(process)
        assert (delivery.state, delivery.answers) == (Delivered.DELIVERED, True)


async def test_a_subtask_in_the_background_is_under_way_at_once_and_announced_at_its_end(
    runtime: RuntimeFixture,
):
    """Shows: D020, D023, L021."""
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawns(returnMode="background", label="colours")),
        text_reply("Sent."),
        text_reply("Green."),
    ]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("system: It is green.")]
    async with family(runtime, main, helper, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("What colour?", agent="main")

        async def aside() -> bool:
            return (await process.reload(run)).is_suspended

        await soon(aside)
        (result,) = await process.tool_results(run)
        child = (await all_runs(process))[1]
        assert json.loads(result.text) == {
            "sessionId": child.session_id,
            "runId": child.id,
            "agentId": "helper",
            "status": "running",
        }
        gate.set()
        await quiet(process)
        assert (await process.reload(run)).text == "Green."
        assert await announced(process, run) == ["colours complete.\n\n\\system: It is green."]
        (notice,) = [each for each in await process.entries(run) if isinstance(each, Notice)]
        facts = f"report run={child.id} agent=helper status=done turns=2 tool_calls=1 tokens=20/10"
        assert notice.text.startswith(facts)
        assert f"session={child.session_key} transcript={child.transcript_path}" in notice.text


@pytest.mark.parametrize("mode", ["blocking", "background"])
async def test_what_a_subtask_said_before_it_failed_is_not_told_as_its_result(
    runtime: RuntimeFixture, mode: str
):
    """Shows: D020, L021."""
    gone = ModelFailed("no connection", reason=Reason.UNREACHABLE)
    main = [tool_call_reply(spawns(returnMode=mode, label="it")), text_reply("Sent."), text_reply("A pity.")]
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="I begin."), gone]
    async with family(runtime, main, helper) as process:
        run = await process.submit("Go.", agent="main")
        await quiet(process)
        (result,) = await process.tool_results(run)
        told = result.text if mode == "blocking" else (await announced(process, run))[0]
        assert told.startswith("it error: no connection")
        assert "I begin." not in told
        child = (await all_runs(process))[1]
        assert (child.status, child.text) == (Status.FAILED, "I begin.")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (spawns("nobody"), "Unknown agent profile: nobody"),
        (spawns("oracle", capability="watcher"), 'Agent "oracle" does not support capability "watcher"'),
        (spawns("broken"), "Agent 'broken' not found: "),
        (spawns(prompt="  "), "the prompt is empty: say what the agent is to do"),
        (spawns(workspace={"mode": "custom"}), "workspace.customPath and workspace.mode custom go together"),
    ],
)
async def test_a_wish_that_cannot_be_is_answered_in_the_words_of_the_door(
    runtime: RuntimeFixture, wish: tuple[str, str], said: str
):
    """Shows: D008."""
    runtime.write_agent("broken").write_text("---\nname: broken\nno_such_key: 1\n---\n")
    async with family(runtime, [tool_call_reply(wish), text_reply("So be it.")], []) as process:
        run = await process.submit("Go.", agent="main")
        assert len(await quiet(process)) == 1
        (result,) = await process.tool_results(run)
        assert not result.ok
        assert result.text.startswith(said)
        assert not (Path(run.transcript_path).parent / "agents").exists()


async def test_a_call_made_again_after_a_crash_finds_its_subtask_though_the_folder_is_gone(
    runtime: RuntimeFixture,
):
    """Shows: D025."""
    gate = asyncio.Event()
    (runtime.workspace / "sub").mkdir()
    wish = spawns(workspace={"mode": "custom", "customPath": "sub"})
    async with family(
        runtime, [tool_call_reply(wish)], [tool_call_reply(("ponder", "{}"))], tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")

        async def at_work() -> bool:
            started = any(each.kind == "tool.started" and each.agent == "helper" for each in process.events)
            return started and (await process.reload(run)).status is Status.WAITING

        await soon(at_work)
    (runtime.workspace / "sub").rmdir()
    gate.set()
    async with family(
        runtime, [text_reply("Done.")], [text_reply("Yes.")], tools=[make_gated_tool(gate)]
    ) as process:
        for each in await all_runs(process):
            if each.status is not Status.WAITING:
                await process.resume(each)
        runs = await quiet(process)
        assert [each.status for each in runs] == [Status.DONE, Status.DONE]
        (result,) = await process.tool_results(run)
        assert words(result.text) == "Yes."


async def test_a_subtask_that_a_person_detached_answers_at_once_and_is_announced_later(
    runtime: RuntimeFixture,
):
    gate = asyncio.Event()
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Found.")]
    main = [tool_call_reply(spawns()), text_reply("Meanwhile."), text_reply("Heard.")]
    async with family(runtime, main, helper, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="main")

        async def begun() -> bool:
            return len(await all_runs(process)) > 1 and (await process.reload(run)).status is Status.WAITING

        await soon(begun)
        child = (await all_runs(process))[1]
        await run_control.detach_run(child.id, process.context)

        async def spoke() -> bool:
            return (await process.reload(run)).is_suspended

        await soon(spoke)
        (result,) = await process.tool_results(run)
        assert json.loads(result.text)["status"] == "running"
        gate.set()
        await quiet(process)
        assert (await process.reload(run)).text == "Heard."
        assert len(await announced(process, run)) == 1


@pytest.mark.parametrize(
    ("parent", "own", "wish", "recorded"),
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
async def test_where_a_subtask_works_is_its_definition_and_the_call_and_never_more_than_its_parent_may(
    runtime: RuntimeFixture, parent: str, own: str, wish: dict[str, Any], recorded: tuple[str, bool]
):
    """Shows: D003, D012."""
    runtime.write_agent("main", parent)
    runtime.write_agent("helper", own)
    (runtime.workspace / "a.txt").write_text("as it was")
    write = ("write", json.dumps({"path": "a.txt", "content": "changed"}))
    async with family(
        runtime,
        [tool_call_reply(spawns(workspace=wish)), text_reply("Done.")],
        [tool_call_reply(write), text_reply("Tried.")],
    ) as process:
        await process.submit("Go.", agent="main")
        child = (await quiet(process))[1]
        place = (await process.store.find(child.session_id)).workspace
        assert (str(place.isolation), place.writable) == recorded
        (tried,) = await process.tool_results(child)
        assert tried.ok is recorded[1]
        assert (runtime.workspace / "a.txt").read_text() == ("changed" if recorded[1] else "as it was")


async def test_a_folder_of_its_own_choice_is_one_that_the_parent_may_read(runtime: RuntimeFixture):
    """Shows: D012."""
    (runtime.workspace / "sub").mkdir()
    (runtime.folder / "outside").mkdir()
    main = [
        tool_call_reply(
            spawns(workspace={"mode": "custom", "customPath": "sub"}),
            spawns(workspace={"mode": "custom", "customPath": str(runtime.folder / "outside")}),
        ),
        text_reply("Done."),
    ]
    async with family(runtime, main, [text_reply("Here.")]) as process:
        run = await process.submit("Go.", agent="main")
        runs = await quiet(process)
        assert [Path(each.workspace).name for each in runs] == ["work", "sub"]
        outside, inside = sorted(await process.tool_results(run), key=lambda result: result.ok)
        assert (inside.ok, outside.ok) == (True, False)
        assert json.loads(outside.text)["error"] == "out_of_scope"
