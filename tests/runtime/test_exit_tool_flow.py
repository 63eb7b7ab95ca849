"""Exit tools: agents whose run ends only with a call of one, also after crashes."""

import asyncio
import json
from typing import Any

import pytest
from gates import PONDER_CALL, make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.run import Reason, Run, Status, WaitReason, run_details_as_json
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.tools.exit_tools import exit_tools

CODER = "exits: [submit_for_review, ask_for_help, llm_unreachable]\n"
REVIEWER = "exits: [approve, request_changes]\n"
LS_CALL = tool_call_reply(("ls", "{}"))


def submit_call(summary: str = "It is done.") -> tuple[str, str]:
    return "submit_for_review", json.dumps({"summary": summary})


def request_changes_call(text: str) -> tuple[str, str]:
    return "request_changes", json.dumps({"text": text})


async def notice_topics(process: RuntimeProcess, run: Run) -> list[str]:
    return [entry.topic for entry in await process.entries(run) if isinstance(entry, Notice)]


async def answer_run(process: RuntimeProcess, run: Run, text: str) -> Run:
    """Answer a run that waits for a person, and wait until it stops again."""
    session = await process.store.find(run.session_id)
    continued = await run_control.answer_waiting_run(session, text, process.context)
    assert continued is not None
    return await process.wait(continued)


async def test_a_text_reply_does_not_end_the_run_and_an_exit_tool_does(runtime: RuntimeFixture):
    """The prompt of the definition does not mention exit tools.

    Shows: D050, D051, T16."""
    runtime.write_agent("coder", CODER)
    steps = [
        text_reply("I am done."),
        LS_CALL,
        text_reply("Really done."),
        tool_call_reply(submit_call("Tested."), text="Submitting."),
    ]
    async with runtime.open(*steps) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.exit_tool, run.text, run.reason) == (
            Status.DONE,
            "submit_for_review",
            "Tested.",
            None,
        )
        assert await notice_topics(process, run) == ["nudge", "nudge"]
        nudge = next(entry for entry in await process.entries(run) if isinstance(entry, Notice))
        assert "submit_for_review, ask_for_help, llm_unreachable" in nudge.text
        assert (
            "submit_for_review, ask_for_help, llm_unreachable" in process.provider.requests[0].request.system
        )


async def test_an_agent_without_an_exit_call_is_nudged_three_times_and_then_waits_for_a_person(
    runtime: RuntimeFixture,
):
    """Shows: D050, M20, T16, L028."""
    runtime.write_agent("coder", CODER)
    replies = [text_reply("Done."), text_reply(""), LS_CALL, *[text_reply("Done.")] * 4]
    async with runtime.open(*replies, tool_call_reply(submit_call())) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.waiting_for, run.waits_between_turns) == (
            Status.WAITING,
            WaitReason.PERSON,
            True,
        )
        assert (run.reason, run.exit_tool, run.text, run.ended_at) == (None, "", "Done.", None)
        assert await notice_topics(process, run) == [*["nudge"] * 5, "parked"]
        assert len(process.provider.requests) == 7
        continued = await answer_run(process, run, "Then submit it.")
        assert (continued.id, continued.status, continued.exit_tool) == (
            run.id,
            Status.DONE,
            "submit_for_review",
        )
        messages = [
            entry
            for entry in process.request_entries(7)
            if isinstance(entry, Message) and entry.role == "user"
        ]
        assert [entry.text for entry in messages] == ["Build it.", "Then submit it."]


async def test_the_first_exit_call_ends_the_run_and_later_calls_do_not_run(runtime: RuntimeFixture):
    """Shows: L028."""
    runtime.write_agent("coder", CODER)
    executed: list[str] = []

    @tool(effect="once", asks="never")
    async def act(name: str) -> str:
        """Does something."""
        executed.append(name)
        return "so"

    calls = tool_call_reply(
        ("act", '{"name": "before"}'),
        submit_call("First."),
        ("act", '{"name": "after"}'),
        ("ask_for_help", '{"message": "Second."}'),
    )
    async with runtime.open(calls, text_reply("never"), tools=[act]) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.exit_tool, run.text) == (Status.DONE, "submit_for_review", "First.")
        assert executed == ["before"]
        assert len(process.provider.requests) == 1
        assert [result.ok for result in await process.tool_results(run)] == [True, True, False, False]
        not_run = "This call did not run: the earlier call to submit_for_review ended the run."
        assert [result.text for result in await process.tool_results(run)][2:] == [not_run] * 2
        assert unanswered_calls(await process.entries(run)) == ()


