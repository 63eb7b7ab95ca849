"""Agents that end their run only by an exit: whatever they say in words, and whenever the process dies."""

import asyncio
import json
from typing import Any

import pytest
from gates import make_gated_tool
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture, RuntimeProcess
from transcript_entries import entry_texts

from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.run import Reason, Run, Status, WaitReason, run_details_as_json
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.interfaces import Tool, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.tools.exit_tools import exit_tools

CODER = "exits: [submit_for_review, ask_for_help, llm_unreachable]\n"
REVIEWER = "exits: [approve, request_changes]\n"
LOOKS = tool_call_reply(("ls", "{}"))
PONDERS = tool_call_reply(("ponder", "{}"))


def submits(summary: str = "It is done.") -> tuple[str, str]:
    return "submit_for_review", json.dumps({"summary": summary})


def wants(text: str) -> tuple[str, str]:
    return "request_changes", json.dumps({"text": text})


async def notices(process: RuntimeProcess, run: Run) -> list[str]:
    return [entry.topic for entry in await process.entries(run) if isinstance(entry, Notice)]


async def told(process: RuntimeProcess, run: Run, words: str) -> Run:
    """A person goes on with a run that waits for them."""
    session = await process.store.find(run.session_id)
    again = await run_control.answer_waiting_run(session, words, process.context)
    assert again is not None
    return await process.wait(again)


async def test_words_do_not_end_the_run_and_an_exit_does(runtime: RuntimeFixture):
    """The prompt of the definition says nothing of exits.

    Shows: D050, D051, T16."""
    runtime.write_agent("coder", CODER)
    steps = [
        text_reply("I am done."),
        LOOKS,
        text_reply("Really done."),
        tool_call_reply(submits("Tested."), text="Submitting."),
    ]
    async with runtime.open(*steps) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.exit_tool, run.text, run.reason) == (
            Status.DONE,
            "submit_for_review",
            "Tested.",
            None,
        )
        assert await notices(process, run) == ["nudge", "nudge"]
        sent_back = next(entry for entry in await process.entries(run) if isinstance(entry, Notice))
        assert "submit_for_review, ask_for_help, llm_unreachable" in sent_back.text
        assert (
            "submit_for_review, ask_for_help, llm_unreachable" in process.provider.requests[0].request.system
        )


async def test_an_agent_that_only_talks_is_sent_back_three_times_and_then_waits_for_a_person(
    runtime: RuntimeFixture,
):
    """Shows: D050, M20, T16, L028."""
    runtime.write_agent("coder", CODER)
    talks = [text_reply("Done."), text_reply(""), LOOKS, *[text_reply("Done.")] * 4]
    async with runtime.open(*talks, tool_call_reply(submits())) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.waiting_for, run.is_suspended) == (Status.WAITING, WaitReason.PERSON, True)
        assert (run.reason, run.exit_tool, run.text, run.ended_at) == (None, "", "Done.", None)
        assert await notices(process, run) == [*["nudge"] * 5, "parked"]
        assert len(process.provider.requests) == 7
        again = await told(process, run, "Then submit it.")
        assert (again.id, again.status, again.exit_tool) == (run.id, Status.DONE, "submit_for_review")
        said = [
            entry
            for entry in process.request_entries(7)
            if isinstance(entry, Message) and entry.role == "user"
        ]
        assert [entry.text for entry in said] == ["Build it.", "Then submit it."]


async def test_the_first_exit_ends_the_run_and_nothing_after_it_is_done(runtime: RuntimeFixture):
    """Shows: L028."""
    runtime.write_agent("coder", CODER)
    done: list[str] = []

    @tool(effect="once", asks="never")
    async def act(name: str) -> str:
        """Does something."""
        done.append(name)
        return "so"

    batch = tool_call_reply(
        ("act", '{"name": "before"}'),
        submits("First."),
        ("act", '{"name": "after"}'),
        ("ask_for_help", '{"message": "Second."}'),
    )
    async with runtime.open(batch, text_reply("never"), tools=[act]) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.exit_tool, run.text) == (Status.DONE, "submit_for_review", "First.")
        assert done == ["before"]
        assert len(process.provider.requests) == 1
        assert [result.ok for result in await process.tool_results(run)] == [True, True, False, False]
        not_run = "This call did not run: the earlier call to submit_for_review ended the run."
        assert [result.text for result in await process.tool_results(run)][2:] == [not_run] * 2
        assert unanswered_calls(await process.entries(run)) == ()


