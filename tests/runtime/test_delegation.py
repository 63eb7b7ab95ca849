"""Delegation: a call that starts another agent waits for it without a slot and gets its result once."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agent_pairs import open_main_and_helper
from gates import PONDER_CALL, make_gated_tool
from runtime_fixture import RuntimeFixture
from transcript_entries import delimited_text, entry_texts

from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.run import Reason, Status, WaitReason
from retinue.errors import ModelFailed
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


def spawn_call(preset: str = "helper", prompt: str = "Look.", **more: Any) -> tuple[str, str]:
    arguments = {"preset": preset, "description": "look around", "prompt": prompt} | more
    return "PersistentAgent", json.dumps(arguments)


async def test_a_child_has_its_own_session_and_its_replies_are_the_tool_result(runtime: RuntimeFixture):
    """Shows: A001, A002, A005, A008, A046, A048, A070."""
    helper = [tool_call_reply(("todo", '{"items": ["x"]}'), text="First I note."), text_reply("It is green.")]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call()), text_reply("Green, it says.")], helper
    ) as process:
        run = await process.run_until_idle("What colour?", agent="main")
        assert (run.status, run.text, run.attempts) == (Status.DONE, "Green, it says.", 1)
        (result,) = await process.tool_results(run)
        assert (result.ok, delimited_text(result.text)) == (True, "First I note.\n\nIt is green.")
        child = (await process.all_runs())[1]
        assert (child.agent, child.depth, child.root_id, child.request.parent_run) == (
            "helper",
            1,
            run.id,
            run.id,
        )
        assert child.request.entry_point == "PersistentAgent"
        assert Path(child.transcript_path).parent.parent.parent == Path(run.transcript_path).parent


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (spawn_call("nobody"), "Preset template not found: nobody (checked .md and .org)"),
        (spawn_call("main/x"), "Preset template not found: main/x (checked .md and .org)"),
        (spawn_call(prompt="  "), "The prompt is empty. Describe the task."),
        (spawn_call(allowed_paths=["a\u200b"]), "contains invisible characters. Remove them."),
        (spawn_call("hidden"), "main may not start hidden"),
    ],
)
async def test_a_call_that_cannot_succeed_is_refused_before_a_person_is_asked(
    runtime: RuntimeFixture, call: tuple[str, str], error: str
):
    runtime.write_agent("hidden", "")
    runtime.write_agent("main", "agent_deny: [hidden]\n")
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(call), text_reply("Alone, then.")],
        [],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        assert (run.status, run.text) == (Status.DONE, "Alone, then.")
        assert await process.pending_approvals() == []
        (result,) = await process.tool_results(run)
        assert error in result.text


async def test_a_child_whose_scope_request_is_denied_goes_on(runtime: RuntimeFixture):
    """Shows: A093."""
    request = json.dumps({"tool": "read", "resource": "/srv/of-nobody/x", "reason": "Needed."})
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(spawn_call()), text_reply("Done.")],
        [tool_call_reply(("request_scope_expansion", request)), text_reply("I did it without that file.")],
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        await process.answer_only_approval(Answer.DENY)
        ended = await process.wait_until_ended_or_idle(run)
        assert (ended.status, ended.text) == (Status.DONE, "Done.")
        (result,) = await process.tool_results(run)
        assert delimited_text(result.text) == "I did it without that file."
        child = (await process.all_runs())[1]
        (denied,) = await process.tool_results(child)
        assert json.loads(denied.text)["error"] == "approval_denied"


async def test_a_parent_that_waits_for_a_child_holds_no_slot(runtime: RuntimeFixture):
    """Shows: L018."""
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(spawn_call()), text_reply("Done.")],
        [text_reply("Yes.")],
        limits=Limits(max_live=1),
    ) as process:
        run = await asyncio.wait_for(process.run_until_idle("Go.", agent="main"), 20)
        assert (run.status, run.text) == (Status.DONE, "Done.")


async def test_several_children_run_concurrently(runtime: RuntimeFixture):
    """Shows: B051, C091."""
    runtime.write_agent("other")
    main = [
        tool_call_reply(spawn_call(), spawn_call("other"), spawn_call("helper", "Again.")),
        text_reply("All."),
    ]
    runtime.write_agent("main")
    runtime.write_agent("helper")
    by_agent = {
        "main": main,
        "helper": [text_reply("one"), text_reply("two")],
        "other": [text_reply("three")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        assert run.status is Status.DONE
        assert {delimited_text(result.text) for result in await process.tool_results(run)} == {
            "one",
            "two",
            "three",
        }
        assert len(run.child_ids) == 3


async def test_a_denied_approval_creates_no_child_session(runtime: RuntimeFixture):
    """Shows: A006, A007."""
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(spawn_call()), text_reply("Then not.")],
        [text_reply("never")],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        assert (run.status, run.waiting_for) == (Status.WAITING, WaitReason.APPROVAL)
        assert not (Path(run.transcript_path).parent / "agents").exists()
        (approval,) = await process.pending_approvals()
        await process.answer_approval(approval, Answer.DENY)
        assert (await process.wait_until_ended_or_idle(run)).text == "Then not."
        assert not (Path(run.transcript_path).parent / "agents").exists()
        assert len(await process.all_runs()) == 1


async def test_an_approved_call_starts_one_child_without_another_approval(runtime: RuntimeFixture):
    """Shows: A006."""
    async with open_main_and_helper(
        runtime,
        [tool_call_reply(spawn_call()), text_reply("Done.")],
        [text_reply("Yes.")],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        (approval,) = await process.pending_approvals()
        await process.answer_approval(approval, Answer.ALLOW)
        assert (await process.wait_until_ended_or_idle(run)).status is Status.DONE
        assert len(await process.all_runs()) == 2
        assert len(await process.approvals()) == 1


async def test_an_approval_denied_in_a_child_ends_the_child_and_is_reported_to_the_parent(
    runtime: RuntimeFixture,
):
    """Shows: A067."""

    @tool(name="mail")
    def mail() -> str:
        """Sends a mail."""
        raise AssertionError

    helper = [tool_call_reply(("mail", "{}")), text_reply("never")]
    main = [tool_call_reply(spawn_call()), text_reply("So be it.")]
    async with open_main_and_helper(
        runtime, main, helper, tools=[mail], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        for answer in (Answer.ALLOW, Answer.DENY):
            (approval,) = await process.pending_approvals()
            await process.answer_approval(approval, answer)
            await process.wait_until_ended_or_idle(run)
        ended = await process.wait_until_ended_or_idle(run)
        assert (ended.status, ended.text) == (Status.DONE, "So be it.")
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (False, "Error: User aborted agent")


async def test_an_unreachable_model_of_a_child_is_an_error_with_its_reason(runtime: RuntimeFixture):
    """Shows: A066."""
    failure = ModelFailed("no connection to 127.0.0.1", reason=Reason.UNREACHABLE)
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call()), text_reply("A pity.")], [failure]
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        (result,) = await process.tool_results(run)
        error, _, report = result.text.partition("\n\n")
        assert error == "Error: Network failure\nno connection to 127.0.0.1"
        assert "status=failed" in report
        assert "The agent ended without any text." in report
        assert run.status is Status.DONE


async def test_the_error_of_a_failed_child_includes_its_earlier_text_and_the_transcript_path(
    runtime: RuntimeFixture,
):
    """Shows: A066."""
    failure = ModelFailed("no connection to 127.0.0.1", reason=Reason.UNREACHABLE)
    helper = [tool_call_reply(("ls", "{}"), text="The lock is missing in a.py."), failure]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call()), text_reply("A pity.")], helper
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        (result,) = await process.tool_results(run)
        (child,) = [each for each in await process.all_runs() if each.id != run.id]
        assert result.text.startswith("Error: Network failure\nno connection to 127.0.0.1\n\nreport run=")
        assert "The lock is missing in a.py." in result.text
        assert f"transcript={child.transcript_path}" in result.text


async def test_a_parent_waiting_for_a_child_is_resumed_after_a_crash_without_a_second_child(
    runtime: RuntimeFixture,
):
    gate = asyncio.Event()
    helper = [PONDER_CALL]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call())], helper, tools=[make_gated_tool(gate)]
    ) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run, WaitReason.CHILD)
    gate.set()
    async with open_main_and_helper(
        runtime, [text_reply("Done.")], [text_reply("Yes.")], tools=[make_gated_tool(gate)]
    ) as process:
        await process.resume_executing_runs()
        ended = await process.wait_until_ended_or_idle(run)
        assert ended.status is Status.DONE
        assert len(await process.all_runs()) == 2


async def test_cancelling_a_parent_cancels_its_child(runtime: RuntimeFixture):
    """Shows: L019."""
    helper = [PONDER_CALL]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call())], helper, tools=[make_gated_tool(asyncio.Event())]
    ) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run, WaitReason.CHILD)
        await process.cancel(run)
        assert [each.status for each in await process.all_runs()] == [Status.CANCELLED, Status.CANCELLED]
        assert entry_texts((await process.entries(run))[-1:])[0].startswith("No result")


async def test_a_child_cannot_start_the_agent_that_started_it(runtime: RuntimeFixture):
    """Shows: C095."""
    runtime.write_agent("helper", "tools: [PersistentAgent]\n")
    runtime.write_agent("main")
    by_agent = {
        "main": [tool_call_reply(spawn_call()), text_reply("Done.")],
        "helper": [tool_call_reply(spawn_call("main")), text_reply("I may not.")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run_until_idle("Go.", agent="main")
        child = (await process.all_runs())[1]
        (result,) = await process.tool_results(child)
        assert "main > helper > main" in result.text
        assert run.status is Status.DONE


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("", False),
        ("tools: [PersistentAgent]\n", True),
        ("tools: ['*']\n", False),
        ("roles: [orchestrator, subtask]\n", True),
    ],
)
async def test_a_child_has_delegation_tools_only_if_its_definition_names_them(
    runtime: RuntimeFixture, front: str, expected: bool
):
    """Shows: A095, L025."""
    runtime.write_agent("main")
    runtime.write_agent("helper", front)
    async with runtime.open(
        by_agent={
            "main": [tool_call_reply(spawn_call()), text_reply("Done.")],
            "helper": [text_reply("Yes.")],
        }
    ) as process:
        await process.run_until_idle("Go.", agent="main")
        tools = [[each.name for each in request.request.tools] for request in process.provider.requests]
        assert "PersistentAgent" in tools[0]
        assert ("PersistentAgent" in tools[1]) is expected


async def test_the_schema_lists_only_agents_that_the_caller_may_start(runtime: RuntimeFixture):
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


async def test_the_schemas_of_all_delegation_tools_list_only_agents_that_the_configuration_allows(
    runtime: RuntimeFixture,
):
    """Every delegation tool has the same list, in the first run of a session and in the next.

    Shows: A004, E018."""
    runtime.write_agent("main")
    allowed = SubagentSettings(allow_agents=("explorer", "ma*"))
    async with runtime.open(text_reply("Hi."), text_reply("Again."), subagent_settings=allowed) as process:
        session = await process.create_session("main")
        for task in ("Hi.", "Again."):
            await process.run(task, session=session)
        delegation_tools = [tool for tool in process.context.tools.values() if tool.agent_argument]
        for request in process.provider.requests:
            specs = {each.name: each for each in request.request.tools}
            listed = [
                specs[each.spec.name].schema["properties"][each.agent_argument]["enum"]
                for each in delegation_tools
            ]
            assert listed == [["explorer", "main"]] * 4


async def test_the_schema_has_no_enum_if_no_agent_may_be_started(runtime: RuntimeFixture):
    """Model servers refuse a schema with an empty `enum`."""
    runtime.write_agent("main")
    async with runtime.open(
        text_reply("Hi."), subagent_settings=SubagentSettings(allow_agents=())
    ) as process:
        await process.run("Hi.", agent="main")
        (spec,) = [
            each for each in process.provider.requests[0].request.tools if each.name == "PersistentAgent"
        ]
        assert "enum" not in spec.schema["properties"]["preset"]


async def test_paths_denied_to_a_parent_stay_denied_to_its_child_whatever_is_approved(
    runtime: RuntimeFixture,
):
    """Shows: L024, F19."""
    (runtime.workspace / "secret").mkdir()
    (runtime.workspace / "secret" / "s.txt").write_text("hidden")
    (runtime.folder / "other.txt").write_text("open")
    runtime.write_agent("main", "paths: {deny: ['**/secret/**']}\n")
    runtime.write_agent("helper")
    paths = (str(runtime.workspace / "secret" / "s.txt"), str(runtime.folder / "other.txt"))
    helper = [tool_call_reply(*(("read", json.dumps({"path": each})) for each in paths)), text_reply("Done.")]
    main = [tool_call_reply(spawn_call(allowed_paths=[])), text_reply("Done.")]
    async with runtime.open(
        by_agent={"main": main, "helper": helper}, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        (approval,) = await process.pending_approvals()
        assert "every file on this machine" in approval.reason
        await process.answer_approval(approval, Answer.ALLOW)
        await process.wait_until_ended_or_idle(run)
        child = (await process.all_runs())[1]
        secret, other = await process.tool_results(child)
        assert (secret.ok, other.ok) == (False, True)
        assert "denies **/secret/**" in secret.text


async def test_a_refusal_after_an_approval_of_all_files_names_the_approved_pattern(runtime: RuntimeFixture):
    (runtime.workspace / ".env").write_text("hidden")
    runtime.write_agent("main", "paths: {read: []}\n")
    runtime.write_agent("helper")
    helper = [
        tool_call_reply(("read", json.dumps({"path": str(runtime.workspace / ".env")}))),
        text_reply("Done."),
    ]
    main = [tool_call_reply(spawn_call(allowed_paths=[])), text_reply("Done.")]
    async with runtime.open(
        by_agent={"main": main, "helper": helper}, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        (approval,) = await process.pending_approvals()
        await process.answer_approval(approval, Answer.ALLOW)
        await process.wait_until_ended_or_idle(run)
        (result,) = await process.tool_results((await process.all_runs())[1])
        assert "You may read /**; denied: " in result.text


async def test_an_approval_answered_in_another_process_continues_the_whole_run_tree(runtime: RuntimeFixture):
    @tool(name="mail")
    def mail() -> str:
        """Sends a mail."""
        return "sent"

    helper = [tool_call_reply(("mail", "{}"))]
    async with open_main_and_helper(
        runtime, [tool_call_reply(spawn_call())], helper, tools=[mail], approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run_until_idle("Go.", agent="main")
        await process.answer_approval((await process.pending_approvals())[0], Answer.ALLOW)
        await process.wait_until_ended_or_idle(run)
    async with open_main_and_helper(
        runtime, [text_reply("So be it.")], [], tools=[mail], approval_policy=ApprovalPolicy.ASK
    ) as process:
        (approval,) = await process.pending_approvals()
        await process.answer_approval(approval, Answer.DENY)
        ended = await process.wait_until_ended_or_idle(run)
        assert (ended.status, ended.text) == (Status.DONE, "So be it.")
