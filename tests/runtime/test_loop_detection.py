"""Loops of tool calls: the model is warned, then the run ends as stuck; progress is not a loop."""

import json
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from agent_pairs import message_call, open_main_and_todo
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply
from retinue.domain.run import Reason, Run, Status
from retinue.interfaces import Tool
from retinue.runtime import run_control
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

LIMITS = Limits(identical_calls=3)


def call_reply(*names: str) -> ModelReply:
    return tool_call_reply(*(("look", json.dumps({"at": name})) for name in names))


def make_look_tool(describe: Callable[[str, int], str]) -> Tool:
    """Make a tool that returns what `describe` says about a place, the n-th time that anything is looked at."""
    numbers = count(1)

    @tool(name="look", effect="read", capabilities=[])
    async def look(at: str) -> str:
        """Look at a place."""
        return describe(at, next(numbers))

    return look


def same_result(at: str, _: int) -> str:
    return f"nothing at {at}"


def with_clock(at: str, number: int) -> str:
    return (
        f"2026-11-19T20:{number % 60:02}:59.{number}Z pid {4000 + number * 7}: {at}, "
        f"{number} tries{' ' * number}in {number / 7:.2f} s, id 01JCR{number}QF, up 0{number}:13, "
        f"request {'bfadce'[number % 6] * 8}-{'cafe' if number % 2 else '1234'}-4abc-{'abcd'[number % 4] * 4}-{number:012}"
    )


def growing_list(_: str, number: int) -> str:
    return "\n".join(f"file-{each}.txt" for each in range(number))


def different_words(_: str, number: int) -> str:
    return f"the build is at step {'abcdefghijklmnopqrstuvwxyz'[number % 26] * (1 + number // 26)}"


def cycle(period: int, replies: int) -> list[ModelReply]:
    return [call_reply("abcdefgh"[number % period]) for number in range(replies)]


