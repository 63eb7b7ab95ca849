"""Resuming the runs of a dead process: no saved reply is requested again, no side effect is repeated."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from intercepted_io import InterceptedLedger
from msgspec.structs import replace
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.event import Event
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status, WaitReason
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.errors import Refused, SessionLocked
from retinue.interfaces import Call, Tool, Transaction
from retinue.runtime import recovery, run_control
from retinue.runtime.crash_suspects import resume_orphaned_runs
from retinue.runtime.open_conversation import LOCK_RETRIES, LOCK_RETRY_SECONDS
from retinue.storage.file_lock import session_lock
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.worker.clock import system_clock


def make_hanging_tool(started: asyncio.Event, effect: str) -> Tool:
    @tool(effect=effect)
    async def act() -> str:
        """Never returns."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    return act


def make_returning_tool(executed: list[str], effect: str) -> Tool:
    @tool(effect=effect)
    def act(call: Call) -> str:
        """Returns."""
        executed.append(call.id)
        return "done now"

    return act


def make_tool_that_returns_once(second_call_started: asyncio.Event, result: str) -> Tool:
    executed: list[str] = []

    @tool(effect="read")
    async def act(call: Call) -> str:
        """Returns the first time, then never."""
        executed.append(call.id)
        if len(executed) > 1:
            second_call_started.set()
            await asyncio.Event().wait()
        return result

    return act


async def crash_during_call(runtime: RuntimeFixture, effect: str) -> Run:
    """Return a run whose process died during a tool call."""
    started = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", "{}"), text="Acting."), tools=[make_hanging_tool(started, effect)]
    ) as process:
        run = await process.submit("Act.")
        await started.wait()
    return run


async def test_a_run_whose_process_died_is_still_in_the_ledger_and_in_its_file(runtime: RuntimeFixture):
    run = await crash_during_call(runtime, "read")
    async with runtime.open() as process:
        interrupted = await process.reload(run)
        assert (interrupted.status, interrupted.turns, interrupted.tool_calls) == (Status.RUNNING, 1, 1)
        entries = await process.entries(run)
        assert [call.tool for call in unanswered_calls(entries)] == ["act"]


async def test_a_read_or_idempotent_call_is_repeated_without_a_new_request_to_the_model(
    runtime: RuntimeFixture,
):
    for effect in ("read", "idempotent"):
        run = await crash_during_call(runtime, effect)
        executed: list[str] = []
        async with runtime.open(
            text_reply("Finished."), tools=[make_returning_tool(executed, effect)]
        ) as process:
            ended = await process.resume(run)
            assert (ended.status, ended.text) == (Status.DONE, "Finished.")
            assert (ended.turns, ended.tool_calls, ended.attempts) == (2, 1, 2)
            assert ended.usage.input == 20
            assert [result.text for result in await process.tool_results(run)] == ["done now"]
            assert executed == [unanswered_calls(process.request_entries(0)[:-1])[0].id]
            assert len(process.provider.requests) == 1


async def test_a_call_with_a_side_effect_is_not_repeated_and_its_outcome_is_reported_as_unknown(
    runtime: RuntimeFixture,
):
    run = await crash_during_call(runtime, "once")
    executed: list[str] = []
    async with runtime.open(
        text_reply("I checked."), tools=[make_returning_tool(executed, "once")]
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, executed) == (Status.DONE, [])
        result = (await process.tool_results(run))[0]
        assert not result.ok
        assert "Outcome unknown" in result.text


async def test_an_edit_of_the_file_while_its_run_is_resumed_is_in_the_request(runtime: RuntimeFixture):
    """The task is in the file already, so resuming appends nothing that would reload the file."""
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Act.")
        await process.wait_for_event("text.delta")
    file, tasks = Path(run.transcript_path), ["Act."]

    async def edit_task() -> None:
        if not process.provider.requests:
            tasks.append(f"Act {len(tasks)} times.")
            file.write_text(file.read_text().replace(tasks[-2], tasks[-1]))

    ledger = InterceptedLedger(runtime.ledger, before_read=edit_task)
    async with runtime.open(text_reply("Done."), ledger=ledger) as process:
        assert (await process.resume(run)).text == "Done."
        assert entry_texts(process.request_entries(0)[:1])[0] == tasks[-1]


async def test_a_reply_that_was_received_partly_is_requested_again(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("All of it.")) as process:
        ended = await process.resume(run)
        assert ended.text == "All of it."
        assert await process.agent_texts(run) == ["All of it."]


