"""Interrupting and detaching runs: text is kept, running tools finish, and the requester continues."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from gates import PONDER_CALL, make_gated_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess, wait_until

from retinue.domain.approval import ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.errors import ModelFailed, Refused
from retinue.interfaces import Tool, Transaction
from retinue.runtime import model_turn, run_control
from retinue.runtime.agent_loop import INTERRUPTED_NOTE
from retinue.runtime.interrupts import interrupt_run
from retinue.testing.scripted_provider import ScriptedStep, text_reply, tool_call_reply
from retinue.tools.define import tool

ENDED = (Status.CANCELLED, Reason.INTERRUPTED)


def delegate_to_helper(*prompts: str) -> ModelReply:
    """Make a reply that starts one helper for each prompt."""
    calls = [json.dumps({"preset": "helper", "description": "look", "prompt": prompt}) for prompt in prompts]
    return tool_call_reply(*(("PersistentAgent", call) for call in calls))


@asynccontextmanager
async def open_with_waiting_run(
    runtime: RuntimeFixture, by_agent: Mapping[str, Sequence[ScriptedStep]], *tools: Tool
) -> AsyncGenerator[tuple[RuntimeProcess, Run]]:
    """Open a process whose run "Go." waits for the children that it has started."""
    runtime.write_agent("helper")
    async with runtime.open(by_agent=by_agent, tools=tools) as process:
        run = await process.submit("Go.")
        await process.wait_until_waiting(run, WaitReason.CHILD)
        yield process, run


@asynccontextmanager
async def open_with_talking_run(
    runtime: RuntimeFixture, *later_steps: ScriptedStep
) -> AsyncGenerator[tuple[RuntimeProcess, Run]]:
    """Open a process whose run has received "Half of thi" of a reply; the later steps answer its next requests."""
    async with runtime.open(text_reply("Half of this is saved."), *later_steps, hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        yield process, run


async def interrupt_and_wait(process: RuntimeProcess, run: Run) -> Run:
    await interrupt_run(run.id, process.context)
    return await process.wait_until_ended(run)


async def wait_until_notified(process: RuntimeProcess, *runs: Run) -> None:
    """Wait until these runs have noticed that they are interrupted."""

    async def condition() -> bool:
        noted = {event.run for event in process.events if "interrupted" in event.data.get("note", "")}
        return noted >= {run.id for run in runs}

    await wait_until(condition)


async def test_an_interrupt_aborts_the_streaming_reply_and_the_run_ends_with_a_summary(
    runtime: RuntimeFixture,
):
    """Shows: L009, B023."""
    async with open_with_talking_run(runtime, text_reply("In short: half.")) as (process, run):
        process.provider.hold_until = None
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason) == ENDED
        assert (ended.text, ended.turns, ended.is_awaited) == ("In short: half.", 1, False)
        *_, partial, notice, summary = await process.entries(run)
        assert isinstance(partial, Message)
        assert (partial.text, partial.stop_reason) == ("Half of thi", "cancelled")
        assert isinstance(notice, Notice)
        assert isinstance(summary, Message)
        assert (notice.topic, summary.text) == ("interrupted", "In short: half.")
        assert process.request_entries(1)[-2:] == [partial, notice]


async def test_an_interrupt_from_the_same_process_takes_effect_at_once(runtime: RuntimeFixture):
    """The worker does not wait for its next poll: a few turns of the event loop are enough."""
    async with open_with_talking_run(runtime, text_reply("In short: half.")) as (process, run):
        await interrupt_run(run.id, process.context)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [event.data["note"] for event in process.events if event.data.get("note")] == [
            INTERRUPTED_NOTE
        ]
        process.provider.hold_until = None


async def test_an_interrupt_lets_a_running_tool_finish_and_starts_no_other_call(runtime: RuntimeFixture):
    """A tool call in the summary is not executed either.

    Shows: L009."""
    gate = asyncio.Event()
    steps = [PONDER_CALL, tool_call_reply(("ponder", "{}"), text="I had pondered.")]
    async with runtime.open(*steps, text_reply("never"), tools=[make_gated_tool(gate)]) as process:
        run = await process.submit("Ponder.")
        await process.wait_for_event("tool.started")
        await interrupt_run(run.id, process.context)
        await wait_until_notified(process, run)
        assert (await process.reload(run)).status is Status.RUNNING
        gate.set()
        ended = await process.wait(run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I had pondered.")
        (result,) = await process.tool_results(run)
        assert (result.ok, result.text) == (True, "so")
        assert sum(isinstance(entry, ToolCall) for entry in await process.entries(run)) == 1
        assert len(process.provider.requests) == 2


async def test_a_run_whose_summary_fails_or_times_out_ends_with_the_text_so_far(
    runtime: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
):
    """Shows: B023."""
    failed = ModelFailed("the server is gone", reason="unreachable")
    async with open_with_talking_run(runtime, failed) as (process, run):
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "Half of thi")
    monkeypatch.setattr(model_turn, "SUMMARY_SECONDS", 0.05)
    async with open_with_talking_run(runtime, text_reply("Never all of it.")) as (process, run):
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "Never al")


async def test_children_of_an_interrupted_run_summarise_first_and_it_receives_their_summaries(
    runtime: RuntimeFixture,
):
    """Shows: L009."""
    gate = asyncio.Event()
    by_agent = {
        "Go.": [delegate_to_helper("One.", "Two."), text_reply("Both were stopped.")],
        "One.": [PONDER_CALL, text_reply("One was pondering.")],
        "Two.": [PONDER_CALL, text_reply("Two was pondering.")],
    }
    async with open_with_waiting_run(runtime, by_agent, make_gated_tool(gate)) as (process, run):
        await interrupt_run(run.id, process.context)
        await wait_until_notified(process, *(await process.all_runs())[1:])
        gate.set()
        ended = await process.wait_until_ended(run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "Both were stopped.")
        _, one, two = await process.all_runs()
        assert {(one.status, one.reason), (two.status, two.reason)} == {ENDED}
        assert {one.text, two.text} == {"One was pondering.", "Two was pondering."}
        results = [entry for entry in process.provider.requests[-1].entries if isinstance(entry, ToolResult)]
        assert len(results) == 2
        assert not any("interrupted before this call" in entry.text for entry in results)


async def test_an_interrupt_while_the_run_is_being_suspended_reaches_its_children(
    runtime: RuntimeFixture,
):
    """The interrupt is sent after a growing number of event loop turns.

    Shows: L009."""
    runtime.write_agent("helper")
    for steps in range(0, 60, 6):
        gate = asyncio.Event()
        by_agent = {
            "Go.": [delegate_to_helper("One."), text_reply("It was stopped.")],
            "One.": [PONDER_CALL, text_reply("I was pondering.")],
        }
        async with runtime.open(by_agent=by_agent, tools=[make_gated_tool(gate)]) as process:
            run = await process.submit("Go.")
            for _ in range(steps):
                await asyncio.sleep(0)
            await interrupt_run(run.id, process.context)
            while any(each.status.is_live for each in await process.all_runs()):
                await process.worker.wait_for_change()
                found = await process.all_runs()
                notified = {
                    event.run for event in process.events if event.data.get("note") == INTERRUPTED_NOTE
                }
                running = {each.id for each in found if each.status is Status.RUNNING}
                if len(found) > 1 and running <= notified:
                    gate.set()
            tree_runs = [each for each in await process.all_runs() if each.root_id == run.id]
            assert {(each.status, each.reason) for each in tree_runs} == {ENDED}, steps


async def test_a_run_interrupted_while_it_waits_for_approval_voids_the_approval_and_summarises(
    runtime: RuntimeFixture,
):
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
        await process.wait_until_waiting(run, WaitReason.APPROVAL)
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I was about to send it.")
        assert [each.state for each in await process.approvals()] == [ApprovalState.VOID]
        assert sent == []
        assert unanswered_calls(await process.entries(run)) == ()


async def test_a_queued_run_that_is_interrupted_is_cancelled_without_a_model_request(runtime: RuntimeFixture):
    gate = asyncio.Event()
    limits = Limits(max_live=1)
    async with runtime.open(
        PONDER_CALL, text_reply("Done."), tools=[make_gated_tool(gate)], limits=limits
    ) as process:
        first = await process.submit("Ponder.")
        second = await process.submit("Later.")
        ended = await interrupt_and_wait(process, second)
        assert (ended.status, ended.reason, ended.error) == (*ENDED, "interrupted before it started")
        gate.set()
        assert (await process.wait(first)).status is Status.DONE
        assert len(process.provider.requests) == 2


async def test_an_interrupt_from_another_process_reaches_the_process_that_executes_the_run(
    runtime: RuntimeFixture,
):
    """Shows: L009."""
    async with open_with_talking_run(runtime, text_reply("In short.")) as (here, run):
        here.provider.hold_until = None
        async with runtime.open(text_reply("never")) as there:
            await interrupt_run(run.id, there.context)
            ended = await here.wait(run)
            assert (ended.status, ended.reason, ended.text) == (*ENDED, "In short.")
            assert there.provider.requests == []


async def test_a_run_whose_process_died_summarises_in_the_process_that_interrupts_it(runtime: RuntimeFixture):
    async with open_with_talking_run(runtime) as (_, run):
        pass  # The process dies with the block.
    async with runtime.open(text_reply("I had hardly begun."), text_reply("never")) as process:
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I had hardly begun.")
        assert len(process.provider.requests) == 1


async def test_a_run_whose_process_dies_during_its_summary_summarises_once_when_resumed(
    runtime: RuntimeFixture,
):
    async with open_with_talking_run(runtime, text_reply("Never whole.")) as (process, run):
        await interrupt_run(run.id, process.context)

        async def summary_requested() -> bool:
            return len(process.provider.requests) == 2

        await wait_until(summary_requested)
    async with runtime.open(text_reply("In short.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "In short.")
        kinds = [entry.topic for entry in await process.entries(run) if isinstance(entry, Notice)]
        assert kinds.count("interrupted") == 1


async def test_an_interrupted_run_that_waits_for_workers_summarises_after_all_of_them(
    runtime: RuntimeFixture,
):
    """Each result is delivered once.

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
        "Look.": [*[PONDER_CALL] * 2, *[text_reply("I was looking.")] * 2],
    }
    async with open_with_waiting_run(runtime, by_agent, make_gated_tool(gate)) as (process, run):
        await interrupt_run(run.id, process.context)
        await wait_until_notified(process, *(await process.all_runs())[1:])
        assert (await process.reload(run)).status is Status.WAITING
        gate.set()
        while any(each.status.is_live for each in await process.all_runs()):
            await process.worker.wait_for_change()
        top, *workers = await process.all_runs()
        assert (top.status, top.reason, top.text) == (*ENDED, "I had sent them.")
        assert {(each.status, each.reason, each.text) for each in workers} == {(*ENDED, "I was looking.")}

        def delivery_states(tx: Transaction) -> list[str]:
            return [str(each.state) for each in tx.find_deliveries(requester_run=run.id)]

        assert await process.context.ledger.read(delivery_states) == ["delivered", "delivered"]
        last = "".join(entry.text for entry in process.request_entries(-1) if isinstance(entry, Notice))
        assert last.count("I was looking.") == 2


