"""The order of the calls of one reply: groups one after another, also over approvals, crashes and interrupts."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from agent_pairs import message_call, open_main_and_helper, open_main_and_todo
from gates import make_gated_tool
from intercepted_io import InterceptedLedger, run_until_ledger_write
from mail_tool import make_mail_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess, wait_until
from transcript_entries import entry_texts

from retinue.domain.approval import Answer, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.tool import ApprovalRequirement
from retinue.domain.transcript import ToolResult
from retinue.interfaces import Tool
from retinue.runtime import recovery
from retinue.runtime.interrupts import interrupt_run
from retinue.runtime.run_control import close_transcript
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.testing.shells import FakeShell
from retinue.tools.define import tool
from retinue.tools.registry import built_in_tools

MAIL_TO_ANN = ("mail", '{"to": "ann"}')
MAIL_TO_BOB = ("mail", '{"to": "bob"}')


def write_call(text: str = "new", path: str = "f.txt") -> tuple[str, str]:
    return "write", json.dumps({"path": path, "content": text})


READ_CALL = ("read", '{"path": "f.txt"}')


def spawn_call(task: str) -> tuple[str, str]:
    return "spawn_subagent", json.dumps({"agentId": "helper", "prompt": task})


def make_note_tool(noted: list[str], *, effect: str = "idempotent") -> Tool:
    """Make the tool `note`, which adds its text to a list once other tasks had their turn."""

    @tool(name="note", effect=effect, asks="never")
    async def note(text: str) -> str:
        """Notes a text."""
        for _ in range(3 if text == "first" else 0):
            await asyncio.sleep(0)
        noted.append(text)
        return text

    return note


def with_approval(name: str) -> Tool:
    """Return a built-in tool whose calls always require an approval."""
    return replace(built_in_tools()[name], approval_requirement=ApprovalRequirement.ALWAYS)


def open_with_approvals(
    runtime: RuntimeFixture, *replies: ScriptedStep, tools: Sequence[Tool]
) -> AbstractAsyncContextManager[RuntimeProcess]:
    return runtime.open(*replies, tools=tools, approval_policy=ApprovalPolicy.ASK)


async def resume_until_ledger_write(process: RuntimeProcess, run: Run, function: str) -> None:
    """Resume a run and return when it hangs before a write of this function, as if the process died there."""
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    ledger = InterceptedLedger(process.context.ledger, before_write=hang, steps_of=f"{function}.")
    process.replace_parts(ledger=ledger)
    owner = (await process.reload(run)).owner_id
    await recovery.resume_run(run.id, process.context, previous_owner=owner)
    await asyncio.wait_for(reached.wait(), 20)


async def has_noticed_interrupt(process: RuntimeProcess) -> bool:
    return any("interrupted" in event.data.get("note", "") for event in process.events)


async def result_order(process: RuntimeProcess, run: Run) -> list[str]:
    """Return the texts of the tool results in the order in which they were saved."""
    return [each.text for each in await process.entries(run) if isinstance(each, ToolResult)]


async def test_a_read_after_a_write_in_one_reply_reads_what_was_written(runtime: RuntimeFixture):
    calls = [write_call("one"), READ_CALL, write_call("two"), READ_CALL, READ_CALL]
    async with runtime.open(tool_call_reply(*calls), text_reply("Done.")) as process:
        run = await process.run("Go.")
        _, first, _, second, third = await process.tool_results(run)
        assert ["one" in first.text, "two" in second.text, "two" in third.text] == [True, True, True]


async def test_a_call_starts_when_the_result_of_the_previous_group_is_saved(runtime: RuntimeFixture):
    noted: list[str] = []
    calls = [("note", '{"text": "first"}'), ("note", '{"text": "second"}'), ("note", '{"text": "third"}')]
    async with runtime.open(
        tool_call_reply(*calls), text_reply("Done."), tools=[make_note_tool(noted)]
    ) as process:
        run = await process.run("Go.")
        assert noted == await result_order(process, run) == ["first", "second", "third"]
        kinds = [event.kind for event in process.events if event.kind.startswith("tool.")]
        assert kinds == ["tool.started", "tool.ended"] * 3


async def test_a_failed_or_denied_call_does_not_stop_the_calls_after_it(runtime: RuntimeFixture):
    sent: list[str] = []
    calls = [("read", '{"path": "missing.txt"}'), ("nothing", "{}"), MAIL_TO_ANN, MAIL_TO_BOB]
    async with runtime.open(
        tool_call_reply(*calls),
        text_reply("Done."),
        tools=[make_mail_tool(sent, asks=None)],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run("Go.")
        to_ann, to_bob = await process.pending_approvals()
        await process.answer_approval(to_ann, Answer.DENY)
        await process.answer_approval(to_bob, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert sent == ["bob"]
        assert [each.ok for each in await process.tool_results(run)] == [False, False, False, True]


async def test_several_delegations_in_one_reply_run_at_once(runtime: RuntimeFixture):
    """Shows: B051, C091, E037."""
    all_started = asyncio.Barrier(3)

    @tool(effect="read")
    async def meet() -> str:
        """Waits for the others."""
        await all_started.wait()
        return "met"

    main = [tool_call_reply(*(spawn_call(f"Look {n}.") for n in range(3)), READ_CALL), text_reply("Done.")]
    helper = [tool_call_reply(("meet", "{}"))] * 3 + [text_reply("Seen.")] * 3
    async with open_main_and_helper(runtime, main, helper, tools=[meet]) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        assert run.status is Status.DONE
        assert [each.ok for each in await process.tool_results(run)] == [True, True, True, False]


async def test_a_run_that_waits_for_a_child_holds_no_slot_and_starts_no_later_call(
    runtime: RuntimeFixture,
):
    noted: list[str] = []
    gate, started = asyncio.Event(), asyncio.Event()
    main = [tool_call_reply(spawn_call("Look."), ("note", '{"text": "after"}')), text_reply("Done.")]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Seen.")]
    tools = [make_note_tool(noted), make_gated_tool(gate, started)]
    async with open_main_and_helper(runtime, main, helper, tools=tools, limits=Limits(max_live=1)) as process:
        run = await process.submit("Go.", agent="main")
        await started.wait()
        waiting = await process.reload(run)
        assert (waiting.status, waiting.waiting_for, noted) == (Status.WAITING, WaitReason.CHILD, [])
        gate.set()
        assert (await process.wait_until_ended(run)).status is Status.DONE
        assert noted == ["after"]
        own = [each for each in process.events if each.run == run.id and each.kind == "tool.started"]
        assert [each.data["tool"] for each in own] == ["spawn_subagent", "note"]


async def test_a_call_that_needs_no_approval_runs_before_a_later_one_is_approved(runtime: RuntimeFixture):
    """The run waits for its child, not for the approval of a later call."""
    sent: list[str] = []
    noted: list[str] = []
    gate = asyncio.Event()
    calls = [spawn_call("Look."), ("note", '{"text": "between"}'), MAIL_TO_ANN]
    main = [tool_call_reply(*calls), text_reply("Done.")]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Seen.")]
    tools = [make_note_tool(noted), make_gated_tool(gate), make_mail_tool(sent, asks="always")]
    async with open_main_and_helper(
        runtime, main, helper, tools=tools, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run, WaitReason.CHILD)
        assert [each.tool for each in await process.pending_approvals()] == ["mail"]
        gate.set()
        await process.wait_until_waiting(run, WaitReason.APPROVAL)
        assert (noted, sent) == (["between"], [])
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait_until_ended(run)).status is Status.DONE
        assert sent == ["ann"]


async def test_an_approval_given_while_an_earlier_call_waits_for_its_child_is_used_later(
    runtime: RuntimeFixture,
):
    sent: list[str] = []
    gate = asyncio.Event()
    main = [tool_call_reply(spawn_call("Look."), MAIL_TO_ANN), text_reply("Done.")]
    helper = [tool_call_reply(("ponder", "{}")), text_reply("Seen.")]
    tools = [make_gated_tool(gate), make_mail_tool(sent, asks="always")]
    async with open_main_and_helper(
        runtime, main, helper, tools=tools, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run, WaitReason.CHILD)
        await process.answer_only_approval(Answer.ALLOW)
        assert (sent, (await process.reload(run)).waiting_for) == ([], WaitReason.CHILD)
        gate.set()
        assert (await process.wait_until_ended(run)).status is Status.DONE
        assert sent == ["ann"]
        assert [each.state for each in await process.approvals()] == [ApprovalState.USED]


async def test_a_one_time_approval_is_not_used_up_by_requesting_approvals_early(runtime: RuntimeFixture):
    outside = runtime.folder / "outside.txt"
    expansion = {"tool": "write", "resource": str(outside), "reason": "I need it."}
    request = tool_call_reply(("request_scope_expansion", json.dumps(expansion)))
    calls = tool_call_reply(("ls", "{}"), write_call("new", str(outside)), READ_CALL)
    async with runtime.open(
        request, calls, text_reply("Done."), approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.run("Go.")
        await process.answer_only_approval(Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert (outside.read_text(), len(await process.approvals())) == ("new", 1)


@pytest.mark.parametrize("dies_again", [False, True])
async def test_after_an_unknown_outcome_the_later_calls_do_not_run_and_their_approvals_are_void(
    runtime: RuntimeFixture, dies_again: bool
):
    """The process may die again after it has saved the unknown outcome, before the results of the other calls."""
    sent: list[str] = []
    noted: list[str] = []
    calls = [MAIL_TO_ANN, READ_CALL, ("note", '{"text": "after"}'), ("sign", "{}")]

    @tool(name="sign", asks="always")
    async def sign() -> str:
        """Needs an approval."""
        raise AssertionError

    tools = [make_note_tool(noted), sign]
    async with open_with_approvals(
        runtime, tool_call_reply(*calls), tools=[make_mail_tool(sent, hold=asyncio.Event()), *tools]
    ) as process:
        run = await process.submit("Go.")
        await process.wait_for_approval()
        while not sent:  # noqa: ASYNC110  (a list cannot notify)
            await asyncio.sleep(0.001)
    tools.append(make_mail_tool(sent))
    if dies_again:
        async with open_with_approvals(runtime, tools=tools) as process:
            await resume_until_ledger_write(process, run, "void_approvals")
            assert len(await process.tool_results(run)) == 1
    async with open_with_approvals(runtime, text_reply("I asked ann."), tools=tools) as process:
        run = await process.resume(run)
        assert (run.status, run.text, sent, noted) == (Status.DONE, "I asked ann.", ["ann"], [])
        unknown, *others = await process.tool_results(run)
        assert "Outcome unknown" in unknown.text
        assert len(others) == 3
        assert all("did not run" in each.text and "(mail)" in each.text for each in others)
        assert [each.state for each in await process.approvals()] == [ApprovalState.VOID]


@pytest.mark.parametrize(("function", "is_committed"), [("record_start", False), ("record_end", True)])
async def test_after_a_restart_the_calls_go_on_in_the_same_groups(
    runtime: RuntimeFixture, function: str, is_committed: bool
):
    """Calls that have a result do not run again."""
    sent: list[str] = []
    calls = [write_call("one"), READ_CALL, MAIL_TO_ANN, write_call("two"), READ_CALL, READ_CALL]
    async with runtime.open(tool_call_reply(*calls), tools=[make_mail_tool(sent)]) as process:
        run = await run_until_ledger_write(process, function, is_committed=is_committed)
        assert len(await process.tool_results(run)) == 2
    (runtime.workspace / "f.txt").write_text("changed by a person")
    async with runtime.open(text_reply("Done."), tools=[make_mail_tool(sent)]) as process:
        run = await process.resume(run)
        results = [each.text for each in await process.tool_results(run)]
        assert (run.status, sent, len(results)) == (Status.DONE, ["ann"], 6)
        assert ["one" in results[1], "two" in results[4], "two" in results[5]] == [True, True, True]
        started = [event.data["tool"] for event in process.events if event.kind == "tool.started"]
        assert started == ["write", "read", "read"]


async def test_an_interrupt_starts_no_later_call_and_voids_its_approval(runtime: RuntimeFixture):
    """Shows: L009."""
    gate = asyncio.Event()
    sent: list[str] = []
    calls = tool_call_reply(("ponder", "{}"), MAIL_TO_ANN)
    tools = [make_gated_tool(gate), make_mail_tool(sent, asks="always")]
    async with open_with_approvals(runtime, calls, text_reply("I pondered."), tools=tools) as process:
        run = await process.submit("Go.")
        await process.wait_for_approval()
        await process.wait_for_event("tool.started")
        await interrupt_run(run.id, process.context)
        await wait_until(lambda: has_noticed_interrupt(process))
        gate.set()
        ended = await process.wait(run)
        assert (ended.reason, ended.text, sent) == (Reason.INTERRUPTED, "I pondered.", [])
        pondered, mailed = await process.tool_results(run)
        assert (pondered.text, mailed.ok) == ("so", False)
        assert "interrupted" in mailed.text
        assert [each.state for each in await process.approvals()] == [ApprovalState.VOID]


@pytest.mark.parametrize("session", ["latest-or-create", "latest"])
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_messages_to_one_agent_arrive_in_order_also_if_the_first_makes_the_session(
    runtime: RuntimeFixture, session: str, mode: str
):
    runtime.write_agent("journal")
    numbers = range(6)
    first_session = "create" if session == "latest" else session
    todo = [
        message_call(content=f"Add {n}.", session=session if n else first_session, mode=mode) for n in numbers
    ]
    journal = [message_call("journal", f"Note {n}.", mode=mode) for n in numbers]
    calls = [call for pair in zip(todo, journal, strict=True) for call in pair]
    heard = [text_reply("Heard.")] * 20
    by_agent = {"main": [tool_call_reply(*calls), *heard], "todo": heard, "journal": heard}
    runtime.write_agent("main")
    runtime.write_agent("todo")
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_ended(run)
        await process.wait_until_idle()
        for agent, word in (("todo", "Add"), ("journal", "Note")):
            (found,) = await process.store.sessions(agent=agent)
            entries, _ = await process.store.read_entries(found)
            messages = [text for text in entry_texts(entries) if text.startswith(word)]
            assert messages == [f"{word} {n}." for n in numbers]


async def test_a_message_is_not_sent_before_an_earlier_one_that_waits_for_approval(runtime: RuntimeFixture):
    calls = tool_call_reply(message_call(content="One."), message_call(content="Two."))
    todo = [text_reply("First."), text_reply("Second.")]
    async with open_main_and_todo(
        runtime,
        [calls, *[text_reply("Done.")] * 3],
        todo,
        tools=[with_approval("agents_message")],
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_until_waiting(run, WaitReason.APPROVAL)
        first, second = await process.pending_approvals()
        await process.answer_approval(second, Answer.ALLOW)
        await process.wait_until_waiting(run, WaitReason.APPROVAL)
        assert len(await process.all_runs()) == 1
        await process.answer_approval(first, Answer.ALLOW)
        assert (await process.wait_until_ended(run)).status is Status.DONE
        await process.wait_until_idle()
        (session,) = await process.store.sessions(agent="todo")
        entries, _ = await process.store.read_entries(session)
        assert entry_texts(entries) == ["One.", "First.", "Two.", "Second."]


async def test_a_file_written_by_an_earlier_call_is_approved_again_with_its_new_content(
    runtime: RuntimeFixture,
):
    """A person approved the command for the script as it was."""
    (runtime.workspace / "build.sh").write_text("echo old\n")
    shell = FakeShell(level=SandboxLevel.STRICT)
    calls = tool_call_reply(write_call("echo new\n", "build.sh"), ("bash", '{"command": "sh build.sh"}'))
    async with runtime.open(
        calls, text_reply("Done."), approval_policy=ApprovalPolicy.ASK, shell=shell
    ) as process:
        run = await process.run("Go.")
        to_write, to_run = await process.pending_approvals()
        await process.answer_approval(to_run, Answer.ALLOW)
        await process.answer_approval(to_write, Answer.ALLOW)
        await process.wait_until_waiting(run, WaitReason.APPROVAL)
        (again,) = await process.pending_approvals()
        assert "changed since you were asked" in again.reason
        assert shell.commands == []
        await process.answer_approval(again, Answer.ALLOW)
        assert (await process.wait(run)).status is Status.DONE
        assert len(shell.commands) == 1


async def test_an_unknown_outcome_before_an_exit_call_does_not_end_the_run(runtime: RuntimeFixture):
    sent: list[str] = []
    submit = ("submit_for_review", '{"summary": "Sent."}')
    runtime.write_agent("worker", "exits: [submit_for_review]\n")
    async with runtime.open(
        tool_call_reply(MAIL_TO_ANN, submit), tools=[make_mail_tool(sent, hold=asyncio.Event())]
    ) as process:
        run = await process.submit("Go.", agent="worker")
        while not sent:  # noqa: ASYNC110  (a list cannot notify)
            await asyncio.sleep(0.001)
    async with runtime.open(tool_call_reply(submit), tools=[make_mail_tool(sent)]) as process:
        run = await process.resume(run)
        assert (run.status, run.exit_tool, sent, run.turns) == (
            Status.DONE,
            "submit_for_review",
            ["ann"],
            2,
        )
        _, not_run, _ = await process.tool_results(run)
        assert "did not run" in not_run.text


async def test_calls_beyond_the_limit_stay_refused_after_a_restart(runtime: RuntimeFixture):
    sent: list[str] = []
    calls = [MAIL_TO_ANN, ("mail", '{"to": "bob"}'), ("mail", '{"to": "eve"}')]
    limits = Limits(max_calls_per_turn=2)
    async with runtime.open(tool_call_reply(*calls), tools=[make_mail_tool(sent)], limits=limits) as process:
        run = await run_until_ledger_write(process, "record_end", is_committed=True)
    async with runtime.open(text_reply("Done."), tools=[make_mail_tool(sent)], limits=limits) as process:
        run = await process.resume(run)
        assert (run.status, sent) == (Status.DONE, ["ann", "bob"])
        assert "the limit is 2" in (await process.tool_results(run))[2].text


async def test_a_parked_run_keeps_only_calls_open_that_have_started_a_sub_agent(runtime: RuntimeFixture):
    """Its other calls get a result, their approvals are void, and resuming it starts no later call."""
    sent: list[str] = []
    calls = tool_call_reply(MAIL_TO_ANN, message_call(), ("sign", "{}"))

    @tool(name="sign", asks="always")
    async def sign() -> str:
        """Needs an approval."""
        raise AssertionError

    tools = [make_mail_tool(sent, hold=asyncio.Event()), sign]
    runtime.write_agent("main")
    runtime.write_agent("todo")
    async with open_with_approvals(runtime, calls, tools=tools) as process:
        run = await process.submit("Go.", agent="main")
        await process.wait_for_approval()
        while not sent:  # noqa: ASYNC110  (a list cannot notify)
            await asyncio.sleep(0.001)
        parked = replace(
            await process.reload(run), status=Status.WAITING, waiting_for=WaitReason.PERSON, owner_id=""
        )
        await process.worker.close()
        await close_transcript(parked, process.context)
        results = await process.tool_results(run)
        assert ["Outcome unknown" in each.text for each in results] == [True, False, False]
        assert [each.state for each in await process.approvals()] == [ApprovalState.VOID]
    async with open_with_approvals(runtime, text_reply("I asked ann."), tools=tools) as process:
        run = await process.resume(run)
        assert (run.status, sent, len(await process.all_runs())) == (Status.DONE, ["ann"], 1)