async def test_a_resumed_run_repeats_its_task_if_other_messages_followed_it(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Paint the fence.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Hello."), text_reply("Painted.")) as process:
        await process.run("Hi there.", session=await process.store.find(run.session_id))
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Painted.")
        entries = process.request_entries(1)
        assert entry_texts(entries[:3]) == ["Paint the fence.", "Hi there.", "Hello."]
        assert isinstance(entries[3], Notice)
        assert entries[3].text.endswith("Continue with the task now: Paint the fence.")


async def test_a_saved_final_reply_is_not_requested_again(runtime: RuntimeFixture):
    """The process dies after the reply is saved and before the ledger records the end of the run."""
    end_reached = asyncio.Event()
    writes = 0

    async def block_after_first_write() -> None:
        nonlocal writes
        writes += 1
        if writes > 1:
            end_reached.set()
            await asyncio.Event().wait()

    ledger = InterceptedLedger(runtime.ledger, before_write=block_after_first_write)
    async with runtime.open(text_reply("The end."), ledger=ledger) as process:
        run = await process.submit("Finish.")
        await end_reached.wait()
    async with runtime.open(text_reply("never")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "The end.", 1)
        assert process.provider.requests == []


async def test_a_resumed_run_counts_the_turns_and_tool_calls_in_its_file(runtime: RuntimeFixture):
    started = asyncio.Event()
    steps = [
        tool_call_reply(("ls", "{}"), ("ls", "{}"), text="One."),
        tool_call_reply(("act", "{}"), text="Two."),
    ]
    async with runtime.open(*steps, tools=[make_hanging_tool(started, "read")]) as process:
        run = await process.submit("Count.")
        await started.wait()
    async with runtime.open(text_reply("Three."), tools=[make_returning_tool([], "read")]) as process:
        ended = await process.resume(run)
        assert (ended.turns, ended.tool_calls, ended.usage.output) == (3, 3, 15)


async def test_an_edit_of_the_file_between_crash_and_resume_is_in_the_request(runtime: RuntimeFixture):
    """Shows: A040."""
    run = await crash_during_call(runtime, "read")
    path = Path(run.transcript_path)
    path.write_text(path.read_text().replace("Act.", "Act gently."))
    async with runtime.open(text_reply("Gently done."), tools=[make_returning_tool([], "read")]) as process:
        await process.resume(run)
        assert entry_texts(process.request_entries(0)[:1])[0] == "Act gently."


async def resume_until_call_hangs(runtime: RuntimeFixture, run: Run) -> None:
    """Resume the run in a process that dies during its next call."""
    started = asyncio.Event()
    async with runtime.open(tools=[make_hanging_tool(started, "read")]) as process:
        await recovery.resume_run(
            run.id, process.context, previous_owner=(await process.reload(run)).owner_id
        )
        await started.wait()


async def test_a_run_that_crashes_three_times_without_progress_waits_for_a_person(runtime: RuntimeFixture):
    """Shows: P22."""
    run = await crash_during_call(runtime, "read")
    for _ in range(2):
        await resume_until_call_hangs(runtime, run)
    async with runtime.open(text_reply("Finished."), tools=[make_returning_tool([], "read")]) as process:
        suspended = await process.reload(run)
        suspended = await recovery.resume_run(run.id, process.context, previous_owner=suspended.owner_id)
        assert (suspended.status, suspended.waiting_for, suspended.reason) == (
            Status.WAITING,
            WaitReason.PERSON,
            Reason.RECOVERY_LIMIT,
        )
        assert suspended.error.startswith("the process ended 3 times while it worked on this run.")
        assert process.provider.requests == []
        await run_control.resume_waiting_run(run.id, process.context)
        ended = await process.wait(run)
        assert (ended.status, ended.text, ended.reason, ended.error) == (Status.DONE, "Finished.", None, "")


async def test_a_run_that_completes_a_call_after_each_crash_is_always_resumed(runtime: RuntimeFixture):
    """Shows: P22."""
    run = await crash_during_call(runtime, "read")
    for number in range(6):
        started = asyncio.Event()
        tools = [make_tool_that_returns_once(started, f"done {number}")]
        async with runtime.open(tool_call_reply(("act", "{}")), tools=tools) as process:
            await recovery.resume_run(
                run.id, process.context, previous_owner=(await process.reload(run)).owner_id
            )
            await started.wait()
    async with runtime.open(text_reply("Finished."), tools=[make_returning_tool([], "read")]) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text, ended.attempts) == (Status.DONE, "Finished.", 8)


