"""Idle timeouts and deadlines of runs."""

import asyncio
import json
import re
from collections.abc import Callable
from itertools import count

from runtime_fixture import RuntimeFixture

from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta, StopReason
from retinue.domain.run import Reason, Status, WaitReason
from retinue.interfaces import Provider
from retinue.runtime import run_control
from retinue.testing.scripted_provider import FakeProvider, text_reply, tool_call_reply
from retinue.tools.define import tool

SHORT_IDLE = Limits(idle_seconds=0.05)
SHORT_REPLY = Limits(reply_seconds=0.05)
LONG_PAUSE_S = 0.2
"""Four times the idle timeout of SHORT_IDLE."""
SPAWN_HELPER = tool_call_reply(
    ("PersistentAgent", json.dumps({"preset": "helper", "description": "look", "prompt": "Look."}))
)


class EndlessProvider(Provider):
    """Streams text of one agent without end, or some pieces of it; the other agents are scripted."""

    def __init__(
        self,
        scripted: FakeProvider,
        agent: str,
        *,
        text: str = "la ",
        delay_s: float = 0,
        pieces: int | None = None,
        ends: bool = False,
    ) -> None:
        self.scripted = scripted
        self.agent = agent
        self.text = text
        self.delay_s = delay_s
        self.pieces = pieces
        self.ends = ends
        """After its pieces, the reply ends; otherwise nothing more comes."""
        self.stop_count = 0

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        if request.agent_name != self.agent:
            return await self.scripted.request_reply(request, on_delta)
        try:
            await asyncio.sleep(self.delay_s)
            if not self.text:
                return await self.scripted.request_reply(request, on_delta)
            for _ in count() if self.pieces is None else range(self.pieces):
                on_delta(ReplyDelta(text=self.text))
                await asyncio.sleep(0.01)
            if not self.ends:
                await asyncio.Event().wait()
            return ModelReply(text=self.text * (self.pieces or 0), model="m", stop_reason=StopReason.END)
        finally:
            self.stop_count += 1

    async def close(self) -> None:
        """Nothing to close."""


async def test_a_child_that_streams_text_without_tool_calls_is_stopped_and_its_parent_continues(
    runtime: RuntimeFixture,
):
    """Shows: B050."""
    runtime.write_agent("helper")
    provider = EndlessProvider(FakeProvider({"*": [SPAWN_HELPER, text_reply("It got stuck.")]}), "helper")
    async with runtime.open(provider=provider, limits=SHORT_REPLY) as process:
        run = await process.wait_until_ended(await process.submit("Go."))
        assert (run.status, run.text) == (Status.DONE, "It got stuck.")
        _, child = await process.all_runs()
        assert (child.status, child.reason) == (Status.FAILED, Reason.IDLE)
        assert re.fullmatch(r"Agent stuck: no tool calls for \d+ seconds \(timeout: 0\.05s\)", child.error)
        assert child.text.startswith("la la ")
        assert provider.stop_count == 1


async def test_a_child_whose_reply_pauses_for_too_long_is_stopped(runtime: RuntimeFixture):
    runtime.write_agent("helper")
    provider = EndlessProvider(
        FakeProvider({"*": [SPAWN_HELPER, text_reply("It got stuck.")]}), "helper", pieces=1
    )
    async with runtime.open(provider=provider, limits=SHORT_IDLE) as process:
        await process.wait_until_ended(await process.submit("Go."))
        _, child = await process.all_runs()
        assert (child.status, child.reason, child.text) == (Status.FAILED, Reason.IDLE, "la ")
        assert child.error.endswith("(timeout: 0.05s)")


async def test_a_child_that_streams_for_longer_than_the_idle_timeout_is_not_stopped(runtime: RuntimeFixture):
    runtime.write_agent("helper")
    provider = EndlessProvider(
        FakeProvider({"*": [SPAWN_HELPER, text_reply("Good.")]}), "helper", pieces=40, ends=True
    )
    async with runtime.open(provider=provider, limits=Limits(idle_seconds=0.2)) as process:
        run = await process.wait_until_ended(await process.submit("Go."))
        _, child = await process.all_runs()
        assert (run.status, child.status, child.text) == (Status.DONE, Status.DONE, "la " * 40)


async def test_a_definition_can_set_its_own_time_limits_of_replies(runtime: RuntimeFixture):
    """Shows: B050."""
    runtime.write_agent("helper", "limits:\n  reply_seconds: 0.05\n")
    provider = EndlessProvider(FakeProvider({"*": [SPAWN_HELPER, text_reply("It got stuck.")]}), "helper")
    async with runtime.open(provider=provider) as process:
        run = await process.wait_until_ended(await process.submit("Go."))
        assert (run.status, (await process.all_runs())[1].reason) == (Status.DONE, Reason.IDLE)


