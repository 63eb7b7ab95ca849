"""Suspects are tried one by one, and whoever ended the last round comes first in the next."""

import asyncio

from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.limits import Limits
from retinue.domain.run import Run, RunRequest, Status
from retinue.domain.side_effect import SideEffect
from retinue.interfaces import Transaction
from retinue.runtime.crash_quarantine import order_suspects, resume_interrupted_runs
from retinue.runtime.recovery import requeue_dead_runs
from retinue.testing.ledgers import CREATED_AT, make_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


def tried(**attempts: int) -> list[Run]:
    return [make_run(name, attempts=count) for name, count in attempts.items()]


def names(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def test_the_first_round_goes_by_age():
    assert names(order_suspects(tried(c=2, a=2, b=2))) == ["a", "b", "c"]


def test_whoever_was_last_when_the_process_died_is_first_and_alone_in_the_next_round():
    """Shows: P22."""
    assert names(order_suspects(tried(a=3, b=3, c=2, d=2))) == ["b", "a", "c", "d"]


def test_whoever_was_counted_most_is_never_tried_beside_the_others():
    assert names(order_suspects(tried(a=3, b=4, c=3)))[0] == "b"


async def left(process: RuntimeProcess, *, acting: str) -> dict[str, tuple[Status, int]]:
    """What becomes of three runs of a dead process, in one of which a deed was under way."""

    def died(tx: Transaction) -> None:
        for name in ("bomb", "talker", "thinker"):
            ask = RunRequest(key=name, agent="main", task="x")
            tx.add_run(make_run(name, request=ask, status=Status.RUNNING, owner_id="dead", attempts=2))
        if acting:
            tx.save_side_effect(
                SideEffect(call="c", run=acting, tool="boom", digest="d", started_at=CREATED_AT)
            )

    await process.context.ledger.write(died)
    await requeue_dead_runs(process.context, lambda _: False)

    def seen(tx: Transaction) -> list[Run]:
        return tx.find_runs()

    found = await process.context.ledger.read(seen)
    return {run.id: (run.status, run.attempts) for run in found}


async def test_who_only_talked_is_not_counted_when_the_process_died_while_another_acted(
    runtime: RuntimeFixture,
):
    """Shows: P22."""
    async with runtime.open() as process:
        now = await left(process, acting="bomb")
    queued = Status.QUEUED
    assert now == {"bomb": (queued, 2), "talker": (queued, 1), "thinker": (queued, 1)}


async def test_where_nobody_acted_all_are_counted(runtime: RuntimeFixture):
    async with runtime.open() as process:
        now = await left(process, acting="")
    assert {attempts for _, attempts in now.values()} == {2}


async def test_a_run_that_is_given_up_leaves_a_file_that_a_person_can_go_on_from(runtime: RuntimeFixture):
    @tool(effect="read")
    async def ponder() -> str:
        """Takes its time."""
        await asyncio.Event().wait()
        return "so"

    async with runtime.open(tool_call_reply(("ponder", "{}")), tools=[ponder]) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("tool.started")
    async with runtime.open(text_reply("late"), limits=Limits(resume_window_seconds=0)) as process:
        (lost,) = await resume_interrupted_runs([await process.reload(run)], process.context)
        assert lost.status is Status.LOST
        assert [each.ok for each in await process.tool_results(run)] == [False]
        assert process.provider.requests == []