@pytest.mark.parametrize("period", range(1, 9))
@pytest.mark.parametrize("describe", [same_result, with_clock])
async def test_a_cycle_of_calls_is_warned_about_and_then_ends_the_run(
    runtime: RuntimeFixture, period: int, describe: Callable[[str, int], str]
):
    """Shows: M16."""
    async with runtime.open(*cycle(period, 200), tools=[make_look_tool(describe)], limits=LIMITS) as process:
        run = await process.run("Look around.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        results = [each.text for each in await process.tool_results(run)]
        executed = [each for each in results if not each.startswith("You have ") and "stopped" not in each]
        # Three cycles run, three more are warned about, and the reply that begins the seventh ends the run.
        assert len(executed) == 3 * period
        assert len(process.provider.requests) == 6 * period + 1
        warning = "made this same call" if period == 1 else f"repeated the same {period} steps"
        assert sum(warning in each for each in results) == 3 * period


@pytest.mark.parametrize("describe", [growing_list, different_words])
@pytest.mark.parametrize("period", [1, 2, 3])
async def test_repeated_calls_with_new_results_are_progress(
    runtime: RuntimeFixture, period: int, describe: Callable[[str, int], str]
):
    script = [*cycle(period, 40), text_reply("Seen enough.")]
    async with runtime.open(*script, tools=[make_look_tool(describe)], limits=LIMITS) as process:
        run = await process.run("Watch it.")
        assert (run.status, run.text) == (Status.DONE, "Seen enough.")
        assert all(each.ok for each in await process.tool_results(run))


async def test_a_model_that_heeds_the_warning_goes_on(runtime: RuntimeFixture):
    script = [*cycle(2, 8), call_reply("else"), *cycle(2, 6), text_reply("I see now.")]
    async with runtime.open(*script, tools=[make_look_tool(same_result)], limits=LIMITS) as process:
        run = await process.run("Look around.")
        assert (run.status, run.text) == (Status.DONE, "I see now.")
        assert sum(not each.ok for each in await process.tool_results(run)) == 2


async def test_replies_with_several_calls_are_compared_as_a_whole(runtime: RuntimeFixture):
    """Ten calls per reply are one step, so that their cycle is not longer than the longest period."""
    names = "abcdefghij"
    replies = [call_reply(*names), call_reply(*names.upper())] * 20
    async with runtime.open(*replies, tools=[make_look_tool(with_clock)], limits=LIMITS) as process:
        run = await process.run("Look around.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(process.provider.requests) == 13


async def test_the_order_and_the_spacing_of_arguments_and_the_order_of_calls_do_not_hide_a_loop(
    runtime: RuntimeFixture,
):
    spellings = [
        '{"at": "a", "near": {"x": 1, "y": 2}}',
        '{"near":{"y":2,"x":1},"at":"a"}',
        ' { "near" : {"x": 1, "y": 2}, "at" : "a" } ',
    ]

    @tool(name="look", effect="read", capabilities=[])
    async def look(at: str, near: dict[str, int]) -> str:
        """Look at a place."""
        return f"nothing at {at}, {len(near)}"

    numbers = [0, 0, 1, 2, 1, 1, 0, 2, 2, 1, 0, 1, 2, 0]  # no cycle
    other = ("look", '{"at": "b", "near": {}}')
    replies = [
        tool_call_reply(*[("look", spellings[number]), other][:: 1 if index % 3 else -1])
        for index, number in enumerate(numbers)
    ]
    async with runtime.open(*replies, tools=[look], limits=LIMITS) as process:
        run = await process.run("Look around.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(process.provider.requests) == 7


async def test_a_cycle_of_delegations_is_a_loop(runtime: RuntimeFixture):
    """The parent is suspended for each child, and its history is restored from the transcript each time."""
    runtime.write_agent("main")
    runtime.write_agent("helper")
    calls = [
        tool_call_reply(("agent", json.dumps({"agent_name": "helper", "task_prompt": each})))
        for each in ("Look.", "Look again.")
    ]
    by_agent = {"main": calls * 30, "helper": [text_reply("Nothing new, as I have said before.")] * 60}
    async with runtime.open(by_agent=by_agent, limits=LIMITS) as process:
        await process.submit("Go.", agent="main")
        runs = await process.wait_until_idle()
        (stuck,) = [run for run in runs if run.agent == "main"]
        assert (stuck.status, stuck.reason) == (Status.FAILED, Reason.STUCK)
        assert len(runs) == 1 + 6


async def count_messages(runtime: RuntimeFixture, answers: Sequence[str]) -> int:
    """Let two agents exchange messages, each answer starting a run that asks again; return how many were answered."""
    ask = [tool_call_reply(message_call(mode="async")), text_reply("I asked.")]
    main, todo = ask * (len(answers) + 1), [text_reply(each) for each in answers]
    async with open_main_and_todo(runtime, main, todo, limits=LIMITS) as process:
        await process.submit("Go.", agent="main")
        runs = await process.wait_until_idle()
        return sum(run.agent == "todo" for run in runs)


async def test_agents_that_answer_each_other_for_ever_are_stopped(runtime: RuntimeFixture):
    """Each callback is a run of its own, which continues the loop of the runs before it."""
    assert await count_messages(runtime, ["Nothing new. Ask me again."] * 20) == 4


async def test_agents_that_exchange_new_messages_are_not_stopped(runtime: RuntimeFixture):
    answers = [f"The {'next ' * number} word." for number in range(8)]
    assert await count_messages(runtime, answers) >= len(answers)


async def resume(process: RuntimeProcess, run: Run) -> Run:
    await run_control.resume_waiting_run(run.id, process.context)
    return await process.wait(run)


async def run_until_stuck(runtime: RuntimeFixture, script: Sequence[ModelReply]) -> int:
    """Execute one reply of the script per process; return the number of requests until the run is stuck."""
    requests = 0
    run = None
    for number in range(len(script)):
        async with runtime.open(
            script[number], tools=[make_look_tool(with_clock)], limits=Limits(identical_calls=3, max_turns=1)
        ) as process:
            run = await (process.run_until_suspended("Go.") if run is None else resume(process, run))
            requests += len(process.provider.requests)
            if run.status.is_final:
                assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
                return requests
    raise AssertionError("the run never ended")


async def test_a_loop_is_recognised_across_restarts(runtime: RuntimeFixture):
    assert await run_until_stuck(runtime, cycle(2, 20)) == 13
