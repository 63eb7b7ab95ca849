"""After a crash, the runs that may have caused it are resumed one by one."""

import asyncio

from gates import PONDER_CALL, make_gated_tool
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.limits import Limits
from retinue.domain.run import RecoveryState, Run, RunRequest, Status
from retinue.domain.side_effect import SideEffect
from retinue.interfaces import Transaction
from retinue.runtime.crash_suspects import order_suspects, resume_orphaned_runs
from retinue.runtime.recovery import requeue_runs_of_dead_processes
from retinue.testing.ledgers import CREATED_AT, make_run
from retinue.testing.scripted_provider import text_reply


def runs_with_crashes(**crashes: int) -> list[Run]:
    return [make_run(name, recovery=RecoveryState(crash_streak=count)) for name, count in crashes.items()]


def ids_of(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def test_the_first_attempt_tries_runs_from_oldest_to_newest():
    assert ids_of(order_suspects(runs_with_crashes(c=2, a=2, b=2))) == ["a", "b", "c"]


def test_the_run_resumed_last_before_a_crash_is_tried_first_next_time():
    """Shows: P22."""
    assert ids_of(order_suspects(runs_with_crashes(a=3, b=3, c=2, d=2))) == ["b", "a", "c", "d"]


def test_the_run_with_the_most_crashes_is_tried_first():
    assert ids_of(order_suspects(runs_with_crashes(a=3, b=4, c=3)))[0] == "b"


async def requeue_after_crash(process: RuntimeProcess, *, acting: str) -> dict[str, tuple[Status, int]]:
    """Requeue three runs of a dead process; a tool call of the run `acting` was executing."""

    def add_runs(tx: Transaction) -> None:
        for name in ("bomb", "talker", "thinker"):
            request = RunRequest(key=name, agent="main", task="x")
            tx.add_run(make_run(name, request=request, status=Status.RUNNING, owner_id="dead", attempts=2))
        if acting:
            tx.save_side_effect(
                SideEffect(call="c", run=acting, tool="boom", digest="d", started_at=CREATED_AT)
            )

    await process.context.ledger.write(add_runs)
    await requeue_runs_of_dead_processes(process.context, lambda _: False)
    return {run.id: (run.status, run.attempts) for run in await process.all_runs()}


async def test_a_crash_during_a_tool_call_counts_as_an_attempt_only_for_the_run_of_that_call(
    runtime: RuntimeFixture,
):
    """Shows: P22."""
    async with runtime.open() as process:
        states = await requeue_after_crash(process, acting="bomb")
    queued = Status.QUEUED
    assert states == {"bomb": (queued, 2), "talker": (queued, 1), "thinker": (queued, 1)}


async def test_a_crash_without_a_tool_call_counts_as_an_attempt_for_all_runs(runtime: RuntimeFixture):
    async with runtime.open() as process:
        states = await requeue_after_crash(process, acting="")
    assert {attempts for _, attempts in states.values()} == {2}


async def test_a_lost_run_gets_results_for_its_open_tool_calls(runtime: RuntimeFixture):
    tools = [make_gated_tool(asyncio.Event())]
    async with runtime.open(PONDER_CALL, tools=tools) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("tool.started")
    async with runtime.open(text_reply("late"), limits=Limits(resume_window_seconds=0)) as process:
        (lost,) = await resume_orphaned_runs([await process.reload(run)], process.context)
        assert lost.status is Status.LOST
        assert [each.ok for each in await process.tool_results(run)] == [False]
        assert process.provider.requests == []
