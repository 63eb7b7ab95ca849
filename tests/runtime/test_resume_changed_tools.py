"""The tools are others after a crash than before: a call of one that is gone is answered honestly, and the run goes on."""

import asyncio
from typing import Literal

import pytest
from runtime_fixture import RuntimeFixture

from retinue.domain.run import Run, Status
from retinue.domain.transcript import unanswered_calls
from retinue.interfaces import Tool
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

Effects = Literal["read", "idempotent", "once"]


def before(begun: asyncio.Event, effect: Effects) -> Tool:
    @tool(name="act", effect=effect, asks="never")
    async def act(what: str) -> str:
        """Begins, and never comes back."""
        begun.set()
        await asyncio.Event().wait()
        return what

    return act


def after(made: list[str]) -> Tool:
    @tool(name="act", effect="read", asks="never")
    async def act(other: int) -> str:
        """Takes something else than it did."""
        made.append(str(other))
        return "x"

    return act


async def left(runtime: RuntimeFixture, effect: Effects) -> Run:
    begun = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", '{"what": "it"}')), tools=[before(begun, effect)]
    ) as process:
        run = await process.submit("Act.")
        await begun.wait()
    return run


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_a_call_of_a_tool_that_is_gone_gets_an_answer_and_the_run_goes_on(
    runtime: RuntimeFixture, effect: Effects
):
    """Shows: P24."""
    run = await left(runtime, effect)
    async with runtime.open(text_reply("Then without it.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Then without it.")
        [result] = await process.tool_results(run)
        assert not result.ok
        assert "There is no tool 'act'" in result.text
        assert unanswered_calls(process.request_entries(0)) == ()


async def test_a_call_that_the_tool_does_not_understand_any_more_is_not_made(runtime: RuntimeFixture):
    """Shows: P24."""
    run = await left(runtime, "read")
    made: list[str] = []
    async with runtime.open(text_reply("Then without it."), tools=[after(made)]) as process:
        ended = await process.resume(run)
        assert (ended.status, made) == (Status.DONE, [])
        [result] = await process.tool_results(run)
        assert (result.ok, "The arguments of act are wrong" in result.text) == (False, True)


async def test_what_had_begun_and_must_not_happen_twice_is_not_made_by_a_tool_that_says_otherwise_now(
    runtime: RuntimeFixture,
):
    """The deed was written down when the tool said `once`; what it says now changes nothing about that.

    Shows: P24.
    """
    run = await left(runtime, "once")
    made: list[str] = []

    @tool(name="act", effect="once", asks="never")
    async def act(what: str) -> str:
        """The same, of the next release."""
        made.append(what)
        return "x"

    async with runtime.open(text_reply("I look first."), tools=[act]) as process:
        ended = await process.resume(run)
        assert (ended.status, made) == (Status.DONE, [])
        [result] = await process.tool_results(run)
        assert "Outcome unknown" in result.text
