"""Doors: a call that starts another agent waits for it without a slot, and its answer comes back once."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.errors import ModelFailed
from retinue.interfaces import Tool, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.tools.define import tool


def wish(preset: str = "helper", prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    said = {"preset": preset, "description": "look around", "prompt": prompt} | more
    return "PersistentAgent", json.dumps(said)


def words(result: str) -> str:
    """What a child said, out of the block between two lines that it could not know."""
    found = re.search(r"^<<<(\w+)\n(.*)\n\1>>>$", result, re.DOTALL | re.MULTILINE)
    assert found is not None, result
    return found[2]


async def over(process: RuntimeProcess, run: Run) -> Run:
    """Until it has ended, or nothing of its tree goes on."""
    while True:
        await process.worker.wait(run.id)
        now = await process.reload(run)
        moving = [each for each in await tree(process) if each.status in (Status.QUEUED, Status.RUNNING)]
        if now.status.is_final or not moving:
            return now
        await asyncio.sleep(0.005)


async def tree(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.created_at)

    return await process.context.ledger.read(step)


async def asked_ever(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals()

    return await process.context.ledger.read(step)


async def pending(process: RuntimeProcess) -> list[Approval]:
    return [each for each in await asked_ever(process) if each.state is ApprovalState.PENDING]


def ponders(gate: asyncio.Event) -> Tool:
    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await gate.wait()
        return "so"

    return ponder


async def waits(process: RuntimeProcess, run: Run) -> bool:
    return (await process.reload(run)).waiting_for is WaitReason.CHILD


async def soon(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


@asynccontextmanager
async def family(
    runtime: RuntimeFixture, main: Sequence[ScriptedStep], helper: Sequence[ScriptedStep], **more: Any
) -> AsyncGenerator[RuntimeProcess]:
    runtime.write_agent("main")
    runtime.write_agent("helper")
    async with runtime.open(by_agent={"main": main, "helper": helper}, **more) as process:
        yield process


async def test_a_child_works_in_its_own_conversation_and_all_it_said_is_the_answer(runtime: RuntimeFixture):
    """Shows: A001, A002, A005, A008, A046, A048, A070."""
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="First I note."), text_reply("It is green.")]
    async with family(runtime, [tool_call_reply(wish()), text_reply("Green, it says.")], helper) as process:
        run = await over(process, await process.submit("What colour?", agent="main"))
        assert (run.status, run.text, run.attempts) == (Status.DONE, "Green, it says.", 1)
        (result,) = await process.tool_results(run)
        assert (result.ok, words(result.text)) == (True, "First I note.\n\nIt is green.")
        child = (await tree(process))[1]
        assert (child.agent, child.depth, child.root_id, child.request.parent_run) == (
            "helper",
            1,
            run.id,
            run.id,
        )
        assert child.request.entry_point == "PersistentAgent"
        assert Path(child.transcript_path).parent.parent.parent == Path(run.transcript_path).parent


async def test_a_parent_that_waits_holds_no_slot(runtime: RuntimeFixture):
    """Shows: L018."""
    async with family(
        runtime,
        [tool_call_reply(wish()), text_reply("Done.")],
        [text_reply("Yes.")],
        limits=Limits(max_live=1),
    ) as process:
        run = await asyncio.wait_for(over(process, await process.submit("Go.", agent="main")), 20)
        assert (run.status, run.text) == (Status.DONE, "Done.")


async def test_several_children_work_at_once(runtime: RuntimeFixture):
    """Shows: B051, C091."""
    runtime.write_agent("other")
    main = [tool_call_reply(wish(), wish("other"), wish("helper", "Again.")), text_reply("All.")]
    runtime.write_agent("main")
    runtime.write_agent("helper")
    by_agent = {
        "main": main,
        "helper": [text_reply("one"), text_reply("two")],
        "other": [text_reply("three")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        assert {words(result.text) for result in await process.tool_results(run)} == {"one", "two", "three"}
        assert len(run.child_ids) == 3


async def test_nothing_is_made_before_a_person_said_yes_and_nothing_after_a_no(runtime: RuntimeFixture):
    """Shows: A006, A007."""
    async with family(
        runtime,
        [tool_call_reply(wish()), text_reply("Then not.")],
        [text_reply("never")],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        assert (run.status, run.waiting_for) == (Status.WAITING, WaitReason.APPROVAL)
        assert not (Path(run.transcript_path).parent / "agents").exists()
        (asked,) = await pending(process)
        await run_control.answer_approval(
            asked.id, Answer.DENY, process.context, by="person", is_alive=lambda _: True
        )
        assert (await over(process, run)).text == "Then not."
        assert not (Path(run.transcript_path).parent / "agents").exists()
        assert len(await tree(process)) == 1


async def test_a_yes_starts_one_child_and_is_not_asked_for_again(runtime: RuntimeFixture):
    """Shows: A006."""
    async with family(
        runtime,
        [tool_call_reply(wish()), text_reply("Done.")],
        [text_reply("Yes.")],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        (asked,) = await pending(process)
        await run_control.answer_approval(
            asked.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
        )
        assert (await over(process, run)).status is Status.DONE
        assert len(await tree(process)) == 2
        assert len(await asked_ever(process)) == 1


async def test_a_no_inside_the_child_ends_it_and_the_parent_hears_of_it(runtime: RuntimeFixture):
    """Shows: A067."""

    @tool(name="mail")
    def mail() -> str:
        """Sends a mail."""
        raise AssertionError

    helper = [tool_call_reply(("mail", "{}")), text_reply("never")]
    main = [tool_call_reply(wish()), text_reply("So be it.")]
    async with family(runtime, main, helper, tools=[mail], approval_policy=ApprovalPolicy.ASK) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        for said in (Answer.ALLOW, Answer.DENY):
            (asked,) = await pending(process)
            await run_control.answer_approval(
                asked.id, said, process.context, by="person", is_alive=lambda _: True
            )
            await over(process, run)
        done = await over(process, run)
        assert (done.status, done.text) == (Status.DONE, "So be it.")
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (False, "Error: User aborted agent")


async def test_a_child_whose_model_is_not_reached_is_an_error_with_its_reason(runtime: RuntimeFixture):
    """Shows: A066."""
    gone = ModelFailed("no connection to 127.0.0.1", reason=Reason.UNREACHABLE)
    async with family(runtime, [tool_call_reply(wish()), text_reply("A pity.")], [gone]) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        (result,) = await process.tool_results(run)
        assert result.text == "Error: Network failure\nno connection to 127.0.0.1"
        assert run.status is Status.DONE


async def test_killed_while_it_waits_the_tree_goes_on_and_has_one_child(runtime: RuntimeFixture):
    gate = asyncio.Event()
    helper = [tool_call_reply(("ponder", "{}"))]
    async with family(runtime, [tool_call_reply(wish())], helper, tools=[ponders(gate)]) as process:
        run = await process.submit("Go.", agent="main")
        await soon(lambda: waits(process, run))
    gate.set()
    async with family(runtime, [text_reply("Done.")], [text_reply("Yes.")], tools=[ponders(gate)]) as process:
        for each in await tree(process):
            if each.status is not Status.WAITING:
                await process.resume(each)
        done = await over(process, run)
        assert done.status is Status.DONE
        assert len(await tree(process)) == 2


async def test_cancelling_a_parent_cancels_what_it_asked_for(runtime: RuntimeFixture):
    """Shows: L019."""
    helper = [tool_call_reply(("ponder", "{}"))]
    async with family(
        runtime, [tool_call_reply(wish())], helper, tools=[ponders(asyncio.Event())]
    ) as process:
        run = await process.submit("Go.", agent="main")
        await soon(lambda: waits(process, run))
        await process.cancel(run)
        assert [each.status for each in await tree(process)] == [Status.CANCELLED, Status.CANCELLED]
        assert entry_texts((await process.entries(run))[-1:])[0].startswith("No result")


async def test_an_agent_above_is_not_started_again_below(runtime: RuntimeFixture):
    """Shows: C095."""
    runtime.write_agent("helper", "tools: [PersistentAgent]\n")
    runtime.write_agent("main")
    by_agent = {
        "main": [tool_call_reply(wish()), text_reply("Done.")],
        "helper": [tool_call_reply(wish("main")), text_reply("I may not.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        child = (await tree(process))[1]
        (refused,) = await process.tool_results(child)
        assert "main > helper > main" in refused.text
        assert run.status is Status.DONE


@pytest.mark.parametrize(
    ("front", "offered"),
    [
        ("", False),
        ("tools: [PersistentAgent]\n", True),
        ("tools: ['*']\n", False),
        ("roles: [orchestrator, subtask]\n", True),
    ],
)
async def test_below_the_top_doors_count_only_where_they_are_named(
    runtime: RuntimeFixture, front: str, offered: bool
):
    """Shows: A095, L025."""
    runtime.write_agent("main")
    runtime.write_agent("helper", front)
    async with runtime.open(
        by_agent={"main": [tool_call_reply(wish()), text_reply("Done.")], "helper": [text_reply("Yes.")]}
    ) as process:
        await over(process, await process.submit("Go.", agent="main"))
        tools = [[each.name for each in asked.request.tools] for asked in process.provider.requests]
        assert "PersistentAgent" in tools[0]
        assert ("PersistentAgent" in tools[1]) is offered


async def test_the_model_is_shown_whom_it_can_name(runtime: RuntimeFixture):
    """Shows: A002, A004, C064."""
    runtime.write_agent("main", "agent_deny: [oracle]\n")
    async with runtime.open(text_reply("Hi.")) as process:
        await process.run("Hi.", agent="main")
        (spec,) = [
            each for each in process.provider.requests[0].request.tools if each.name == "PersistentAgent"
        ]
        names = spec.schema["properties"]["preset"]["enum"]
        assert "researcher" in names
        assert "oracle" not in names


async def test_whom_the_configuration_lets_nobody_start_no_door_offers(runtime: RuntimeFixture):
    """Neither in the first run of a conversation nor in the next, and every door says the same.

    Shows: A004, E018."""
    runtime.write_agent("main")
    allowed = SubagentSettings(allow_agents=("explorer", "ma*"))
    async with runtime.open(text_reply("Hi."), text_reply("Again."), subagent_settings=allowed) as process:
        session = await process.create_session("main")
        for task in ("Hi.", "Again."):
            await process.run(task, session=session)
        doors = [tool for tool in process.context.tools.values() if tool.agent_argument]
        for asked in process.provider.requests:
            specs = {each.name: each for each in asked.request.tools}
            named = [
                specs[each.spec.name].schema["properties"][each.agent_argument]["enum"] for each in doors
            ]
            assert named == [["explorer", "main"]] * 4


async def test_where_nobody_can_be_named_no_door_offers_an_empty_list(runtime: RuntimeFixture):
    """Servers refuse a request whose schema lists no value at all."""
    runtime.write_agent("main")
    async with runtime.open(
        text_reply("Hi."), subagent_settings=SubagentSettings(allow_agents=())
    ) as process:
        await process.run("Hi.", agent="main")
        (spec,) = [
            each for each in process.provider.requests[0].request.tools if each.name == "PersistentAgent"
        ]
        assert "enum" not in spec.schema["properties"]["preset"]


async def test_what_a_parent_is_denied_nobody_gives_its_child(runtime: RuntimeFixture):
    """Shows: L024, F19."""
    (runtime.workspace / "secret").mkdir()
    (runtime.workspace / "secret" / "s.txt").write_text("hidden")
    (runtime.folder / "other.txt").write_text("open")
    runtime.write_agent("main", "paths: {deny: ['**/secret/**']}\n")
    runtime.write_agent("helper")
    paths = (str(runtime.workspace / "secret" / "s.txt"), str(runtime.folder / "other.txt"))
    helper = [tool_call_reply(*(("read", json.dumps({"path": each})) for each in paths)), text_reply("Done.")]
    main = [tool_call_reply(wish(allowed_paths=[])), text_reply("Done.")]
    async with runtime.open(
        by_agent={"main": main, "helper": helper}, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        (asked,) = await pending(process)
        assert "every file on this machine" in asked.reason
        await run_control.answer_approval(
            asked.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
        )
        await over(process, run)
        child = (await tree(process))[1]
        secret, other = await process.tool_results(child)
        assert (secret.ok, other.ok) == (False, True)
        assert "denies **/secret/**" in secret.text


async def test_a_refusal_after_a_yes_to_every_file_says_what_the_yes_was_to(runtime: RuntimeFixture):
    """Though whoever asked could hand nothing on."""
    (runtime.workspace / ".env").write_text("hidden")
    runtime.write_agent("main", "paths: {read: []}\n")
    runtime.write_agent("helper")
    helper = [
        tool_call_reply(("read", json.dumps({"path": str(runtime.workspace / ".env")}))),
        text_reply("Done."),
    ]
    main = [tool_call_reply(wish(allowed_paths=[])), text_reply("Done.")]
    async with runtime.open(
        by_agent={"main": main, "helper": helper}, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        (asked,) = await pending(process)
        await run_control.answer_approval(
            asked.id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
        )
        await over(process, run)
        (refused,) = await process.tool_results((await tree(process))[1])
        assert "You may read /**; denied: " in refused.text


async def test_an_answer_from_another_process_carries_the_whole_tree_on(runtime: RuntimeFixture):
    @tool(name="mail")
    def mail() -> str:
        """Sends a mail."""
        return "sent"

    helper = [tool_call_reply(("mail", "{}"))]
    async with family(
        runtime, [tool_call_reply(wish())], helper, tools=[mail], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await over(process, await process.submit("Go.", agent="main"))
        await run_control.answer_approval(
            (await pending(process))[0].id,
            Answer.ALLOW,
            process.context,
            by="person",
            is_alive=lambda _: True,
        )
        await over(process, run)
    async with family(
        runtime, [text_reply("So be it.")], [], tools=[mail], approval_policy=ApprovalPolicy.ASK
    ) as process:
        (asked,) = await pending(process)
        await run_control.answer_approval(
            asked.id, Answer.DENY, process.context, by="person", is_alive=process.context.owners.is_alive
        )
        done = await over(process, run)
        assert (done.status, done.text) == (Status.DONE, "So be it.")
