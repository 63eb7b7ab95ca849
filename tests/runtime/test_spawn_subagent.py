"""spawn_subagent: a subtask in a conversation of its own; its summary is the answer, or comes by itself."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gates import gated
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


async def all_runs(house: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await house.ports.ledger.read(step)


async def outbox(house: RuntimeProcess) -> list[Delivery]:
    def step(tx: Transaction) -> list[Delivery]:
        return tx.find_deliveries()

    return await house.ports.ledger.read(step)


async def quiet(house: RuntimeProcess) -> list[Run]:
    """Until nothing goes on any more."""
    while True:
        runs = await all_runs(house)
        if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
            return runs
        await house.engine.wait_for_change()


async def announced(house: RuntimeProcess, run: Run) -> list[str]:
    found = await house.entries(run)
    return [words(each.text) for each in found if isinstance(each, Notice) and each.kind == "announcement"]


async def soon(true: Callable[[], Awaitable[object]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


@asynccontextmanager
async def family(
    world: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep], **more: Any
) -> AsyncGenerator[RuntimeProcess]:
    for name in ("main", "helper"):
        if not (world.folder / "agents" / f"{name}.md").exists():
            world.agent(name)
    async with world.open(by_agent={"main": main, "helper": helper}, **more) as house:
        yield house


async def test_a_subtask_is_waited_for_and_its_summary_is_the_answer(world: RuntimeFixture):
    """Shows: D001, D003, D018, D025, D027."""
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="First I note."), text_reply("It is green.")]
    async with family(world, [tool_call_reply(spawns()), text_reply("Green.")], helper) as house:
        run = await house.ask("What colour?", agent="main")
        main_run, child = await quiet(house)
        assert (main_run.status, main_run.text) == (Status.DONE, "Green.")
        (result,) = await house.results(run)
        assert (result.ok, words(result.text)) == (True, "It is green.")
        assert "First I note." not in Path(run.transcript_path).read_text()
        assert (child.request.door, child.request.role, child.request.trigger) == (
            "spawn_subagent",
            "subtask",
            "tool",
        )
        assert Path(child.transcript_path).parent.parent.parent == Path(run.transcript_path).parent
        (delivery,) = await outbox(house)
        assert (delivery.state, delivery.answers) == (Delivered.DELIVERED, True)


async def test_a_subtask_in_the_background_is_under_way_at_once_and_announced_at_its_end(
    world: RuntimeFixture,
):
    """Shows: D020, D023, L021."""
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawns(returnMode="background", label="colours")),
        text_reply("Sent."),
        text_reply("Green."),
    ]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("system: It is green.")]
    async with family(world, main, helper, tools=[gated(gate)]) as house:
        run = await house.ask("What colour?", agent="main")

        async def aside() -> bool:
            return (await house.now(run)).is_suspended

        await soon(aside)
        (result,) = await house.results(run)
        child = (await all_runs(house))[1]
        assert json.loads(result.text) == {
            "sessionId": child.session_id,
            "runId": child.id,
            "agentId": "helper",
            "status": "running",
        }
        gate.set()
        await quiet(house)
        assert (await house.now(run)).text == "Green."
        assert await announced(house, run) == ["colours complete.\n\n\\system: It is green."]
        (notice,) = [each for each in await house.entries(run) if isinstance(each, Notice)]
        facts = f"report run={child.id} agent=helper status=done turns=2 tool_calls=1 tokens=20/10"
        assert notice.text.startswith(facts)
        assert f"session={child.session_key} transcript={child.transcript_path}" in notice.text


@pytest.mark.parametrize("mode", ["blocking", "background"])
async def test_what_a_subtask_said_before_it_failed_is_not_told_as_its_result(
    world: RuntimeFixture, mode: str
):
    """Shows: D020, L021."""
    gone = ModelFailed("no connection", reason=Reason.UNREACHABLE)
    main = [tool_call_reply(spawns(returnMode=mode, label="it")), text_reply("Sent."), text_reply("A pity.")]
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="I begin."), gone]
    async with family(world, main, helper) as house:
        run = await house.ask("Go.", agent="main")
        await quiet(house)
        (result,) = await house.results(run)
        told = result.text if mode == "blocking" else (await announced(house, run))[0]
        assert told.startswith("it error: no connection")
        assert "I begin." not in told
        child = (await all_runs(house))[1]
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
    world: RuntimeFixture, wish: tuple[str, str], said: str
):
    """Shows: D008."""
    world.agent("broken").write_text("---\nname: broken\nno_such_key: 1\n---\n")
    async with family(world, [tool_call_reply(wish), text_reply("So be it.")], []) as house:
        run = await house.ask("Go.", agent="main")
        assert len(await quiet(house)) == 1
        (result,) = await house.results(run)
        assert not result.ok
        assert result.text.startswith(said)
        assert not (Path(run.transcript_path).parent / "agents").exists()


async def test_a_call_made_again_after_a_crash_finds_its_subtask_though_the_folder_is_gone(
    world: RuntimeFixture,
):
    """Shows: D025."""
    gate = asyncio.Event()
    (world.workspace / "sub").mkdir()
    wish = spawns(workspace={"mode": "custom", "customPath": "sub"})
    async with family(
        world, [tool_call_reply(wish)], [tool_call_reply(("ponder", "{}"))], tools=[gated(gate)]
    ) as house:
        run = await house.ask("Go.", agent="main")

        async def at_work() -> bool:
            started = any(each.kind == "tool.started" and each.agent == "helper" for each in house.events)
            return started and (await house.now(run)).status is Status.WAITING

        await soon(at_work)
    (world.workspace / "sub").rmdir()
    gate.set()
    async with family(world, [text_reply("Done.")], [text_reply("Yes.")], tools=[gated(gate)]) as house:
        for each in await all_runs(house):
            if each.status is not Status.WAITING:
                await house.resume(each)
        runs = await quiet(house)
        assert [each.status for each in runs] == [Status.DONE, Status.DONE]
        (result,) = await house.results(run)
        assert words(result.text) == "Yes."


async def test_a_subtask_that_a_person_detached_answers_at_once_and_is_announced_later(world: RuntimeFixture):
    gate = asyncio.Event()
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Found.")]
    main = [tool_call_reply(spawns()), text_reply("Meanwhile."), text_reply("Heard.")]
    async with family(world, main, helper, tools=[gated(gate)]) as house:
        run = await house.ask("Go.", agent="main")

        async def begun() -> bool:
            return len(await all_runs(house)) > 1 and (await house.now(run)).status is Status.WAITING

        await soon(begun)
        child = (await all_runs(house))[1]
        await run_control.detach_run(child.id, house.ports)

        async def spoke() -> bool:
            return (await house.now(run)).is_suspended

        await soon(spoke)
        (result,) = await house.results(run)
        assert json.loads(result.text)["status"] == "running"
        gate.set()
        await quiet(house)
        assert (await house.now(run)).text == "Heard."
        assert len(await announced(house, run)) == 1


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
    world: RuntimeFixture, parent: str, own: str, wish: dict[str, Any], recorded: tuple[str, bool]
):
    """Shows: D003, D012."""
    world.agent("main", parent)
    world.agent("helper", own)
    (world.workspace / "a.txt").write_text("as it was")
    write = ("write", json.dumps({"path": "a.txt", "content": "changed"}))
    async with family(
        world,
        [tool_call_reply(spawns(workspace=wish)), text_reply("Done.")],
        [tool_call_reply(write), text_reply("Tried.")],
    ) as house:
        await house.ask("Go.", agent="main")
        child = (await quiet(house))[1]
        place = (await house.store.find(child.session_id)).workspace
        assert (str(place.isolation), place.writable) == recorded
        (tried,) = await house.results(child)
        assert tried.ok is recorded[1]
        assert (world.workspace / "a.txt").read_text() == ("changed" if recorded[1] else "as it was")


async def test_a_folder_of_its_own_choice_is_one_that_the_parent_may_read(world: RuntimeFixture):
    """Shows: D012."""
    (world.workspace / "sub").mkdir()
    (world.folder / "outside").mkdir()
    main = [
        tool_call_reply(
            spawns(workspace={"mode": "custom", "customPath": "sub"}),
            spawns(workspace={"mode": "custom", "customPath": str(world.folder / "outside")}),
        ),
        text_reply("Done."),
    ]
    async with family(world, main, [text_reply("Here.")]) as house:
        run = await house.ask("Go.", agent="main")
        runs = await quiet(house)
        assert [Path(each.workspace).name for each in runs] == ["work", "sub"]
        outside, inside = sorted(await house.results(run), key=lambda result: result.ok)
        assert (inside.ok, outside.ok) == (True, False)
        assert json.loads(outside.text)["error"] == "out_of_scope"
