"""A person interrupts a run, or sends one that is waited for into the background: what was said stays, what is done is
let finish, and those who asked go on."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.errors import ModelFailed, Refused
from retinue.interfaces import Tool, Transaction
from retinue.runtime import model_turn, run_control
from retinue.runtime.agent_loop import INTERRUPTED_NOTE
from retinue.runtime.interrupts import interrupt_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

ENDED = (Status.CANCELLED, Reason.INTERRUPTED)


def hands_on(preset: str, prompt: str) -> tuple[str, str]:
    return "PersistentAgent", json.dumps({"preset": preset, "description": "look", "prompt": prompt})


def ponders(gate: asyncio.Event) -> Tool:
    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await gate.wait()
        return "so it is"

    return ponder


async def stopped(process: RuntimeProcess, run: Run) -> Run:
    await interrupt_run(run.id, process.context)
    while not (now := await process.reload(run)).status.is_final:
        await process.worker.wait_for_change()
    return now


async def heard(process: RuntimeProcess, *wanted: Run) -> None:
    """Until those who are at work know that they are interrupted."""

    async def so() -> bool:
        noted = {event.run for event in process.events if "interrupted" in event.data.get("note", "")}
        return noted >= {run.id for run in wanted}

    await soon(so)


async def runs(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def soon(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  (what is waited for is a row, and rows do not call)
        await asyncio.sleep(0.002)


async def waiting(process: RuntimeProcess, run: Run, what: WaitReason = WaitReason.CHILD) -> None:
    async def so() -> bool:
        return (await process.reload(run)).waiting_for is what

    await soon(so)


async def test_a_reply_on_its_way_is_given_up_and_the_run_ends_with_a_summary(runtime: RuntimeFixture):
    """Shows: L009, B023."""
    async with runtime.open(
        text_reply("Half of this is heard."), text_reply("In short: half."), hold=True
    ) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        process.provider.hold_until = None
        ended = await stopped(process, run)
        assert (ended.status, ended.reason) == ENDED
        assert (ended.text, ended.turns, ended.is_awaited) == ("In short: half.", 1, False)
        *_, cut, notice, summary = await process.entries(run)
        assert isinstance(cut, Message)
        assert (cut.text, cut.stop_reason) == ("Half of thi", "cancelled")
        assert isinstance(notice, Notice)
        assert isinstance(summary, Message)
        assert (notice.topic, summary.text) == ("interrupted", "In short: half.")
        assert process.request_entries(1)[-2:] == [cut, notice]


async def test_whoever_interrupts_in_the_same_process_is_heard_at_once(runtime: RuntimeFixture):
    """Without waiting for the engine's next look round: nothing but turns of the loop may pass."""
    async with runtime.open(
        text_reply("Half of this is heard."), text_reply("In short: half."), hold=True
    ) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        await interrupt_run(run.id, process.context)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [event.data["note"] for event in process.events if event.data.get("note")] == [
            INTERRUPTED_NOTE
        ]
        process.provider.hold_until = None