async def test_an_exit_call_with_invalid_arguments_does_not_end_the_run(runtime: RuntimeFixture):
    runtime.write_agent("coder", CODER)
    without_summary = tool_call_reply(("submit_for_review", "{}"), ("ls", "{}"))
    blank = tool_call_reply(submit_call("  "))
    async with runtime.open(without_summary, blank, tool_call_reply(submit_call("Now."))) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.text) == (Status.DONE, "Now.")
        assert [result.ok for result in await process.tool_results(run)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("exit_tool", "arguments", "text"),
    [
        ("ask_for_help", {"message": "Which port?"}, "Which port?"),
        ("llm_unreachable", {"reason": "503 for an hour."}, "503 for an hour."),
        ("approve", {"summary": "Good."}, "Good."),
        ("approve", {}, "I looked."),
        ("request_changes", {"text": "Line 3 is wrong."}, "Line 3 is wrong."),
        ("ask_user", {"question": "Red?", "options": ["red", "blue"]}, "Red?\n- red\n- blue"),
    ],
)
async def test_the_run_ends_with_the_text_of_its_exit_call(
    runtime: RuntimeFixture, exit_tool: str, arguments: dict[str, Any], text: str
):
    """Shows: D050, D052."""
    runtime.write_agent("any", f"tools: [ls]\nexits: [{exit_tool}]\n")
    async with runtime.open(tool_call_reply((exit_tool, json.dumps(arguments)), text="I looked.")) as process:
        run = await process.run("Go.", agent="any")
        assert (run.status, run.exit_tool, run.text) == (Status.DONE, exit_tool, text)


async def test_a_custom_tool_can_be_an_exit_tool_and_its_result_is_the_runs_text(runtime: RuntimeFixture):
    @tool(effect="idempotent", asks="never")
    async def hand_over() -> str:
        """Hands over."""
        return "handed over as 17"

    runtime.write_agent("any", "exits: [hand_over]\n")
    async with runtime.open(
        text_reply("Done."), tool_call_reply(("hand_over", "{}")), tools=[hand_over]
    ) as process:
        run = await process.run("Go.", agent="any")
        assert (run.status, run.exit_tool, run.text) == (Status.DONE, "hand_over", "handed over as 17")


async def test_exit_tools_are_available_only_to_agents_whose_exits_name_them(runtime: RuntimeFixture):
    exit_tool_names = {each.spec.name for each in exit_tools()}
    runtime.write_agent("plain")
    runtime.write_agent("wishful", "tools: [ls, approve]\n")
    runtime.write_agent("coder", f"tools: [ls]\n{CODER}")
    steps = {"plain": [text_reply("Hi.")], "wishful": [tool_call_reply(("approve", "{}")), text_reply("Hi.")]}
    async with runtime.open(by_agent={**steps, "coder": [tool_call_reply(submit_call())]}) as process:
        for agent, count in (("plain", 0), ("wishful", 0), ("coder", 3)):
            before = len(process.provider.requests)
            await process.run("Go.", agent=agent)
            available = {spec.name for spec in process.provider.requests[before].request.tools}
            assert len(available & exit_tool_names) == count, agent
        request = next(each for each in process.provider.requests if len(each.entries) > 2)
        (result,) = [entry for entry in request.entries if isinstance(entry, ToolResult)]
        assert json.loads(result.text)["error"] == "tool_not_allowed"


async def test_an_operator_can_deny_one_exit_tool_and_denying_all_is_a_configuration_error(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", CODER)
    deny_one = OperatorPolicy(deny_tools=("submit_*",))
    steps = [tool_call_reply(submit_call()), tool_call_reply(("ask_for_help", '{"message": "May I?"}'))]
    async with runtime.open(*steps, operator_policy=lambda: deny_one) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.exit_tool) == (Status.DONE, "ask_for_help")
        available = [spec.name for spec in process.provider.requests[0].request.tools]
        assert ("ask_for_help" in available, "submit_for_review" in available) == (True, False)
    deny_all = OperatorPolicy(deny_tools=("submit_*", "ask_for_*", "llm_*"))
    async with runtime.open(text_reply("never"), operator_policy=lambda: deny_all) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "none of the exit tools of" in run.error
        assert "operator deny submit_*" in run.error