async def test_only_one_of_two_processes_resumes_a_run(runtime: RuntimeFixture):
    """Shows: P19."""
    run = await crash_during_call(runtime, "read")
    refused: list[str] = []
    tools = [make_returning_tool([], "read")]
    async with (
        runtime.open(text_reply("Mine."), tools=tools) as first,
        runtime.open(text_reply("Mine."), tools=tools) as second,
    ):
        owner = (await first.reload(run)).owner_id
        await recovery.resume_run(run.id, first.context, previous_owner=owner)
        try:
            await recovery.resume_run(run.id, second.context, previous_owner=owner)
        except Refused as error:
            refused.append(str(error))
        assert (await first.wait(run)).text == "Mine."
        assert (len(refused), len(first.provider.requests), len(second.provider.requests)) == (1, 1, 0)


async def test_time_in_which_no_process_works_on_a_run_does_not_count_against_its_deadline(
    runtime: RuntimeFixture,
):
    started = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", "{}")), tools=[make_hanging_tool(started, "read")]
    ) as process:
        run = await process.submit("Act.", deadline_seconds=3600)
        await started.wait()
    a_day_later = replace(system_clock(), now=lambda: datetime.now(UTC) + timedelta(hours=23))
    async with runtime.open(
        text_reply("Done."), tools=[make_returning_tool([], "read")], clock=a_day_later
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Done.")


async def test_time_of_work_before_a_crash_counts_against_the_deadline(runtime: RuntimeFixture):
    started = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", "{}")), tools=[make_hanging_tool(started, "read")]
    ) as process:
        run = await process.submit("Act.", deadline_seconds=3600)
        await started.wait()
        owner = (await process.reload(run)).owner_id
    runtime.died_at[owner] = datetime.now(UTC) + timedelta(hours=1)
    two_hours_later = replace(system_clock(), now=lambda: datetime.now(UTC) + timedelta(hours=2))
    async with runtime.open(
        text_reply("never"), tools=[make_returning_tool([], "read")], clock=two_hours_later
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)
        assert process.provider.requests == []


async def test_open_calls_of_a_run_missing_from_the_ledger_get_results_of_unknown_outcome(
    runtime: RuntimeFixture,
):
    """Shows: P18."""
    run = await crash_during_call(runtime, "read")
    runtime.ledger = type(runtime.ledger)()
    executed: list[str] = []
    async with runtime.open(text_reply("I see."), tools=[make_returning_tool(executed, "read")]) as process:
        session = await process.store.find(run.session_id)
        ended = await process.run("What happened?", session=session)
        assert (ended.status, executed) == (Status.DONE, [])
        entries = process.request_entries(0)
        assert unanswered_calls(entries) == ()
        assert "Its outcome is unknown" in (await process.tool_results(run))[0].text


async def test_a_run_that_crashed_on_its_last_turn_gets_no_further_turn(runtime: RuntimeFixture):
    """The reply that reached the turn limit is on disk, and its tool calls must not be executed."""
    runtime.write_agent("brief", "max_turns: 1\n")
    executed: list[str] = []
    crashed = asyncio.Event()

    def crash_after_reply(event: Event) -> None:
        if event.kind == "entry.saved" and event.data["entry_kind"] == "agent":
            crashed.set()
            raise asyncio.CancelledError

    async with runtime.open(
        tool_call_reply(("act", "{}"), text="Acting."),
        tools=[make_returning_tool(executed, "read")],
        emit=crash_after_reply,
    ) as process:
        run = await process.submit("Act.", agent="brief")
        await crashed.wait()
    async with runtime.open(
        text_reply("One more."), tools=[make_returning_tool(executed, "read")]
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.turns) == (Status.FAILED, Reason.TURN_LIMIT, 1)
        assert (executed, process.provider.requests) == ([], [])
        assert unanswered_calls(await process.entries(run)) == ()