async def test_an_interrupted_run_that_waits_for_a_person_summarises(runtime: RuntimeFixture):
    runtime.write_agent("coder", "exits: [submit_for_review]\n")
    async with runtime.open(*[text_reply("Done.")] * 4, text_reply("I called no exit.")) as process:
        run = await process.run("Build it.", agent="coder")
        assert run.waiting_for is WaitReason.PERSON
        ended = await interrupt_and_wait(process, run)
        assert (ended.status, ended.reason, ended.text) == (*ENDED, "I called no exit.")


async def test_a_cancel_ends_an_interrupted_run_at_once_and_an_interrupt_does_not_change_a_cancelled_run(
    runtime: RuntimeFixture,
):
    """Shows: L009."""
    async with open_with_talking_run(runtime, text_reply("Never whole.")) as (process, run):
        await interrupt_run(run.id, process.context)
        ended = await process.cancel(run)
        assert (ended.status, ended.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        again = await interrupt_run(run.id, process.context)
        assert again.reason is Reason.USER_CANCEL


async def test_cancelling_one_of_two_children_leaves_the_other_running(runtime: RuntimeFixture):
    """Shows: L009."""
    gate = asyncio.Event()
    by_agent = {
        "Go.": [delegate_to_helper("One.", "Two."), text_reply("One of two.")],
        "One.": [PONDER_CALL, text_reply("never")],
        "Two.": [PONDER_CALL, text_reply("Two is done.")],
    }
    async with open_with_waiting_run(runtime, by_agent, make_gated_tool(gate)) as (process, run):
        _, one, two = await process.all_runs()
        one, two = (one, two) if one.request.task == "One." else (two, one)
        await process.cancel(one)
        assert (await process.reload(two)).status is Status.RUNNING
        gate.set()
        top = await process.wait_until_ended(run)
        assert (top.status, top.text) == (Status.DONE, "One of two.")
        assert (await process.reload(two)).status is Status.DONE
        assert (await process.reload(one)).reason is Reason.USER_CANCEL


async def test_detaching_a_child_continues_its_parent_and_announces_the_result_later(runtime: RuntimeFixture):
    """Shows: L011."""
    gate = asyncio.Event()
    by_agent = {
        "Go.": [
            delegate_to_helper("One."),
            text_reply("It goes on without me."),
            text_reply("Now I know."),
        ],
        "One.": [PONDER_CALL, text_reply("It is so.")],
    }
    async with open_with_waiting_run(runtime, by_agent, make_gated_tool(gate)) as (process, run):
        _, child = await process.all_runs()
        await run_control.detach_run(child.id, process.context)

        async def parent_has_replied() -> bool:
            return (await process.reload(run)).text == "It goes on without me."

        await wait_until(parent_has_replied)
        (answer,) = await process.tool_results(run)
        assert (answer.ok, child.id in answer.text) == (True, True)
        assert (await process.reload(child)).status is Status.RUNNING
        with pytest.raises(Refused, match="is already running in the background"):
            await run_control.detach_run(child.id, process.context)
        gate.set()
        ended = await process.wait_until_ended(run)
        assert (ended.status, ended.text) == (Status.DONE, "Now I know.")
        (notice,) = [entry for entry in await process.entries(run) if isinstance(entry, Notice)]
        assert (notice.topic, "It is so." in notice.text) == ("announcement", True)


async def test_detaching_one_of_several_children_still_waits_for_the_others(
    runtime: RuntimeFixture,
):
    """Shows: L011."""
    slow, quick = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wonder() -> str:
        """Waits for its own gate."""
        await quick.wait()
        return "well"

    by_agent = {
        "Go.": [
            delegate_to_helper("One.", "Two."),
            text_reply("Two is here."),
            text_reply("Both."),
        ],
        "One.": [PONDER_CALL, text_reply("One is so.")],
        "Two.": [tool_call_reply(("wonder", "{}")), text_reply("Two is well.")],
    }
    async with open_with_waiting_run(runtime, by_agent, make_gated_tool(slow), wonder) as (process, run):
        one = next(each for each in await process.all_runs() if each.request.task == "One.")
        await run_control.detach_run(one.id, process.context)

        async def call_has_result() -> bool:
            return len(await process.tool_results(run)) == 1

        await wait_until(call_has_result)
        await process.wait_until_waiting(run, WaitReason.CHILD)
        quick.set()

        async def parent_has_replied() -> bool:
            return (await process.reload(run)).text == "Two is here."

        await wait_until(parent_has_replied)
        slow.set()
        ended = await process.wait_until_ended(run)
        assert (ended.status, ended.text) == (Status.DONE, "Both.")
        texts = [entry.text for entry in await process.entries(run) if not isinstance(entry, ToolCall)]
        assert sum(bool(re.search("One is so", text)) for text in texts) == 1
        assert sum(bool(re.search("Two is well", text)) for text in texts) == 1