async def test_an_unknown_exit_tool_is_a_configuration_error_before_any_model_request(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", "exits: [submit_for_reveiw]\n")
    async with runtime.open(text_reply("never")) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "unknown exit tool 'submit_for_reveiw'" in run.error
        assert process.provider.requests == []


async def test_at_the_turn_limit_without_an_exit_call_a_person_can_grant_as_many_turns_again(
    runtime: RuntimeFixture,
):
    """Shows: D052, L028."""
    runtime.write_agent("coder", f"max_turns: 2\n{CODER}")
    async with runtime.open(*[LS_CALL] * 3, tool_call_reply(submit_call("Late."))) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.waiting_for, run.turns) == (Status.WAITING, WaitReason.PERSON, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert "used all of its 2 turns" in entry_texts(entries[-1:])[0]
        continued = await answer_run(process, run, "Two more.")
        assert (continued.status, continued.exit_tool, continued.turns) == (
            Status.DONE,
            "submit_for_review",
            4,
        )


async def test_the_fourth_request_for_changes_waits_for_a_person(runtime: RuntimeFixture):
    """Shows: D052."""
    runtime.write_agent("reviewer", REVIEWER)
    replies = [tool_call_reply(request_changes_call(f"Change {n}.")) for n in range(4)]
    async with runtime.open(*replies, tool_call_reply(("approve", "{}"), text="Fine.")) as process:
        session = await process.create_session("reviewer")
        for n in range(3):
            run = await process.run(f"Review {n}.", session=session)
            assert (run.status, run.exit_tool, run.text) == (Status.DONE, "request_changes", f"Change {n}.")
        run = await process.run("Review 3.", session=session)
        assert (run.status, run.waiting_for, run.exit_tool) == (Status.WAITING, WaitReason.PERSON, "")
        continued = await answer_run(process, run, "Let it be.")
        assert (continued.status, continued.exit_tool, continued.text) == (Status.DONE, "approve", "Fine.")


async def test_a_run_that_waits_for_a_person_still_waits_after_a_crash_and_can_be_continued(
    runtime: RuntimeFixture,
):
    """Resuming it sends no further nudge and no model request.

    Shows: L028."""
    runtime.write_agent("coder", CODER)
    async with runtime.open(*[text_reply("Done.")] * 4) as process:
        run = await process.run("Build it.", agent="coder")
    async with runtime.open(tool_call_reply(submit_call())) as process:
        resumed = await process.resume(run)
        assert (resumed.status, resumed.waiting_for, resumed.turns) == (Status.WAITING, WaitReason.PERSON, 4)
        assert process.provider.requests == []
        assert await notice_topics(process, run) == [*["nudge"] * 3, "parked"]
        assert (await answer_run(process, resumed, "Submit.")).exit_tool == "submit_for_review"


@pytest.mark.parametrize("entry_count", [2, 3, 4, 5, 9, 10, 11, 12])
async def test_a_run_killed_after_any_entry_ends_the_same_way(runtime: RuntimeFixture, entry_count: int):
    """Nudges from before the crash are counted, and the exit tool is called once. A reply and its calls are one write.

    Shows: L028."""
    runtime.write_agent("coder", CODER)
    notes: list[str] = []

    @tool(effect="idempotent", asks="never")
    async def note() -> str:
        """Notes."""
        notes.append("noted")
        return "noted"

    steps = [
        text_reply("Done."),
        text_reply("Done."),
        tool_call_reply(("note", "{}"), submit_call("Once."), ("note", "{}")),
    ]
    async with runtime.open(*steps, tools=[note]) as process:
        run = await process.run("Build it.", agent="coder")
        entries = (await process.entries(run))[:entry_count]
        session = await process.store.find(run.session_id)
        await process.store.clear(session)
        async with process.store.open(session) as conversation:
            await conversation.append(*entries)

        def mark_as_running(tx: Transaction) -> None:
            current = tx.get_run(run.id) or run
            tx.update_run(
                replace(current, status=Status.RUNNING, ended_at=None, exit_tool="", owner_id="gone", text="")
            )

        await process.context.ledger.write(mark_as_running)
    remaining = steps[sum(isinstance(each, Message) and each.role == "agent" for each in entries) :]
    async with runtime.open(*remaining, tools=[note]) as process:
        resumed = await process.resume(run)
        assert (resumed.status, resumed.exit_tool, resumed.text) == (
            Status.DONE,
            "submit_for_review",
            "Once.",
        )
        assert await notice_topics(process, run) == ["nudge", "nudge"]
        results = [(each.call_id, each.ok) for each in await process.tool_results(run)]
        assert len({call_id for call_id, _ in results}) == len(results) == 3
        assert notes.count("noted") <= 2
        assert len(process.provider.requests) == len(remaining)


async def test_a_text_reply_while_a_worker_is_running_waits_for_the_worker_and_is_not_nudged(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", CODER)
    spawn = ("sessions_spawn", json.dumps({"task": "Look."}))
    gate = asyncio.Event()
    script = [
        tool_call_reply(spawn),
        text_reply("I sent someone."),
        tool_call_reply(submit_call("With what they found.")),
    ]
    by_agent = {"Go.": script, "Look.": [PONDER_CALL, tool_call_reply(submit_call("Found."))]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.run_until_suspended("Go.", agent="coder")
        gate.set()
        ended = await process.wait_until_ended(run)
        assert ended.status is Status.DONE
        assert (ended.exit_tool, ended.text) == ("submit_for_review", "With what they found.")
        assert await notice_topics(process, run) == ["announcement"]


async def test_an_exit_call_ends_the_run_although_a_worker_whose_result_wakes_the_session_is_running(
    runtime: RuntimeFixture,
):
    """Shows: L028."""
    runtime.write_agent("coder", CODER)
    spawn = ("sessions_spawn", json.dumps({"task": "Look."}))
    gate = asyncio.Event()
    script = [
        tool_call_reply(spawn, submit_call("First.")),
        tool_call_reply(submit_call("And what came later.")),
    ]
    by_agent = {"Go.": script, "Look.": [PONDER_CALL, tool_call_reply(submit_call("Found."))]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="coder")
        assert (await process.wait(run)).text == "First."
        gate.set()

        async def other_runs() -> list[Run]:
            def step(tx: Transaction) -> list[Run]:
                return [each for each in tx.find_runs(session=run.session_id) if each.id != run.id]

            return await process.context.ledger.read(step)

        while not any(each.status is Status.DONE for each in await other_runs()):
            await process.worker.wait_for_change()
        (woken,) = await other_runs()
        assert (woken.request.source, woken.exit_tool, woken.text) == (
            "wake",
            "submit_for_review",
            "And what came later.",
        )
        assert (await process.reload(run)).text == "First."


async def test_a_delegation_tool_can_be_an_exit_tool_and_its_result_starts_the_next_run(
    runtime: RuntimeFixture,
):
    """For example, a coder whose exit tool is the review, and who continues with the findings.

    Shows: D052."""
    runtime.write_agent("coder", "tools: [ls]\nexits: [sessions_spawn, submit_for_review]\n")
    script = [
        tool_call_reply(("sessions_spawn", '{"task": "Review."}'), ("ls", "{}")),
        tool_call_reply(submit_call("Mended.")),
    ]
    by_agent = {"Go.": script, "Review.": [text_reply("Mend line 3.")]}
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.exit_tool, json.loads(run.text)["status"]) == (
            Status.DONE,
            "sessions_spawn",
            "accepted",
        )

        def other_runs(tx: Transaction) -> list[Run]:
            return [each for each in tx.find_runs(session=run.session_id) if each.id != run.id]

        while not any(each.status.is_final for each in await process.context.ledger.read(other_runs)):
            await process.worker.wait_for_change()
        (woken,) = await process.context.ledger.read(other_runs)
        assert (woken.exit_tool, woken.text) == ("submit_for_review", "Mended.")
        assert any(
            "Mend line 3." in entry.text for entry in process.request_entries(-1) if isinstance(entry, Notice)
        )


async def test_a_run_without_tool_calls_is_reported_as_no_work(runtime: RuntimeFixture):
    runtime.write_agent("coder", CODER)
    async with runtime.open(
        text_reply("I know it."), LS_CALL, text_reply("Looked."), tool_call_reply(submit_call())
    ) as process:
        text_only = run_details_as_json(await process.run("What?"))
        assert (text_only["evidence"], text_only["exit"]) == ({"tool_calls": 0, "no_work": True}, None)
        with_call = run_details_as_json(await process.run("Look."))
        assert with_call["evidence"] == {"tool_calls": 1, "no_work": False}
        exit_only = run_details_as_json(await process.run("Build it.", agent="coder"))
        assert (exit_only["exit"], exit_only["evidence"]["no_work"]) == ("submit_for_review", True)