async def test_an_exit_with_arguments_it_does_not_understand_is_none(runtime: RuntimeFixture):
    runtime.write_agent("coder", CODER)
    wrong = tool_call_reply(("submit_for_review", "{}"), ("ls", "{}"))
    blank = tool_call_reply(submits("  "))
    async with runtime.open(wrong, blank, tool_call_reply(submits("Now."))) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.text) == (Status.DONE, "Now.")
        assert [result.ok for result in await process.tool_results(run)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("ask_for_help", {"message": "Which port?"}, "Which port?"),
        ("llm_unreachable", {"reason": "503 for an hour."}, "503 for an hour."),
        ("approve", {"summary": "Good."}, "Good."),
        ("approve", {}, "I looked."),
        ("request_changes", {"text": "Line 3 is wrong."}, "Line 3 is wrong."),
        ("ask_user", {"question": "Red?", "options": ["red", "blue"]}, "Red?\n- red\n- blue"),
    ],
)
async def test_each_exit_leaves_its_words(
    runtime: RuntimeFixture, name: str, args: dict[str, Any], text: str
):
    """Shows: D050, D052."""
    runtime.write_agent("any", f"tools: [ls]\nexits: [{name}]\n")
    async with runtime.open(tool_call_reply((name, json.dumps(args)), text="I looked.")) as process:
        run = await process.run("Go.", agent="any")
        assert (run.status, run.exit_tool, run.text) == (Status.DONE, name, text)


async def test_a_tool_of_a_users_own_can_be_an_exit_and_its_answer_is_the_runs(runtime: RuntimeFixture):
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


async def test_exits_are_offered_to_those_who_name_them_and_to_nobody_else(runtime: RuntimeFixture):
    named = {each.spec.name for each in exit_tools()}
    runtime.write_agent("plain")
    runtime.write_agent("wishful", "tools: [ls, approve]\n")
    runtime.write_agent("coder", f"tools: [ls]\n{CODER}")
    steps = {"plain": [text_reply("Hi.")], "wishful": [tool_call_reply(("approve", "{}")), text_reply("Hi.")]}
    async with runtime.open(by_agent={**steps, "coder": [tool_call_reply(submits())]}) as process:
        for agent, count in (("plain", 0), ("wishful", 0), ("coder", 3)):
            before = len(process.provider.requests)
            await process.run("Go.", agent=agent)
            offered = {spec.name for spec in process.provider.requests[before].request.tools}
            assert len(offered & named) == count, agent
        refused = next(asked for asked in process.provider.requests if len(asked.entries) > 2)
        (result,) = [entry for entry in refused.entries if isinstance(entry, ToolResult)]
        assert json.loads(result.text)["error"] == "tool_not_allowed"


async def test_an_operators_deny_takes_an_exit_away_and_denying_all_is_an_error_that_names_them(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", CODER)
    some = OperatorPolicy(deny_tools=("submit_*",))
    steps = [tool_call_reply(submits()), tool_call_reply(("ask_for_help", '{"message": "May I?"}'))]
    async with runtime.open(*steps, operator_policy=lambda: some) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.exit_tool) == (Status.DONE, "ask_for_help")
        offered = [spec.name for spec in process.provider.requests[0].request.tools]
        assert ("ask_for_help" in offered, "submit_for_review" in offered) == (True, False)
    everything = OperatorPolicy(deny_tools=("submit_*", "ask_for_*", "llm_*"))
    async with runtime.open(text_reply("never"), operator_policy=lambda: everything) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "could never end its run" in run.error
        assert "operator deny submit_*" in run.error


async def test_an_exit_that_nobody_knows_is_named_before_anything_is_asked(runtime: RuntimeFixture):
    runtime.write_agent("coder", "exits: [submit_for_reveiw]\n")
    async with runtime.open(text_reply("never")) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "unknown exit tool 'submit_for_reveiw'" in run.error
        assert process.provider.requests == []


