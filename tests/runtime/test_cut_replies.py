"""Replies cut off at the model's output limit: continued once, and never a complete success in silence."""

import asyncio
import json

import pytest
from runtime_fixture import RuntimeFixture

from retinue.domain.event import Event
from retinue.domain.model_turn import ModelReply, StopReason
from retinue.domain.run import Reason, Run, Status
from retinue.domain.transcript import Message, Notice
from retinue.testing.scripted_provider import text_reply, tool_call_reply


def cut_reply(text: str) -> ModelReply:
    return ModelReply(text=text, stop_reason=StopReason.LENGTH)


async def test_a_cut_reply_is_continued_once_and_the_texts_are_joined(runtime: RuntimeFixture):
    async with runtime.open(cut_reply("The answer is forty-"), text_reply("two, of course.")) as process:
        run = await process.run("Answer.")
        assert (run.status, run.reason, run.turns) == (Status.DONE, None, 2)
        assert run.text == "The answer is forty-two, of course."
        last = process.request_entries(1)[-1]
        assert isinstance(last, Notice)
        assert "cut off at the output limit. Continue it exactly where it stopped" in last.text


async def test_a_continuation_that_is_cut_too_is_reported_as_incomplete(runtime: RuntimeFixture):
    async with runtime.open(cut_reply("One, "), cut_reply("two, "), text_reply("three")) as process:
        run = await process.run("Count.")
        assert (run.status, run.reason, run.text) == (Status.DONE, Reason.INCOMPLETE, "One, two, ")
        assert len(process.provider.requests) == 2


async def test_an_empty_reply_that_was_cut_is_asked_for_once_more(runtime: RuntimeFixture):
    """A model may spend all of its output on thinking."""
    async with runtime.open(cut_reply(""), text_reply("Now I know.")) as process:
        run = await process.run("Think.")
        assert (run.status, run.reason, run.text) == (Status.DONE, None, "Now I know.")
    async with runtime.open(cut_reply(""), cut_reply("")) as process:
        run = await process.run("Think.")
        assert (run.status, run.reason, run.text) == (Status.DONE, Reason.INCOMPLETE, "")


async def test_each_last_word_may_be_continued_once(runtime: RuntimeFixture):
    script = [
        cut_reply("Let me "),
        tool_call_reply(("ls", "{}"), text="look."),
        cut_reply("There is "),
        text_reply("nothing."),
    ]
    async with runtime.open(*script) as process:
        run = await process.run("Look.")
        assert (run.status, run.reason, run.text) == (Status.DONE, None, "There is nothing.")


async def test_a_cut_reply_at_the_agents_turn_limit_is_not_continued(runtime: RuntimeFixture):
    runtime.write_agent("brief", "max_turns: 1\n")
    async with runtime.open(cut_reply("As I was say"), text_reply("ing.")) as process:
        run = await process.run("Talk.", agent="brief")
        assert (run.status, run.reason, run.text) == (Status.DONE, Reason.INCOMPLETE, "As I was say")


@pytest.mark.parametrize("saved_replies", [1, 2])
async def test_a_continuation_survives_a_crash(runtime: RuntimeFixture, saved_replies: int):
    script = [cut_reply("The answer is forty-"), text_reply("two.")]
    seen = 0
    crashed = asyncio.Event()

    def crash_after_reply(event: Event) -> None:
        nonlocal seen
        if event.kind == "entry.saved" and event.data["entry_kind"] == "agent":
            seen += 1
            if seen == saved_replies:
                crashed.set()
                raise asyncio.CancelledError

    async with runtime.open(*script, emit=crash_after_reply) as process:
        run = await process.submit("Answer.")
        await crashed.wait()
    async with runtime.open(*script[saved_replies:]) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.text) == (Status.DONE, None, "The answer is forty-two.")
        assert ended.turns == 2
        replies = [
            each for each in await process.entries(run) if isinstance(each, Message) and each.role == "agent"
        ]
        assert [each.text for each in replies] == ["The answer is forty-", "two."]


DELEGATIONS = {
    "agent": {"agent_name": "helper", "task_prompt": "Look."},
    "spawn_subagent": {"agentId": "helper", "prompt": "Look."},
    "agents_message": {"agentId": "helper", "content": "Look.", "session": "create"},
}


@pytest.mark.parametrize("tool", DELEGATIONS)
async def test_a_parent_sees_that_a_result_is_incomplete(runtime: RuntimeFixture, tool: str):
    runtime.write_agent("main")
    runtime.write_agent("helper")
    by_agent = {
        "main": [tool_call_reply((tool, json.dumps(DELEGATIONS[tool]))), text_reply("Understood.")],
        "helper": [cut_reply("There are three files: a, "), cut_reply("b and of course the ")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run: Run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        (result,) = await process.tool_results(run)
        assert "There are three files: a, b and of course the" in result.text
        assert "The reply is incomplete: the model's output limit cut it off" in result.text
        (child,) = [each for each in await process.all_runs() if each.agent == "helper"]
        assert (child.status, child.reason) == (Status.DONE, Reason.INCOMPLETE)


async def test_a_short_reply_of_a_sub_agent_is_not_split_where_it_was_cut(runtime: RuntimeFixture):
    runtime.write_agent("main")
    runtime.write_agent("helper")
    by_agent = {
        "main": [tool_call_reply(("agent", json.dumps(DELEGATIONS["agent"]))), text_reply("Understood.")],
        "helper": [cut_reply("forty-"), text_reply("two")],
    }
    async with runtime.open(by_agent=by_agent) as process:
        run = await process.wait_until_ended(await process.submit("Go.", agent="main"))
        (result,) = await process.tool_results(run)
        assert json.loads(result.text)["result"].startswith("forty-two\n\n")
