"""A full disk: a run waits for free space without losing work, gives up its slot, and continues by itself."""

import asyncio
import json
from datetime import timedelta

import pytest
from failing_disk import FailingDisk, FailingStore, failing_ledger
from runtime_fixture import RuntimeFixture

from retinue.app.composition import scheduler_callbacks
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.transcript import ToolResult
from retinue.errors import DiskError, SessionLocked
from retinue.interfaces import Transaction
from retinue.runtime import disk_full
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool

FULL_ERROR = DiskError("Cannot write /home/x/session.md: No space left on device", is_full=True)
IO_ERROR = DiskError("Cannot write /home/x/session.md: Input/output error")


@pytest.fixture(autouse=True)
def short_retry_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_full, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(disk_full, "POLL_SECONDS", 0.01)


@tool(effect="once")
async def mail() -> str:
    """Sends a mail."""
    sent.append("mail")
    return "sent"


sent: list[str] = []


@pytest.mark.parametrize("writes", range(5))
async def test_a_run_waits_for_disk_space_and_continues_without_repeating_anything(
    runtime: RuntimeFixture, writes: int
):
    """The disk is full at each entry in turn; no model request and no call is repeated.

    Shows: P06.
    """
    sent.clear()
    async with runtime.open(
        tool_call_reply(("mail", "{}"), text="I send it."), text_reply("Sent."), tools=[mail]
    ) as process:
        disk = FailingDisk(writes, FULL_ERROR)
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, disk))
        run = await process.submit("Send it.", session=session)
        if writes < 4:
            await process.wait_until_waiting(run)
            waiting = await process.reload(run)
            assert (waiting.waiting_for, waiting.error) == (WaitReason.DISK, str(FULL_ERROR))
            notes = [e.data["note"] for e in process.events if e.data.get("note")]
            assert notes == [f"waiting for disk space: {FULL_ERROR}"]
            await disk.wait_for_failures()
            disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.text, ended.error) == (Status.DONE, "Sent.", "")
        assert ended.attempts == 1
        assert (len(process.provider.requests), sent) == (2, ["mail"])
        assert await process.agent_texts(run) == ["I send it.", "Sent."]
        assert [each.text for each in await process.tool_results(run)] == ["sent"]


@pytest.mark.parametrize("writes", range(4))
async def test_a_full_disk_under_the_ledger_is_retried_without_repeating_anything(
    runtime: RuntimeFixture, writes: int
):
    """Shows: P06."""
    sent.clear()
    async with runtime.open(
        tool_call_reply(("mail", "{}"), text="I send it."), text_reply("Sent."), tools=[mail]
    ) as process:
        disk = FailingDisk(1 + writes, FULL_ERROR)  # the run itself is created
        process.replace_parts(ledger=failing_ledger(process.context.ledger, disk))
        run = await process.submit("Send it.")
        if writes < 3:
            await disk.wait_for_failures()
            assert not (await process.reload(run)).status.is_final
            disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.text) == (Status.DONE, "Sent.")
        assert (len(process.provider.requests), sent) == (2, ["mail"])
        assert await process.agent_texts(run) == ["I send it.", "Sent."]


async def test_a_ledger_locked_by_another_process_ends_no_run(runtime: RuntimeFixture):
    """Shows: P27."""
    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Sent."), tools=[mail]) as process:
        disk = FailingDisk(2, SessionLocked("ledger.db: the ledger is locked by another process"))
        process.replace_parts(ledger=failing_ledger(process.context.ledger, disk))
        run = await process.submit("Send it.")
        await disk.wait_for_failures(5)
        disk.make_room()
        assert (await process.wait(run)).status is Status.DONE


async def test_a_run_that_waits_for_disk_space_frees_its_slot_and_claims_one_again(runtime: RuntimeFixture):
    """Shows: P06."""
    async with runtime.open(
        by_agent={"First.": [text_reply("One.")], "Second.": [text_reply("Two.")]}, limits=Limits(max_live=1)
    ) as process:
        disk = FailingDisk(1, FULL_ERROR)
        working = process.context
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, disk))
        first = await process.submit("First.", session=session)
        await process.wait_until_waiting(first)
        process.replace_parts(store=working.store)
        second = await process.run("Second.")
        assert second.status is Status.DONE
        assert (await process.reload(first)).status is Status.WAITING
        disk.make_room()
        assert (await process.wait(first)).text == "One."


async def test_waiting_for_disk_space_extends_the_deadline(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Done.")) as process:
        disk = FailingDisk(1, FULL_ERROR)
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, disk))
        run = await process.submit("Go.", session=session, deadline_seconds=1)
        await process.wait_until_waiting(run)
        await asyncio.sleep(1.1)
        disk.make_room()
        ended = await process.wait(run)
        assert ended.status is Status.DONE
        assert ended.deadline_at is not None
        assert ended.started_at is not None
        assert ended.deadline_at - ended.started_at > timedelta(seconds=2)