async def test_a_tool_that_runs_is_let_finish_and_nothing_more_is_called(runtime: RuntimeFixture):
    """A call in the summary is not made either.

    Shows: L009."""
    gate = asyncio.Event()
    steps = [tool_call_reply(("ponder", "{}")), tool_call_reply(("ponder", "{}"), text="I had pondered.")]
    async with runtime.open(*steps, text_reply("never"), tools=[ponders(gate)]) as process:
        run = await process.submit("Ponder.")
        await process.wait_for_event("tool.started")
        await interrupt_run(run.id, process.context)
        await heard(process, run)
        assert (await process.reload(run)).status is Status.RUNNING
        gate.set()
        ended = await process.wait(run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I had pondered.")
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (True, "so it is")
        assert sum(isinstance(entry, ToolCall) for entry in await process.entries(run)) == 1
        assert len(process.provider.requests) == 2


async def test_a_summary_that_does_not_come_leaves_the_words_so_far(
    runtime: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
):
    """Shows: B023."""
    failed = ModelFailed("the server is gone", reason="unreachable")
    async with runtime.open(text_reply("Half of this is heard."), failed, hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        ended = await stopped(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "Half of thi")
    monkeypatch.setattr(model_turn, "SUMMARY_SECONDS", 0.05)
    async with runtime.open(
        text_reply("Half of this is heard."), text_reply("Never all of it."), hold=True
    ) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        ended = await stopped(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "Never al")


async def test_those_it_waits_for_sum_up_first_and_it_hears_them(runtime: RuntimeFixture):
    """Shows: L009."""
    runtime.write_agent("helper")
    gate = asyncio.Event()
    by_agent = {
        "Go.": [
            tool_call_reply(hands_on("helper", "One."), hands_on("helper", "Two.")),
            text_reply("Both were stopped."),
        ],
        "One.": [tool_call_reply(("ponder", "{}")), text_reply("One was pondering.")],
        "Two.": [tool_call_reply(("ponder", "{}")), text_reply("Two was pondering.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponders(gate)]) as process:
        run = await process.submit("Go.")
        await waiting(process, run)
        await interrupt_run(run.id, process.context)
        await heard(process, *(await runs(process))[1:])
        gate.set()
        while not (now := await process.reload(run)).status.is_final:
            await process.worker.wait_for_change()
        assert (now.status, now.reason, now.text) == (*ENDED, "Both were stopped.")
        _, one, two = await runs(process)
        assert {(one.status, one.reason), (two.status, two.reason)} == {ENDED}
        assert {one.text, two.text} == {"One was pondering.", "Two was pondering."}
        results = [entry for entry in process.provider.requests[-1].entries if isinstance(entry, ToolResult)]
        assert len(results) == 2
        assert not any("interrupted before this call" in entry.text for entry in results)


async def test_a_wish_that_comes_while_a_call_is_about_to_wait_reaches_those_it_waits_for(
    runtime: RuntimeFixture,
):
    """At any moment around the parking of the run.

    Shows: L009."""
    runtime.write_agent("helper")
    for steps in range(0, 60, 6):
        gate = asyncio.Event()
        by_agent = {
            "Go.": [tool_call_reply(hands_on("helper", "One.")), text_reply("It was stopped.")],
            "One.": [tool_call_reply(("ponder", "{}")), text_reply("I was pondering.")],
        }
        async with runtime.open(by_agent=by_agent, tools=[ponders(gate)]) as process:
            run = await process.submit("Go.")
            for _ in range(steps):
                await asyncio.sleep(0)
            await interrupt_run(run.id, process.context)
            while any(each.status.is_live for each in await runs(process)):
                await process.worker.wait_for_change()
                found = await runs(process)
                told = {event.run for event in process.events if event.data.get("note") == INTERRUPTED_NOTE}
                at_work = {each.id for each in found if each.status is Status.RUNNING}
                if len(found) > 1 and at_work <= told:
                    gate.set()
            mine = [each for each in await runs(process) if each.root_id == run.id]
            assert {(each.status, each.reason) for each in mine} == {ENDED}, steps


async def test_a_question_is_withdrawn_and_what_asked_sums_up(runtime: RuntimeFixture):
    """Shows: L009."""
    sent: list[str] = []

    @tool(effect="once")
    async def mail() -> str:
        """Sends."""
        sent.append("mail")
        return "sent"

    steps = [tool_call_reply(("mail", "{}")), text_reply("I was about to send it.")]
    async with runtime.open(*steps, tools=[mail], approval_policy=ApprovalPolicy.ASK) as process:
        run = await process.submit("Send it.")
        await waiting(process, run, WaitReason.APPROVAL)
        ended = await stopped(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I was about to send it.")

        def states(tx: Transaction) -> list[ApprovalState]:
            return [each.state for each in tx.find_approvals()]

        assert (await process.context.ledger.read(states), sent) == ([ApprovalState.VOID], [])
        assert unanswered_calls(await process.entries(run)) == ()


async def test_a_run_that_never_began_is_cancelled_and_asks_nobody(runtime: RuntimeFixture):
    gate = asyncio.Event()
    limits = Limits(max_live=1)
    async with runtime.open(
        tool_call_reply(("ponder", "{}")), text_reply("Done."), tools=[ponders(gate)], limits=limits
    ) as process:
        first = await process.submit("Ponder.")
        second = await process.submit("Later.")
        ended = await stopped(process, second)
        assert (ended.status, ended.reason, ended.error) == (*ENDED, "interrupted before it started")
        gate.set()
        assert (await process.wait(first)).status is Status.DONE
        assert len(process.provider.requests) == 2


async def test_a_wish_from_another_process_is_heard_by_the_one_that_works_the_run(runtime: RuntimeFixture):
    """Shows: L009."""
    async with runtime.open(text_reply("Half of this is heard."), text_reply("In short."), hold=True) as here:
        run = await here.submit("Talk.")
        await here.wait_for_event("text.delta")
        here.provider.hold_until = None
        async with runtime.open(text_reply("never")) as there:
            await interrupt_run(run.id, there.context)
            ended = await here.wait(run)
            assert (ended.status, ended.reason, ended.text) == (*ENDED, "In short.")
            assert there.provider.requests == []


async def test_a_run_whose_process_died_sums_up_in_the_one_that_interrupts_it(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("I had hardly begun."), text_reply("never")) as process:
        ended = await stopped(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I had hardly begun.")
        assert len(process.provider.requests) == 1


async def test_a_process_that_dies_while_a_run_sums_up_leaves_a_run_that_sums_up_once(
    runtime: RuntimeFixture,
):
    async with runtime.open(
        text_reply("Half of this is heard."), text_reply("Never whole."), hold=True
    ) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        await interrupt_run(run.id, process.context)

        async def asked_again() -> bool:
            return len(process.provider.requests) == 2

        await soon(asked_again)
    async with runtime.open(text_reply("In short.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "In short.")
        kinds = [entry.topic for entry in await process.entries(run) if isinstance(entry, Notice)]
        assert kinds.count("interrupted") == 1


async def test_one_that_has_spoken_and_waits_for_workers_sums_up_when_all_of_them_have(
    runtime: RuntimeFixture,
):
    """What they came to is heard, and told once.
    Shows: L020.
    """
    gate = asyncio.Event()
    spawn = ("sessions_spawn", json.dumps({"task": "Look."}))
    by_agent = {
        "Go.": [
            tool_call_reply(spawn, spawn),
            text_reply("I sent two."),
            text_reply("I had sent them."),
            text_reply("never"),
        ],
        "Look.": [*[tool_call_reply(("ponder", "{}"))] * 2, *[text_reply("I was looking.")] * 2],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponders(gate)]) as process:
        run = await process.submit("Go.")
        await waiting(process, run)
        await interrupt_run(run.id, process.context)
        await heard(process, *(await runs(process))[1:])
        assert (await process.reload(run)).status is Status.WAITING
        gate.set()
        while any(each.status.is_live for each in await runs(process)):
            await process.worker.wait_for_change()
        top, *workers = await runs(process)
        assert (top.status, top.reason, top.text) == (*ENDED, "I had sent them.")
        assert {(each.status, each.reason, each.text) for each in workers} == {(*ENDED, "I was looking.")}

        def told(tx: Transaction) -> list[str]:
            return [str(each.state) for each in tx.find_deliveries(requester_run=run.id)]

        assert await process.context.ledger.read(told) == ["delivered", "delivered"]
        last = "".join(entry.text for entry in process.request_entries(-1) if isinstance(entry, Notice))
        assert last.count("I was looking.") == 2


async def test_one_that_waits_for_a_person_sums_up(runtime: RuntimeFixture):
    runtime.write_agent("coder", "exits: [submit_for_review]\n")
    async with runtime.open(*[text_reply("Done.")] * 4, text_reply("I called no exit.")) as process:
        run = await process.run("Build it.", agent="coder")
        assert run.waiting_for is WaitReason.PERSON
        ended = await stopped(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I called no exit.")


async def test_a_cancel_after_an_interruption_ends_it_at_once_and_not_the_other_way_round(
    runtime: RuntimeFixture,
):
    """Shows: L009."""
    async with runtime.open(
        text_reply("Half of this is heard."), text_reply("Never whole."), hold=True
    ) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        await interrupt_run(run.id, process.context)
        ended = await process.cancel(run)
        assert (ended.status, ended.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        again = await interrupt_run(run.id, process.context)
        assert again.reason is Reason.USER_CANCEL


async def test_of_two_runs_side_by_side_only_the_one_that_is_stopped_stops(runtime: RuntimeFixture):
    """Shows: L009."""
    runtime.write_agent("helper")
    gate = asyncio.Event()
    by_agent = {
        "Go.": [
            tool_call_reply(hands_on("helper", "One."), hands_on("helper", "Two.")),
            text_reply("One of two."),
        ],
        "One.": [tool_call_reply(("ponder", "{}")), text_reply("never")],
        "Two.": [tool_call_reply(("ponder", "{}")), text_reply("Two is done.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponders(gate)]) as process:
        run = await process.submit("Go.")
        await waiting(process, run)
        _, one, two = await runs(process)
        one, two = (one, two) if one.request.task == "One." else (two, one)
        await process.cancel(one)
        assert (await process.reload(two)).status is Status.RUNNING
        gate.set()
        while not (top := await process.reload(run)).status.is_final:
            await process.worker.wait_for_change()
        assert (top.status, top.text) == (Status.DONE, "One of two.")
        assert (await process.reload(two)).status is Status.DONE
        assert (await process.reload(one)).reason is Reason.USER_CANCEL


async def test_a_run_that_is_detached_lets_its_asker_go_on_and_is_announced_later(runtime: RuntimeFixture):
    """Shows: L011."""
    runtime.write_agent("helper")
    gate = asyncio.Event()
    by_agent = {
        "Go.": [
            tool_call_reply(hands_on("helper", "One.")),
            text_reply("It goes on without me."),
            text_reply("Now I know."),
        ],
        "One.": [tool_call_reply(("ponder", "{}")), text_reply("It is so.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponders(gate)]) as process:
        run = await process.submit("Go.")
        await waiting(process, run)
        _, child = await runs(process)
        await run_control.detach_run(child.id, process.context)

        async def spoken() -> bool:
            return (await process.reload(run)).text == "It goes on without me."

        await soon(spoken)
        (answer,) = await process.tool_results(run)
        assert (answer.ok, child.id in answer.text) == (True, True)
        assert (await process.reload(child)).status is Status.RUNNING
        with pytest.raises(Refused, match="already runs in the background"):
            await run_control.detach_run(child.id, process.context)
        gate.set()
        while not (now := await process.reload(run)).status.is_final:
            await process.worker.wait_for_change()
        assert (now.status, now.text) == (Status.DONE, "Now I know.")
        (notice,) = [entry for entry in await process.entries(run) if isinstance(entry, Notice)]
        assert (notice.topic, "It is so." in notice.text) == ("announcement", True)


async def test_of_several_that_are_waited_for_one_is_detached_and_the_others_are_waited_for(
    runtime: RuntimeFixture,
):
    """Shows: L011."""
    runtime.write_agent("helper")
    slow, quick = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wonder() -> str:
        """Takes its time too."""
        await quick.wait()
        return "well"

    by_agent = {
        "Go.": [
            tool_call_reply(hands_on("helper", "One."), hands_on("helper", "Two.")),
            text_reply("Two is here."),
            text_reply("Both."),
        ],
        "One.": [tool_call_reply(("ponder", "{}")), text_reply("One is so.")],
        "Two.": [tool_call_reply(("wonder", "{}")), text_reply("Two is well.")],
    }
    async with runtime.open(by_agent=by_agent, tools=[ponders(slow), wonder]) as process:
        run = await process.submit("Go.")
        await waiting(process, run)
        one = next(each for each in await runs(process) if each.request.task == "One.")
        await run_control.detach_run(one.id, process.context)

        async def answered() -> bool:
            return len(await process.tool_results(run)) == 1

        await soon(answered)
        await waiting(process, run)
        quick.set()

        async def spoken() -> bool:
            return (await process.reload(run)).text == "Two is here."

        await soon(spoken)
        slow.set()
        while not (now := await process.reload(run)).status.is_final:
            await process.worker.wait_for_change()
        assert (now.status, now.text) == (Status.DONE, "Both.")
        texts = [entry.text for entry in await process.entries(run) if not isinstance(entry, ToolCall)]
        assert sum(bool(re.search("One is so", text)) for text in texts) == 1
        assert sum(bool(re.search("Two is well", text)) for text in texts) == 1