async def test_waiting_for_the_first_token_does_not_count_as_idle(runtime: RuntimeFixture):
    """Shows: L010."""
    runtime.write_agent("helper")
    steps = {"Go.": [SPAWN_HELPER, text_reply("Good.")], "Look.": [text_reply("Here.")]}
    provider = EndlessProvider(FakeProvider(steps), "helper", text="", delay_s=LONG_PAUSE_S)
    async with runtime.open(provider=provider, limits=SHORT_IDLE) as process:
        run = await process.wait_until_ended(await process.submit("Go."))
        assert [each.status for each in await process.all_runs()] == [Status.DONE, Status.DONE]
        assert run.text == "Good."


async def test_waiting_for_a_tool_a_child_or_a_person_does_not_count_as_idle(runtime: RuntimeFixture):
    """Shows: L010."""
    runtime.write_agent("helper", "tools: [PersistentAgent, brood, mail]\n")
    runtime.write_agent("other", "tools: [brood]\n")

    @tool(effect="read")
    async def brood() -> str:
        """Takes its time."""
        await asyncio.sleep(LONG_PAUSE_S)
        return "so"

    @tool(effect="once")
    async def mail() -> str:
        """Asks a person first."""
        return "sent"

    spawn_other = (
        "PersistentAgent",
        json.dumps({"preset": "other", "description": "x", "prompt": "Deeper."}),
    )
    by_agent = {
        "Go.": [SPAWN_HELPER, text_reply("Good.")],
        "Look.": [
            tool_call_reply(("brood", "{}")),
            tool_call_reply(spawn_other),
            tool_call_reply(("mail", "{}")),
            text_reply("Here."),
        ],
        "Deeper.": [tool_call_reply(("brood", "{}")), text_reply("There.")],
    }
    async with runtime.open(
        by_agent=by_agent, tools=[brood, mail], limits=SHORT_IDLE, approval_policy=ApprovalPolicy.ASK
    ) as process:
        run = await process.submit("Go.")
        for tool_name in ("PersistentAgent", "PersistentAgent", "mail"):
            approval = await process.wait_for_approval()
            assert approval.tool == tool_name
            await asyncio.sleep(LONG_PAUSE_S / 2)
            await process.answer_approval(approval, Answer.ALLOW)
        assert (await process.wait_until_ended(run)).text == "Good."
        assert {each.status for each in await process.all_runs()} == {Status.DONE}


async def test_a_run_started_by_a_person_has_no_idle_timeout(runtime: RuntimeFixture):
    """Shows: B050."""
    async with runtime.open(text_reply("Half of this is heard."), hold=True, limits=SHORT_IDLE) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        await asyncio.sleep(LONG_PAUSE_S)
        process.release_turn()
        assert (await process.wait(run)).status is Status.DONE


async def test_the_deadline_of_a_definition_applies_unless_the_run_has_its_own(runtime: RuntimeFixture):
    runtime.write_agent("hasty", "limits:\n  deadline_seconds: 0.1\n")
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.run("Hurry.", agent="hasty")
        assert (run.status, run.reason, run.text) == (Status.TIMED_OUT, Reason.DEADLINE, "Half o")
        assert run.error == "deadline exceeded: 0.1 s of work"
        assert run.deadline_at is not None
        assert run.started_at is not None
        assert (run.deadline_at - run.started_at).total_seconds() == 0.1
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Hurry.", agent="hasty", deadline_seconds=30)
        await process.wait_for_event("text.delta")
        await asyncio.sleep(LONG_PAUSE_S)
        process.release_turn()
        assert (await process.wait(run)).status is Status.DONE


async def test_waiting_for_a_person_does_not_use_up_the_deadline(runtime: RuntimeFixture):
    runtime.write_agent("coder", "exits: [submit_for_review]\nlimits:\n  deadline_seconds: 1.5\n")
    submits = tool_call_reply(("submit_for_review", '{"summary": "Done."}'))
    async with runtime.open(*[text_reply("Done.")] * 4, submits) as process:
        run = await process.run("Build it.", agent="coder")
        assert (run.waiting_for, run.wake_at) == (WaitReason.PERSON, None)
        await asyncio.sleep(2.1)
        session = await process.store.find(run.session_id)
        continued = await run_control.answer_waiting_run(session, "Submit.", process.context)
        assert continued is not None
        assert (await process.wait(continued)).status is Status.DONE