async def test_a_run_can_be_resumed_even_when_the_ledger_was_locked_at_shutdown(
    runtime: RuntimeFixture,
):
    started = asyncio.Event()
    locked_writes = 0

    async def fail_if_locked() -> None:
        nonlocal locked_writes
        if locked_writes:
            locked_writes -= 1
            raise SessionLocked("the ledger is locked by another process")

    ledger = InterceptedLedger(runtime.ledger, before_write=fail_if_locked)
    async with runtime.open(
        tool_call_reply(("act", "{}")), tools=[make_hanging_tool(started, "read")], ledger=ledger
    ) as process:
        run = await process.submit("Act.")
        await started.wait()
        locked_writes = 1
    assert locked_writes == 0
    async with runtime.open(text_reply("Finished."), tools=[make_returning_tool([], "read")]) as process:
        assert (await process.reload(run)).status is Status.RUNNING
        assert (await process.resume(run)).status is Status.DONE


async def test_a_torn_tail_is_reported_when_the_session_is_opened_again(runtime: RuntimeFixture):
    async with runtime.open(text_reply("One."), text_reply("Two.")) as process:
        first = await process.run("Ask one.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text() + "\n<!-- agent id=01TORN n=500 -->\nHalf of")
        run = await process.run("Ask two.", session=await process.store.find(first.session_id))
        notes = [event.data["note"] for event in process.events if "note" in event.data]
        torn_tail = next(path.parent.glob("session.md.torn-*"))
        assert (run.status, len(notes), str(torn_tail) in notes[0]) == (Status.DONE, 1, True)
        assert "Half of" in torn_tail.read_text()


async def test_a_tool_result_that_a_person_removed_is_not_created_again(runtime: RuntimeFixture):
    """The model has replied since, so an old call without a result stays without one."""
    executed: list[str] = []
    async with runtime.open(
        tool_call_reply(("act", "{}")), text_reply("Done."), tools=[make_returning_tool(executed, "once")]
    ) as process:
        run = await process.run("Act.")
    path = Path(run.transcript_path)
    text = path.read_text()
    start = text.index("<!-- result")
    path.write_text(text[:start] + text[text.index("<!-- agent", start) :])
    async with runtime.open(text_reply("Noted."), tools=[make_returning_tool(executed, "once")]) as process:
        session = await process.store.find(run.session_id)
        await process.run("And now?", session=session)
        assert [each for each in await process.entries(run) if isinstance(each, ToolResult)] == []


async def test_a_run_interrupted_longer_ago_than_the_resume_window_is_lost(runtime: RuntimeFixture):
    """Shows: P23."""
    async with runtime.open(text_reply("never"), hold=True) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("run.state")
    async with runtime.open(text_reply("late"), limits=Limits(resume_window_seconds=0)) as process:
        (lost,) = await recovery.resume_available_runs([await process.reload(run)], process.context)
        assert (lost.status, lost.reason) == (Status.LOST, Reason.STALE)
        assert "resume_window_seconds" in lost.error
        assert process.provider.requests == []


async def test_messages_of_one_session_keep_their_order_after_a_crash(runtime: RuntimeFixture):
    """The interrupted message is answered first, then the others in the order in which they were sent.

    Shows: C044, L015.
    """
    async with runtime.open(text_reply("never whole"), hold=True) as process:
        first = await process.submit("One.")
        session = first.session_id
        await process.wait_for_event("text.delta")
        for task in ("Two.", "Three."):
            await process.submit(task, session=await process.store.find(session))
    async with runtime.open(text_reply("1"), text_reply("2"), text_reply("3")) as process:

        def event_kinds(tx: Transaction) -> list[str]:
            return [event.kind for event in tx.find_events()]

        interrupted = await process.all_runs()
        await recovery.requeue_runs_of_dead_processes(process.context, process.context.owners.is_alive)
        await resume_orphaned_runs(interrupted, process.context)
        for run in interrupted:
            await process.worker.wait(run.id)
        texts = [entry.text for entry in await process.entries(first) if isinstance(entry, Message)]
        assert texts == ["One.", "1", "Two.", "2", "Three.", "3"]
        kinds = await process.context.ledger.read(event_kinds)
        assert kinds.count("text.discarded") == 1
        assert "run.started" in kinds[kinds.index("text.discarded") :]


async def test_a_run_waits_while_another_process_has_its_session_locked(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Done.")) as process:
        session = await process.create_session()
        with session_lock(session.path):
            run = await process.submit("Wait for it.", session=session)
            await asyncio.sleep(2 * LOCK_RETRIES * LOCK_RETRY_SECONDS)
            assert (await process.reload(run)).status is Status.RUNNING
        run = await process.wait(run)
        assert (run.status, run.text) == (Status.DONE, "Done.")