async def test_a_run_that_waits_for_disk_space_can_be_cancelled(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Never kept.")) as process:
        disk = FailingDisk(1, FULL_ERROR)
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, disk))
        run = await process.submit("Go.", session=session)
        await process.wait_until_waiting(run)
        assert (await process.cancel(run)).status is Status.CANCELLED
        disk.make_room()
        ended = await process.wait(run)
        assert (ended.status, ended.reason) == (Status.CANCELLED, Reason.USER_CANCEL)


async def test_a_run_cancelled_elsewhere_while_it_waits_for_disk_space_stays_cancelled(
    runtime: RuntimeFixture,
):
    async with runtime.open(tool_call_reply(("mail", "{}")), text_reply("Never."), tools=[mail]) as process:
        sent.clear()
        disk = FailingDisk(1, FULL_ERROR)
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, disk))
        run = await process.submit("Go.", session=session)
        await process.wait_until_waiting(run)
        waiting = await process.reload(run)
        cancelled = waiting.finish(
            Status.CANCELLED, at=process.context.clock.now(), reason=Reason.USER_CANCEL
        )

        def step(tx: Transaction) -> None:
            tx.update_run(cancelled)

        await process.context.ledger.write(step)
        disk.make_room()
        assert (await process.wait(run)).status is Status.CANCELLED
        assert sent == []


async def leave_run_waiting_for_disk(runtime: RuntimeFixture) -> Run:
    """Return a run that waited for disk space when its process died."""
    async with runtime.open(text_reply("Lost with the process.")) as process:
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, FailingDisk(1, FULL_ERROR)))
        run = await process.submit("Go.", session=session)
        await process.wait_until_waiting(run)
        return run


async def test_a_run_left_waiting_for_disk_space_by_a_dead_process_can_be_resumed(
    runtime: RuntimeFixture,
):
    """Shows: P06."""
    run = await leave_run_waiting_for_disk(runtime)
    async with runtime.open(text_reply("Here.")) as process:
        abandoned = await process.reload(run)
        assert (abandoned.status, abandoned.waiting_for) == (Status.WAITING, WaitReason.DISK)
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Here.")


async def test_a_run_left_waiting_for_disk_space_by_a_dead_process_does_not_block_its_session(
    runtime: RuntimeFixture,
):
    first = await leave_run_waiting_for_disk(runtime)
    async with runtime.open(text_reply("Heard.")) as process:
        session = await process.store.find(first.session_id)
        second = await process.submit("And?", session=session)
        process.worker.start(
            scheduler_callbacks(
                process.context,
                lambda _, error: process.crashes.append(error),
                lambda o: o == process.context.owners.own_id,
            )
        )
        assert (await process.wait(second)).status is Status.DONE
        assert (await process.reload(first)).status is Status.QUEUED


async def test_a_child_is_created_once_there_is_disk_space(runtime: RuntimeFixture):
    """Shows: P06."""
    runtime.write_agent("helper")
    spawn_helper = (
        "PersistentAgent",
        json.dumps({"preset": "helper", "description": "look", "prompt": "Look."}),
    )
    by_agent = {"Go.": [tool_call_reply(spawn_helper), text_reply("Good.")], "Look.": [text_reply("Here.")]}
    async with runtime.open(by_agent=by_agent) as process:
        session = await process.create_session()
        disk = FailingDisk(2, FULL_ERROR)
        process.replace_parts(store=FailingStore(process.store, disk))
        run = await process.submit("Go.", session=session)
        await process.wait_until_waiting(run)
        await disk.wait_for_failures()
        disk.make_room()
        ended = await process.wait_until_ended(run)
        assert (ended.status, ended.text) == (Status.DONE, "Good.")
        assert len(ended.child_ids) == 1
        assert len(process.provider.requests) == 3


async def test_a_disk_error_other_than_full_fails_the_run(runtime: RuntimeFixture):
    """Shows: P08."""
    async with runtime.open(text_reply("Never kept.")) as process:
        session = await process.create_session()
        process.replace_parts(store=FailingStore(process.store, FailingDisk(1, IO_ERROR)))
        run = await process.run("Go.", session=session)
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.DISK, str(IO_ERROR))
        assert [type(each) for each in await process.entries(run) if isinstance(each, ToolResult)] == []
        assert await process.agent_texts(run) == []


async def test_a_run_whose_end_could_not_be_recorded_is_finished_by_the_next_process(runtime: RuntimeFixture):
    """The reply is in the file, so the next process only records the end of the run.

    Shows: P06.
    """
    async with runtime.open(text_reply("Done.")) as process:
        disk = FailingDisk(1, FULL_ERROR)  # the run itself is created
        process.replace_parts(ledger=failing_ledger(process.context.ledger, disk))
        run = await process.submit("Go.")
        await disk.wait_for_failures()
        assert await process.agent_texts(run) == ["Done."]
    async with runtime.open(text_reply("Never.")) as process:
        assert (await process.reload(run)).status is Status.RUNNING
        ended = await process.resume(run)
        assert (ended.status, ended.text, process.provider.requests) == (Status.DONE, "Done.", [])
