"""The clocks of a run: what an agent may talk without doing anything, and how long its definition lets it take."""

import asyncio
import json
import re
from collections.abc import Callable

from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.model_turn import Reply, ReplyDelta, Request
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.interfaces import Provider, Transaction
from retinue.runtime import run_control
from retinue.testing.scripted_provider import FakeProvider, text_reply, tool_call_reply
from retinue.tools.define import tool

BRIEF = Limits(idle_seconds=0.05)
LONG = 0.2
"""Four times what BRIEF lets an agent idle."""
HAND_ON = tool_call_reply(
    ("PersistentAgent", json.dumps({"preset": "helper", "description": "look", "prompt": "Look."}))
)


class Babbling(Provider):
    """One agent speaks and never comes to an end; the others are played."""

    def __init__(self, played: FakeProvider, who: str, *, first: str = "la ", before: float = 0) -> None:
        self.played = played
        self.who = who
        self.first = first
        self.before = before
        self.cut = 0

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        if request.agent_name != self.who:
            return await self.played.request_reply(request, on_delta)
        try:
            await asyncio.sleep(self.before)
            if not self.first:
                return await self.played.request_reply(request, on_delta)
            while True:
                on_delta(ReplyDelta(text=self.first))
                await asyncio.sleep(0.01)
        finally:
            self.cut += 1

    async def close(self) -> None:
        """Nothing is held open."""


async def tree(process: RuntimeProcess) -> list[Run]:
    def step(tx: Transaction) -> list[Run]:
        return sorted(tx.find_runs(), key=lambda run: run.id)

    return await process.context.ledger.read(step)


async def over(process: RuntimeProcess, run: Run) -> Run:
    while not (now := await process.reload(run)).status.is_final:
        await process.worker.wait_for_change()
    return now


async def test_an_agent_that_only_talks_is_stopped_and_its_asker_goes_on(runtime: RuntimeFixture):
    """Shows: B050."""
    runtime.write_agent("helper")
    driver = Babbling(FakeProvider({"*": [HAND_ON, text_reply("It got stuck.")]}), "helper")
    async with runtime.open(provider=driver, limits=BRIEF) as process:
        run = await over(process, await process.submit("Go."))
        assert (run.status, run.text) == (Status.DONE, "It got stuck.")
        _, child = await tree(process)
        assert (child.status, child.reason) == (Status.FAILED, Reason.IDLE)
        assert re.fullmatch(r"Agent stuck: no tool calls for \d+ seconds \(timeout: 0\.05s\)", child.error)
        assert child.text.startswith("la la ")
        assert driver.cut == 1


async def test_a_definition_has_its_own_patience(runtime: RuntimeFixture):
    """Shows: B050."""
    runtime.write_agent("helper", "limits:\n  idle_seconds: 0.05\n")
    driver = Babbling(FakeProvider({"*": [HAND_ON, text_reply("It got stuck.")]}), "helper")
    async with runtime.open(provider=driver) as process:
        run = await over(process, await process.submit("Go."))
        assert (run.status, (await tree(process))[1].reason) == (Status.DONE, Reason.IDLE)


async def test_waiting_for_the_first_word_is_not_idling(runtime: RuntimeFixture):
    """Shows: L010."""
    runtime.write_agent("helper")
    steps = {"Go.": [HAND_ON, text_reply("Good.")], "Look.": [text_reply("Here.")]}
    driver = Babbling(FakeProvider(steps), "helper", first="", before=LONG)
    async with runtime.open(provider=driver, limits=BRIEF) as process:
        run = await over(process, await process.submit("Go."))
        assert [each.status for each in await tree(process)] == [Status.DONE, Status.DONE]
        assert run.text == "Good."


async def test_a_tool_a_child_and_a_person_may_take_their_time(runtime: RuntimeFixture):
    """Shows: L010."""
    runtime.write_agent("helper", "tools: [PersistentAgent, brood, mail]\n")
    runtime.write_agent("other", "tools: [brood]\n")

    @tool(effect="read")
    async def brood() -> str:
        """Takes its time."""
        await asyncio.sleep(LONG)
        return "so"

    @tool(effect="once")
    async def mail() -> str:
        """Asks a person first."""
        return "sent"

    deeper = ("PersistentAgent", json.dumps({"preset": "other", "description": "x", "prompt": "Deeper."}))
    by_agent = {
        "Go.": [HAND_ON, text_reply("Good.")],
        "Look.": [
            tool_call_reply(("brood", "{}")),
            tool_call_reply(deeper),
            tool_call_reply(("mail", "{}")),
            text_reply("Here."),
        ],
        "Deeper.": [tool_call_reply(("brood", "{}")), text_reply("There.")],
    }
    async with runtime.open(
        by_agent=by_agent, tools=[brood, mail], limits=BRIEF, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Go.")
        for tool_name in ("PersistentAgent", "PersistentAgent", "mail"):
            while not (asked := await _pending(process)):
                await process.worker.wait_for_change()
            assert asked[0].tool == tool_name
            await asyncio.sleep(LONG / 2)
            await run_control.answer_approval(
                asked[0].id, Answer.ALLOW, process.context, by="person", is_alive=lambda _: True
            )
        assert (await over(process, run)).text == "Good."
        assert {each.status for each in await tree(process)} == {Status.DONE}


async def _pending(process: RuntimeProcess) -> list[Approval]:
    def step(tx: Transaction) -> list[Approval]:
        return tx.find_approvals(state=[ApprovalState.PENDING])

    return await process.context.ledger.read(step)


async def test_a_run_that_a_person_began_may_talk_as_long_as_it_likes(runtime: RuntimeFixture):
    """Shows: B050."""
    async with runtime.open(text_reply("Half of this is heard."), hold=True, limits=BRIEF) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        await asyncio.sleep(LONG)
        process.release_turn()
        assert (await process.wait(run)).status is Status.DONE


async def test_a_definitions_own_deadline_counts_unless_the_run_was_given_one(runtime: RuntimeFixture):
    runtime.write_agent("hasty", "limits:\n  deadline_seconds: 0.1\n")
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.run("Hurry.", agent="hasty")
        assert (run.status, run.reason, run.text) == (Status.TIMED_OUT, Reason.DEADLINE, "Half o")
        assert run.error == "the deadline passed: 0.1 s from the start"
        assert run.deadline_at is not None
        assert run.started_at is not None
        assert (run.deadline_at - run.started_at).total_seconds() == 0.1
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Hurry.", agent="hasty", deadline_seconds=30)
        await process.wait_for_event("text.delta")
        await asyncio.sleep(LONG)
        process.release_turn()
        assert (await process.wait(run)).status is Status.DONE


async def test_a_run_that_waits_for_a_person_to_go_on_is_not_late_because_of_them(runtime: RuntimeFixture):
    runtime.write_agent("coder", "exits: [submit_for_review]\nlimits:\n  deadline_seconds: 1.5\n")
    leaves = tool_call_reply(("submit_for_review", '{"summary": "Done."}'))
    async with runtime.open(*[text_reply("Done.")] * 4, leaves) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.waiting_for, run.wake_at) == (WaitReason.PERSON, None)
        await asyncio.sleep(2.1)
        session = await process.store.find(run.session_id)
        again = await run_control.answer_waiting_run(session, "Submit.", process.context)
        assert again is not None
        assert (await process.wait(again)).status is Status.DONE