async def test_the_turn_limit_without_an_exit_waits_for_a_person_who_gives_as_many_again(
    runtime: RuntimeFixture,
):
    """Shows: D052, L028."""
    runtime.write_agent("coder", f"max_turns: 2\n{CODER}")
    async with runtime.open(*[LOOKS] * 3, tool_call_reply(submits("Late."))) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.status, run.waiting_for, run.turns) == (Status.WAITING, WaitReason.PERSON, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert "used all of its 2 turns" in entry_texts(entries[-1:])[0]
        again = await told(process, run, "Two more.")
        assert (again.status, again.exit_tool, again.turns) == (Status.DONE, "submit_for_review", 4)


async def test_changes_asked_for_a_fourth_time_wait_for_a_person(runtime: RuntimeFixture):
    """Shows: D052."""
    runtime.write_agent("reviewer", REVIEWER)
    asks = [tool_call_reply(wants(f"Change {n}.")) for n in range(4)]
    async with runtime.open(*asks, tool_call_reply(("approve", "{}"), text="Fine.")) as process:
        session = await process.create_session("reviewer")
        for n in range(3):
            run = await process.run(f"Review {n}.", session=session)
            assert (run.status, run.exit_tool, run.text) == (Status.DONE, "request_changes", f"Change {n}.")
        run = await process.run("Review 3.", session=session)
        assert (run.status, run.waiting_for, run.exit_tool) == (Status.WAITING, WaitReason.PERSON, "")
        again = await told(process, run, "Let it be.")
        assert (again.status, again.exit_tool, again.text) == (Status.DONE, "approve", "Fine.")


async def test_a_run_that_waits_for_a_person_waits_on_in_the_next_process_and_goes_on_from_there(
    runtime: RuntimeFixture,
):
    """Taken up by hand it is not sent back a fourth time, and asks no model.

    Shows: L028."""
    runtime.write_agent("coder", CODER)
    async with runtime.open(*[text_reply("Done.")] * 4) as process:
        run = await process.run("Build it.", agent="coder")
    async with runtime.open(tool_call_reply(submits())) as process:
        waits = await process.resume(run)
        assert (waits.status, waits.waiting_for, waits.turns) == (Status.WAITING, WaitReason.PERSON, 4)
        assert process.provider.requests == []
        assert await notices(process, run) == [*["nudge"] * 3, "parked"]
        assert (await told(process, waits, "Submit.")).exit_tool == "submit_for_review"


@pytest.mark.parametrize("kept", [2, 3, 4, 5, 9, 10, 11, 12])
async def test_a_run_killed_after_any_entry_comes_to_the_same_end(runtime: RuntimeFixture, kept: int):
    """Whatever of its file was written when it died: the nudges are counted on, and the exit is made once. A reply and
    its calls are one write.

    Shows: L028."""
    runtime.write_agent("coder", CODER)
    made: list[str] = []
    noted = _noting(made)
    steps = [
        text_reply("Done."),
        text_reply("Done."),
        tool_call_reply(("note", "{}"), submits("Once."), ("note", "{}")),
    ]
    async with runtime.open(*steps, tools=[noted]) as process:
        run = await process.run("Build it.", agent="coder")
        entries = (await process.entries(run))[:kept]
        session = await process.store.find(run.session_id)
        await process.store.clear(session)
        async with process.store.open(session) as talk:
            await talk.append(*entries)

        def dead(tx: Transaction) -> None:
            was = tx.get_run(run.id) or run
            tx.update_run(
                replace(was, status=Status.RUNNING, ended_at=None, exit_tool="", owner_id="gone", text="")
            )

        await process.context.ledger.write(dead)
    rest = steps[sum(isinstance(each, Message) and each.role == "agent" for each in entries) :]
    async with runtime.open(*rest, tools=[noted]) as process:
        again = await process.resume(run)
        assert (again.status, again.exit_tool, again.text) == (Status.DONE, "submit_for_review", "Once.")
        assert await notices(process, run) == ["nudge", "nudge"]
        results = [(each.call_id, each.ok) for each in await process.tool_results(run)]
        assert len({of for of, _ in results}) == len(results) == 3
        assert made.count("noted") <= 2
        assert len(process.provider.requests) == len(rest)


def _noting(made: list[str]) -> Tool:
    @tool(effect="idempotent", asks="never")
    async def note() -> str:
        """Notes."""
        made.append("noted")
        return "noted"

    return note


async def test_words_while_somebody_is_at_work_for_it_wait_for_them_and_are_no_falling_silent(
    runtime: RuntimeFixture,
):
    runtime.write_agent("coder", CODER)
    spawn = ("sessions_spawn", json.dumps({"task": "Look."}))
    gate = asyncio.Event()
    main = [
        tool_call_reply(spawn),
        text_reply("I sent someone."),
        tool_call_reply(submits("With what they found.")),
    ]
    by_agent = {"Go.": main, "Look.": [PONDERS, tool_call_reply(submits("Found."))]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="coder")
        while not (await process.reload(run)).is_suspended:
            await process.worker.wait_for_change()
        gate.set()
        ended = await process.wait(run)
        while ended.status is not Status.DONE:
            await process.worker.wait_for_change()
            ended = await process.reload(run)
        assert (ended.exit_tool, ended.text) == ("submit_for_review", "With what they found.")
        assert await notices(process, run) == ["announcement"]


async def test_an_exit_ends_at_once_and_whoever_is_still_at_work_wakes_the_conversation(
    runtime: RuntimeFixture,
):
    """Shows: L028."""
    runtime.write_agent("coder", CODER)
    spawn = ("sessions_spawn", json.dumps({"task": "Look."}))
    gate = asyncio.Event()
    main = [tool_call_reply(spawn, submits("First.")), tool_call_reply(submits("And what came later."))]
    by_agent = {"Go.": main, "Look.": [PONDERS, tool_call_reply(submits("Found."))]}
    async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Go.", agent="coder")
        assert (await process.wait(run)).text == "First."
        gate.set()

        async def others() -> list[Run]:
            def step(tx: Transaction) -> list[Run]:
                return [each for each in tx.find_runs(session=run.session_id) if each.id != run.id]

            return await process.context.ledger.read(step)

        while not any(each.status is Status.DONE for each in await others()):
            await process.worker.wait_for_change()
        (woken,) = await others()
        assert (woken.request.source, woken.exit_tool, woken.text) == (
            "wake",
            "submit_for_review",
            "And what came later.",
        )
        assert (await process.reload(run)).text == "First."


async def test_a_tool_that_starts_others_can_be_an_exit_and_their_answer_begins_the_next_run(
    runtime: RuntimeFixture,
):
    """As a coder whose exit is the review, and who goes on with what the reviewer found.

    Shows: D052."""
    runtime.write_agent("coder", "tools: [ls]\nexits: [sessions_spawn, submit_for_review]\n")
    main = [
        tool_call_reply(("sessions_spawn", '{"task": "Review."}'), ("ls", "{}")),
        tool_call_reply(submits("Mended.")),
    ]
    by_agent = {"Go.": main, "Review.": [tool_call_reply(submits("Mend line 3."))]}
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.run("Go.", agent="coder")
        assert (run.status, run.exit_tool, json.loads(run.text)["status"]) == (
            Status.DONE,
            "sessions_spawn",
            "accepted",
        )

        def later(tx: Transaction) -> list[Run]:
            return [each for each in tx.find_runs(session=run.session_id) if each.id != run.id]

        while not any(each.status.is_final for each in await process.context.ledger.read(later)):
            await process.worker.wait_for_change()
        (woken,) = await process.context.ledger.read(later)
        assert (woken.exit_tool, woken.text) == ("submit_for_review", "Mended.")
        assert any(
            "Mend line 3." in entry.text for entry in process.request_entries(-1) if isinstance(entry, Notice)
        )


async def test_what_was_done_without_a_single_call_says_so(runtime: RuntimeFixture):
    runtime.write_agent("coder", CODER)
    async with runtime.open(
        text_reply("I know it."), LOOKS, text_reply("Looked."), tool_call_reply(submits())
    ) as process:
        talked = run_details_as_json(await process.run("What?"))
        assert (talked["evidence"], talked["exit"]) == ({"tool_calls": 0, "no_work": True}, None)
        looked = run_details_as_json(await process.run("Look."))
        assert looked["evidence"] == {"tool_calls": 1, "no_work": False}
        left = run_details_as_json(await process.run("Build it.", agent="coder"))
        assert (left["exit"], left["evidence"]["no_work"]) == ("submit_for_review", True)
