"""A clock that is set, in the midst of a run or between two processes: nobody lives for ever, and nobody ends at once."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture

from retinue.domain.clock import Clock
from retinue.domain.run import Reason, Run, Status
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.worker.clock import system_clock

DAY = timedelta(days=1)


@dataclass(slots=True)
class Wall:
    """A clock on the wall that somebody sets."""

    off: timedelta = timedelta()

    @property
    def chance(self) -> Clock:
        return replace(system_clock(), now=lambda: datetime.now(UTC) + self.off)


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["a day ahead", "a day back"])
async def test_a_clock_that_is_set_while_a_run_is_worked_changes_nothing_for_it(
    runtime: RuntimeFixture, jump: timedelta
):
    """Shows: P30."""
    wall = Wall()

    @tool(effect="read")
    async def sets() -> str:
        """Sets the clock."""
        wall.off = jump
        return "set"

    async with runtime.open(
        tool_call_reply(("sets", "{}")), text_reply("Done."), tools=[sets], clock=wall.chance
    ) as process:
        run = await process.run("Go.", deadline_seconds=60)
        assert (run.status, run.text) == (Status.DONE, "Done.")
        assert run.duration_ms is not None
        assert run.duration_ms >= 0


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["a day ahead", "a day back"])
async def test_a_deadline_comes_in_its_time_though_the_clock_was_set(
    runtime: RuntimeFixture, jump: timedelta
):
    """Shows: P30."""
    wall = Wall()
    async with runtime.open(text_reply("Half of this."), hold=True, clock=wall.chance) as process:
        run = await process.submit("Go.", deadline_seconds=1)
        await process.wait_for_event("text.delta")
        wall.off = jump
        assert (await process.reload(run)).status is Status.RUNNING
        ended = await process.wait(run)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)


async def left_behind(runtime: RuntimeFixture, **wishes: Any) -> Run:
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Go.", **wishes)
        await process.wait_for_event("text.delta")
    return run


async def test_a_clock_set_back_between_two_processes_gives_no_more_than_the_whole_time_anew(
    runtime: RuntimeFixture,
):
    """Shows: P30."""
    run = await left_behind(runtime, deadline_seconds=1)
    async with runtime.open(text_reply("Half of this."), hold=True, clock=Wall(-DAY).chance) as process:
        ended = await asyncio.wait_for(process.resume(run), 10)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)


async def test_a_clock_set_back_between_two_processes_ends_nothing(runtime: RuntimeFixture):
    """Shows: P30."""
    run = await left_behind(runtime, deadline_seconds=60)
    async with runtime.open(text_reply("Here."), clock=Wall(-DAY).chance) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Here.")
