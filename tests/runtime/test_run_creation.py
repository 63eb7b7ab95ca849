"""Birth and queue: one key is one run, one session works one run at a time, and no limit is ever overrun."""

import asyncio

import pytest
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.limits import Limits
from retinue.domain.model_turn import Reply, Request
from retinue.domain.run import Reason, Status
from retinue.domain.transcript import Message
from retinue.errors import NotFound, Refused
from retinue.runtime import recovery, run_control
from retinue.runtime.run_creation import ClaimResult, claim_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_a_second_birth_with_the_same_key_is_the_first_run(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Once."), text_reply("Twice.")) as process:
        session = await process.create_session()
        first, second = await process.wait_all(
            process.submit("Do it.", session=session, key="http:abc"),
            process.submit("Do it.", session=session, key="http:abc"),
        )
        assert first.id == second.id
        await process.wait(first)
        again = await process.submit("Do it.", session=session, key="http:abc")
        assert (again.id, again.status) == (first.id, Status.DONE)
        assert len(process.provider.requests) == 1


async def test_runs_in_one_session_go_one_after_the_other_in_the_order_they_were_asked(
    runtime: RuntimeFixture,
):
    """Shows: C044."""
    async with runtime.open(text_reply("One."), text_reply("Two."), text_reply("Ten."), hold=True) as process:
        session = await process.create_session()
        first = await process.submit("First.", session=session)
        second = await process.submit("Second.", session=session)
        third = await process.submit("Third.", session=session)
        await process.wait_for_event("text.delta")
        assert [(await process.reload(run)).status for run in (first, second, third)] == [
            Status.RUNNING,
            Status.QUEUED,
            Status.QUEUED,
        ]
        process.release_turn()
        done = [await process.wait(run) for run in (first, second, third)]
        assert [run.text for run in done] == ["One.", "Two.", "Ten."]
        texts = entry_texts(await process.entries(first))
        assert texts == ["First.", "One.", "Second.", "Two.", "Third.", "Ten."]


async def test_who_is_claimed_out_of_turn_stands_behind_those_who_were_asked_before(runtime: RuntimeFixture):
    """Queued runs are claimed one by one, and the session may become free between two of them.

    Shows: C044.
    """
    async with runtime.open(text_reply("One."), hold=True) as process:
        session = await process.create_session()
        first, second, third = [await process.submit(each, session=session) for each in ("1", "2", "3")]
        await process.wait_for_event("text.delta")
        await process.worker.drain(0)
        process.release_turn()
        assert (await process.wait(first)).status is Status.DONE
        claims = [await claim_run(run.id, process.context) for run in (third, second, third)]
        assert claims == [ClaimResult.SESSION_BUSY, ClaimResult.CLAIMED, ClaimResult.SESSION_BUSY]


async def test_whoever_comes_late_does_not_pass_those_who_wait_in_the_session(runtime: RuntimeFixture):
    """Shows: C044."""

    def answer(request: Request) -> Reply:
        said = request.entries[-1]
        assert isinstance(said, Message)
        return text_reply(f"Re: {said.text}")

    async with runtime.open(answer, answer, answer) as process:
        session = await process.create_session()
        first = await process.submit("1", session=session)
        await process.submit("2", session=session)
        await process.worker.wait(first.id)
        third = await process.run("3", session=session)
        assert entry_texts(await process.entries(third)) == [
            "1",
            "Re: 1",
            "2",
            "Re: 2",
            "3",
            "Re: 3",
        ]


async def test_fifty_starts_never_run_more_than_the_limit_at_once(runtime: RuntimeFixture):
    now: list[int] = [0]
    most: list[int] = [0]
    all_taken = asyncio.Event()

    @tool(effect="read")
    async def busy() -> str:
        """Counts how many are busy; the first ones wait until every place is taken."""
        now[0] += 1
        most[0] = max(most[0], now[0])
        if now[0] == 3:
            all_taken.set()
        await all_taken.wait()
        await asyncio.sleep(0.002)
        now[0] -= 1
        return "was busy"

    def turn(request: Request) -> Reply:
        return tool_call_reply(("busy", "{}")) if len(request.entries) == 1 else text_reply("Done.")

    steps = [turn] * 100
    async with runtime.open(*steps, tools=[busy], limits=Limits(max_live=3)) as process:
        runs = await process.wait_all(*(process.submit(f"Task {n}.") for n in range(50)))
        done = [await process.wait(run) for run in runs]
        assert {run.status for run in done} == {Status.DONE}
        assert most[0] == 3


async def test_a_queued_run_is_cancelled_without_ever_starting(runtime: RuntimeFixture):
    async with runtime.open(
        text_reply("First."), text_reply("never"), hold=True, limits=Limits(max_live=1)
    ) as process:
        first = await process.submit("Hold the slot.")
        second = await process.submit("Wait for it.")
        stopped = await process.cancel(second)
        assert (stopped.status, stopped.started_at) == (Status.CANCELLED, None)
        process.release_turn()
        await asyncio.wait_for(process.wait(second), 5)
        assert (await process.wait(first)).status is Status.DONE
        assert len(process.provider.requests) == 1
        assert await process.entries(second) == []


async def test_a_run_taken_up_by_another_process_is_stopped_there_and_not_merely_called_over(
    runtime: RuntimeFixture,
):
    """Whoever cancels may have seen it before, when its owner was dead."""
    async with runtime.open(text_reply("Interrupted."), hold=True) as process:
        run = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Taken up."), hold=True) as other, runtime.open() as process:
        await recovery.resume_run(run.id, other.context, previous_owner=(await process.reload(run)).owner_id)
        await other.wait_for_event("text.delta")
        await run_control.cancel_run(run.id, process.context, is_alive=runtime.alive.__contains__)
        stopped = await asyncio.wait_for(other.wait(run), 10)
        assert (stopped.status, stopped.text) == (Status.CANCELLED, "Take")
        assert entry_texts(await process.entries(run))[-1] == "Take"


async def test_who_waits_for_a_cancelled_run_is_told_though_others_stand_before_it(runtime: RuntimeFixture):
    async with runtime.open(text_reply("never"), hold=True, limits=Limits(max_live=1)) as process:
        await process.submit("Hold the slot.")
        await process.submit("Stand before it.")
        third = await process.submit("Wait.")
        await process.cancel(third)
        assert (await asyncio.wait_for(process.wait(third), 5)).status is Status.CANCELLED


async def test_a_dead_process_holds_no_slot_and_no_session(runtime: RuntimeFixture):
    """Shows: P19."""
    async with runtime.open(text_reply("Interrupted."), hold=True, limits=Limits(max_live=1)) as process:
        left = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Fresh."), limits=Limits(max_live=1)) as process:
        session = await process.store.find(left.session_id)
        run = await asyncio.wait_for(process.run("Another.", session=session), 10)
        assert (run.status, run.text) == (Status.DONE, "Fresh.")
        assert (await process.reload(left)).status is Status.QUEUED


async def test_a_run_that_no_longer_exists_is_simply_over(runtime: RuntimeFixture):
    async with runtime.open() as process:
        process.worker.submit("01UNKNOWN")
        await asyncio.wait_for(process.worker.wait("01UNKNOWN"), 5)


async def test_a_run_asked_for_by_a_run_stands_one_below_it_and_never_too_deep(runtime: RuntimeFixture):
    async with runtime.open(*[text_reply("Done.")] * 9, limits=Limits(max_depth=2)) as process:
        top = await process.run("Top.")
        below = await process.run("Below.", parent_run=top.id, wait=True)
        deepest = await process.run("Deepest.", parent_run=below.id, wait=True)
        assert [(run.depth, run.root_id) for run in (top, below, deepest)] == [
            (0, top.id),
            (1, top.id),
            (2, top.id),
        ]
        assert (await process.reload(top)).child_ids == (below.id,)
        with pytest.raises(Refused, match="2 deep and may not start general: 2 is the limit"):
            await process.run("Too deep.", parent_run=deepest.id, wait=True)
        with pytest.raises(Refused, match="the ledger does not know it"):
            await process.run("Whose?", parent_run="01NOBODY")


async def test_a_run_that_nobody_works_is_cancelled_by_its_row_alone(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half."), hold=True) as process:
        left = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open() as process:
        stopped = await run_control.cancel_run(left.id, process.context, is_alive=lambda _: False)
        assert (stopped.status, stopped.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        with pytest.raises(NotFound, match="there is no run 01NOBODY"):
            await run_control.cancel_run("01NOBODY", process.context, is_alive=lambda _: False)
        with pytest.raises(NotFound):
            await recovery.resume_run("01NOBODY", process.context, previous_owner="")
        with pytest.raises(Refused, match=r"has ended \(cancelled\)"):
            await recovery.resume_run(left.id, process.context, previous_owner="")


async def test_a_run_of_another_living_process_is_asked_to_stop(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of it."), hold=True) as worker, runtime.open() as other:
        run = await worker.submit("Talk.")
        await worker.wait_for_event("text.delta")
        await run_control.cancel_run(run.id, other.context, is_alive=lambda _: True)
        assert (await worker.wait(run)).status is Status.CANCELLED
