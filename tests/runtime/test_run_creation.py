"""Creating and queueing runs: idempotency keys, order within a session, limits, and cancelling."""

import asyncio

import pytest
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.limits import Limits
from retinue.domain.model_turn import ModelReply, ModelRequest
from retinue.domain.run import ClaimResult, Reason, Run, RunRequest, Status
from retinue.domain.transcript import Message
from retinue.errors import Conflict, NotFound, Refused
from retinue.runtime import recovery, run_control
from retinue.runtime.run_creation import claim_run, create_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_creating_a_run_twice_with_one_key_returns_the_first_run(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Once."), text_reply("Twice.")) as process:
        session = await process.create_session()
        first, second = await process.wait_all(
            process.submit("Do it.", session=session, key="http:abc"),
            process.submit("Do it.", session=session, key="http:abc"),
        )
        assert first.id == second.id
        await process.wait(first)
        third = await process.submit("Do it.", session=session, key="http:abc")
        assert (third.id, third.status) == (first.id, Status.DONE)
        assert len(process.provider.requests) == 1


async def test_of_two_exclusive_runs_in_one_session_only_the_first_is_created(runtime: RuntimeFixture):
    """Shows: B048."""

    async with runtime.open(text_reply("One."), hold=True) as process:
        session = await process.create_session()
        requests = [
            RunRequest(key=each, agent=session.agent, task=each, requester="person") for each in ("1", "2")
        ]
        created, refused = await asyncio.gather(
            *(create_run(each, session, process.context, exclusive=True) for each in requests),
            return_exceptions=True,
        )
        assert isinstance(created, Run)
        assert isinstance(refused, Conflict)
        assert [run.id for run in await process.all_runs()] == [created.id]
        process.release_turn()
        await process.wait(created)


async def test_runs_of_one_session_execute_one_at_a_time_in_the_order_of_their_creation(
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


async def test_a_run_cannot_be_claimed_before_older_runs_of_its_session(runtime: RuntimeFixture):
    """Queued runs are claimed one by one, and the session may become free between two claims.

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


async def test_a_new_run_does_not_overtake_queued_runs_of_its_session(runtime: RuntimeFixture):
    """Shows: C044."""

    def answer(request: ModelRequest) -> ModelReply:
        message = request.entries[-1]
        assert isinstance(message, Message)
        return text_reply(f"Re: {message.text}")

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


async def test_fifty_submitted_runs_never_exceed_the_limit_of_live_runs(runtime: RuntimeFixture):
    active = peak = 0
    all_slots_taken = asyncio.Event()

    @tool(effect="read")
    async def busy() -> str:
        """Counts concurrent calls; the first calls wait until every slot is taken."""
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        if active == 3:
            all_slots_taken.set()
        await all_slots_taken.wait()
        await asyncio.sleep(0.002)
        active -= 1
        return "was busy"

    def reply(request: ModelRequest) -> ModelReply:
        return tool_call_reply(("busy", "{}")) if len(request.entries) == 1 else text_reply("Done.")

    steps = [reply] * 100
    async with runtime.open(*steps, tools=[busy], limits=Limits(max_live=3)) as process:
        runs = await process.wait_all(*(process.submit(f"Task {n}.") for n in range(50)))
        done = [await process.wait(run) for run in runs]
        assert {run.status for run in done} == {Status.DONE}
        assert peak == 3


async def test_a_queued_run_is_cancelled_before_it_starts(runtime: RuntimeFixture):
    async with runtime.open(
        text_reply("First."), text_reply("never"), hold=True, limits=Limits(max_live=1)
    ) as process:
        first = await process.submit("Hold the slot.")
        second = await process.submit("Wait for it.")
        cancelled = await process.cancel(second)
        assert (cancelled.status, cancelled.started_at) == (Status.CANCELLED, None)
        process.release_turn()
        await asyncio.wait_for(process.wait(second), 5)
        assert (await process.wait(first)).status is Status.DONE
        assert len(process.provider.requests) == 1
        assert await process.entries(second) == []


async def test_cancelling_a_run_that_another_process_resumed_stops_its_execution_there(
    runtime: RuntimeFixture,
):
    """The canceller may have read the run while its previous owner was already dead."""
    async with runtime.open(text_reply("Interrupted."), hold=True) as process:
        run = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Taken up."), hold=True) as other, runtime.open() as process:
        await recovery.resume_run(run.id, other.context, previous_owner=(await process.reload(run)).owner_id)
        await other.wait_for_event("text.delta")
        await run_control.cancel_run(run.id, process.context, is_alive=runtime.alive.__contains__)
        cancelled = await asyncio.wait_for(other.wait(run), 10)
        assert (cancelled.status, cancelled.text) == (Status.CANCELLED, "Take")
        assert entry_texts(await process.entries(run))[-1] == "Take"


async def test_a_waiter_is_notified_of_a_cancelled_run_even_when_other_runs_are_queued_before_it(
    runtime: RuntimeFixture,
):
    async with runtime.open(text_reply("never"), hold=True, limits=Limits(max_live=1)) as process:
        await process.submit("Hold the slot.")
        await process.submit("Stand before it.")
        third = await process.submit("Wait.")
        await process.cancel(third)
        assert (await asyncio.wait_for(process.wait(third), 5)).status is Status.CANCELLED


async def test_a_dead_process_holds_no_slot_and_no_session(runtime: RuntimeFixture):
    """Shows: P19."""
    async with runtime.open(text_reply("Interrupted."), hold=True, limits=Limits(max_live=1)) as process:
        abandoned = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Fresh."), limits=Limits(max_live=1)) as process:
        session = await process.store.find(abandoned.session_id)
        run = await asyncio.wait_for(process.run("Another.", session=session), 10)
        assert (run.status, run.text) == (Status.DONE, "Fresh.")
        assert (await process.reload(abandoned)).status is Status.QUEUED


async def test_waiting_for_a_run_that_does_not_exist_returns(runtime: RuntimeFixture):
    async with runtime.open() as process:
        process.worker.submit("01UNKNOWN")
        await asyncio.wait_for(process.worker.wait("01UNKNOWN"), 5)


async def test_a_child_run_is_one_level_deeper_than_its_parent_up_to_the_depth_limit(runtime: RuntimeFixture):
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
        with pytest.raises(Refused, match="at depth 2 may not start general: the maximum depth is 2"):
            await process.run("Too deep.", parent_run=deepest.id, wait=True)
        with pytest.raises(Refused, match="is not in the ledger"):
            await process.run("Whose?", parent_run="01NOBODY")


async def test_a_run_without_a_live_owner_is_cancelled_in_the_ledger(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half."), hold=True) as process:
        abandoned = await process.submit("Begin.")
        await process.wait_for_event("text.delta")
    async with runtime.open() as process:
        cancelled = await run_control.cancel_run(abandoned.id, process.context, is_alive=lambda _: False)
        assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        with pytest.raises(NotFound, match="Run 01NOBODY not found"):
            await run_control.cancel_run("01NOBODY", process.context, is_alive=lambda _: False)
        with pytest.raises(NotFound):
            await recovery.resume_run("01NOBODY", process.context, previous_owner="")
        with pytest.raises(Refused, match=r"has ended \(cancelled\)"):
            await recovery.resume_run(abandoned.id, process.context, previous_owner="")


async def test_cancelling_a_run_of_another_live_process_stops_it(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of it."), hold=True) as worker, runtime.open() as other:
        run = await worker.submit("Talk.")
        await worker.wait_for_event("text.delta")
        await run_control.cancel_run(run.id, other.context, is_alive=lambda _: True)
        assert (await worker.wait(run)).status is Status.CANCELLED
