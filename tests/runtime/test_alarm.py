"""An alarm ends what is awaited inside it, and takes nobody else's wish to stop for its own."""

import asyncio
from collections.abc import Awaitable

import pytest

from retinue.runtime.alarm import Timeout


async def over(alarm: Timeout, work: Awaitable[None], *, when: float) -> None:
    with alarm:
        alarm.reschedule(when)
        await work


def soon(seconds: float = 0.01) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_what_takes_too_long_is_ended():
    alarm = Timeout()
    with pytest.raises(TimeoutError):
        await over(alarm, asyncio.sleep(60), when=soon())
    assert alarm.expired
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing of it is left to strike later


async def test_a_time_that_has_passed_rings_at_the_next_chance():
    with pytest.raises(TimeoutError):
        await over(Timeout(), asyncio.sleep(60), when=soon(-1))


async def test_what_ends_in_time_is_let_be():
    alarm = Timeout()
    with alarm:
        alarm.reschedule(soon())
    await asyncio.sleep(0.03)
    assert not alarm.expired


async def test_it_is_set_anew_and_taken_back():
    alarm = Timeout()
    with alarm:
        alarm.reschedule(soon())
        alarm.reschedule(soon(60))
        await asyncio.sleep(0.03)
        alarm.reschedule(soon())
        alarm.reschedule(None)
        await asyncio.sleep(0.03)
    alarm.reschedule(soon())  # nothing is inside any more
    await asyncio.sleep(0.03)
    assert not alarm.expired


async def test_whoever_stops_the_task_is_heard():
    task = asyncio.create_task(over(Timeout(), asyncio.sleep(60), when=soon(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_whoever_stops_the_task_in_the_very_moment_in_which_it_rings_is_heard():
    task = asyncio.create_task(over(Timeout(), asyncio.sleep(60), when=soon(-1)))
    await asyncio.sleep(0)  # it has set the alarm
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_that_comes_of_being_ended_is_told_and_not_hidden():
    async def cleared() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("nothing to clear") from None

    with pytest.raises(ValueError, match="nothing to clear"):
        await over(Timeout(), cleared(), when=soon())
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0
