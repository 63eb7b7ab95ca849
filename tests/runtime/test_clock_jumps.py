"""Clock changes during a run or between two processes: deadlines still hold, and no run ends early."""

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
class AdjustableClock:
    """A system clock that a test sets forward or back."""

    offset: timedelta = timedelta()

    @property
    def clock(self) -> Clock:
        return replace(system_clock(), now=lambda: datetime.now(UTC) + self.offset)


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["a day ahead", "a day back"])
async def test_a_clock_change_during_a_run_does_not_affect_it(runtime: RuntimeFixture, jump: timedelta):
    """Shows: P30."""
    clock = AdjustableClock()

    @tool(effect="read")
    async def set_clock() -> str:
        """Sets the clock."""
        clock.offset = jump
        return "set"

    async with runtime.open(
        tool_call_reply(("set_clock", "{}")), text_reply("Done."), tools=[set_clock], clock=clock.clock
    ) as process:
        run = await process.run("Go.", deadline_seconds=60)
        assert (run.status, run.text) == (Status.DONE, "Done.")
        assert run.duration_ms is not None
        assert run.duration_ms >= 0


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["a day ahead", "a day back"])
async def test_a_deadline_passes_on_time_after_a_clock_change(runtime: RuntimeFixture, jump: timedelta):
    """Shows: P30."""
    clock = AdjustableClock()
    async with runtime.open(text_reply("Half of this."), hold=True, clock=clock.clock) as process:
        run = await process.submit("Go.", deadline_seconds=1)
        await process.wait_for_event("text.delta")
        clock.offset = jump
        assert (await process.reload(run)).status is Status.RUNNING
        ended = await process.wait(run)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)


async def start_and_abandon_run(runtime: RuntimeFixture, **options: Any) -> Run:
    """Start a run and let its process die in the middle of a reply."""
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Go.", **options)
        await process.wait_for_event("text.delta")
    return run


async def test_a_resumed_run_gets_at_most_its_whole_deadline_after_the_clock_went_back(
    runtime: RuntimeFixture,
):
    """Shows: P30."""
    run = await start_and_abandon_run(runtime, deadline_seconds=1)
    async with runtime.open(
        text_reply("Half of this."), hold=True, clock=AdjustableClock(-DAY).clock
    ) as process:
        ended = await asyncio.wait_for(process.resume(run), 10)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)


async def test_a_resumed_run_is_not_timed_out_because_the_clock_went_back(runtime: RuntimeFixture):
    """Shows: P30."""
    run = await start_and_abandon_run(runtime, deadline_seconds=60)
    async with runtime.open(text_reply("Here."), clock=AdjustableClock(-DAY).clock) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Here.")
