"""Resuming a run whose tools were removed or changed since the crash."""

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


def make_hanging_tool(started: asyncio.Event, effect: Effects) -> Tool:
    @tool(name="act", effect=effect, asks="never")
    async def act(what: str) -> str:
        """Starts, and never returns."""
        started.set()
        await asyncio.Event().wait()
        return what

    return act


def make_changed_tool(executed: list[str]) -> Tool:
    @tool(name="act", effect="read", asks="never")
    async def act(other: int) -> str:
        """Takes another argument than before."""
        executed.append(str(other))
        return "x"

    return act


async def crash_during_call(runtime: RuntimeFixture, effect: Effects) -> Run:
    started = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", '{"what": "it"}')), tools=[make_hanging_tool(started, effect)]
    ) as process:
        run = await process.submit("Act.")
        await started.wait()
    return run


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_a_call_of_a_removed_tool_gets_an_error_result_and_the_run_continues(
    runtime: RuntimeFixture, effect: Effects
):
    """Shows: P24."""
    run = await crash_during_call(runtime, effect)
    async with runtime.open(text_reply("Then without it.")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Then without it.")
        [result] = await process.tool_results(run)
        assert not result.ok
        assert "Unknown tool 'act'" in result.text
        assert unanswered_calls(process.request_entries(0)) == ()


async def test_a_call_whose_arguments_no_longer_fit_the_tool_is_not_executed(runtime: RuntimeFixture):
    """Shows: P24."""
    run = await crash_during_call(runtime, "read")
    executed: list[str] = []
    async with runtime.open(text_reply("Then without it."), tools=[make_changed_tool(executed)]) as process:
        ended = await process.resume(run)
        assert (ended.status, executed) == (Status.DONE, [])
        [result] = await process.tool_results(run)
        assert (result.ok, "Invalid arguments for act" in result.text) == (False, True)


async def test_a_started_once_call_is_not_repeated_by_a_new_version_of_the_tool(
    runtime: RuntimeFixture,
):
    """The ledger recorded, when the call started, that it must not be repeated.

    Shows: P24.
    """
    run = await crash_during_call(runtime, "once")
    executed: list[str] = []

    @tool(name="act", effect="once", asks="never")
    async def act(what: str) -> str:
        """The same tool, in the next release."""
        executed.append(what)
        return "x"

    async with runtime.open(text_reply("I look first."), tools=[act]) as process:
        ended = await process.resume(run)
        assert (ended.status, executed) == (Status.DONE, [])
        [result] = await process.tool_results(run)
        assert "Outcome unknown" in result.text
