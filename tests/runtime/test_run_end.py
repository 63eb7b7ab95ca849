"""The ends of runs: reply, limit, cancelling, full disk or defect. Each leaves a transcript that can be continued."""

import asyncio
from pathlib import Path

from intercepted_io import InterceptedStore
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.model_turn import ModelReply, ModelRequest, StopReason
from retinue.domain.run import Reason, Status
from retinue.domain.transcript import Entry, Message, Notice, ToolResult, unanswered_calls
from retinue.errors import DiskError, ModelFailed
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_an_empty_reply_is_requested_again_twice_and_then_the_run_fails_as_stuck(
    runtime: RuntimeFixture,
):
    """Shows: M20."""
    async with runtime.open(text_reply(""), text_reply("  \n"), text_reply("Now I answer.")) as process:
        run = await process.run("Speak.")
        assert (run.status, run.text) == (Status.DONE, "Now I answer.")
        nudges = [entry for entry in process.request_entries(2) if isinstance(entry, Notice)]
        assert [nudge.topic for nudge in nudges] == ["nudge", "nudge"]
    async with runtime.open(
        text_reply(""), text_reply(""), text_reply(""), text_reply("too late")
    ) as process:
        run = await process.run("Speak.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.STUCK)
        assert len(process.provider.requests) == 3


async def test_a_refusal_by_the_model_ends_the_run_without_a_retry(runtime: RuntimeFixture):
    """Shows: M19."""
    async with runtime.open(
        text_reply("I cannot help with that.", stop=StopReason.REFUSED), text_reply("never")
    ) as process:
        run = await process.run("Do harm.")
        assert (run.status, run.reason, run.text) == (
            Status.FAILED,
            Reason.REFUSED,
            "I cannot help with that.",
        )
        assert len(process.provider.requests) == 1


async def test_a_provider_error_ends_the_run_with_its_reason_and_keeps_the_task(runtime: RuntimeFixture):
    async with runtime.open(ModelFailed("the server said no", reason="auth")) as process:
        run = await process.run("Anything.")
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.AUTH, "the server said no")
        assert entry_texts(await process.entries(run)) == ["Anything."]


async def test_the_turn_limit_ends_the_run_and_its_open_calls_get_results(runtime: RuntimeFixture):
    runtime.write_agent("brief", front="max_turns: 2\n")
    call = tool_call_reply(("ls", "{}"))
    async with runtime.open(call, call, text_reply("never")) as process:
        run = await process.run("List for ever.", agent="brief")
        assert (run.status, run.reason, run.turns) == (Status.FAILED, Reason.TURN_LIMIT, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert entry_texts(entries[-1:])[0] == "No result: the agent's turn limit was reached."


async def test_the_deadline_ends_the_run_and_keeps_the_text_received_so_far(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.run("Hurry.", deadline_seconds=1)
        assert (run.status, run.reason) == (Status.TIMED_OUT, Reason.DEADLINE)
        last = (await process.entries(run))[-1]
        assert isinstance(last, Message)
        assert (last.text, last.stop_reason, run.text) == ("Half of thi", "cancelled", "Half of thi")


async def test_a_cancelled_run_keeps_the_text_received_so_far_and_its_session_can_continue(
    runtime: RuntimeFixture,
):
    """Shows: K01."""
    async with runtime.open(text_reply("Half of this is heard."), text_reply("Fresh."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        cancelled = await process.cancel(run)
        assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        assert (cancelled.text, await process.agent_texts(run)) == ("Half of thi", ["Half of thi"])
        process.provider.hold_until = None
        session = await process.store.find(run.session_id)
        assert (await process.run("Again.", session=session)).text == "Fresh."


async def test_a_run_cancelled_during_a_tool_call_leaves_no_call_without_a_result(runtime: RuntimeFixture):
    """Shows: K01."""
    started = asyncio.Event()

    @tool
    async def forever() -> str:
        """Never comes back."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with runtime.open(tool_call_reply(("forever", "{}"), ("ls", "{}")), tools=[forever]) as process:
        run = await process.submit("Wait.")
        await started.wait()
        cancelled = await process.cancel(run)
        assert (cancelled.status, cancelled.turns, cancelled.tool_calls) == (Status.CANCELLED, 1, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert any(isinstance(entry, ToolResult) and "stopped before" in entry.text for entry in entries)


async def test_a_run_cancelled_while_its_reply_is_written_saves_the_reply_once(runtime: RuntimeFixture):
    """Appending is slow because a person edited the file, and runs in a thread because another session is open."""
    call = tool_call_reply(("ls", "{}"), text="I look around.")

    def edit_file_and_cancel(request: ModelRequest) -> ModelReply:
        path = next(path for path in runtime.folder.rglob("session.md") if path.read_text())
        path.write_text(path.read_text().replace("Look.", "Look around."))
        # The event loop calls this first while the thread writes.
        asyncio.get_running_loop().call_soon(process.worker.cancel, request.entries[0].run)
        return call

    async with runtime.open(edit_file_and_cancel) as process:
        async with process.store.open(await process.create_session()):
            run = await process.submit("Look.")
            cancelled = await process.wait(run)
        assert (cancelled.status, cancelled.turns, cancelled.tool_calls) == (Status.CANCELLED, 1, 1)
        entries = await process.entries(run)
        assert [entry.text for entry in entries if isinstance(entry, Message)] == [
            "Look around.",
            "I look around.",
        ]
        assert unanswered_calls(entries) == ()


async def test_a_run_can_be_cancelled_even_when_its_file_is_malformed(runtime: RuntimeFixture):
    broken = "\n<!-- user what is this -->\n"
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Speak.")
        await process.wait_for_event("text.delta")
        path = Path(run.transcript_path)
        path.write_text(path.read_text() + broken)
        cancelled = await process.cancel(run)
        assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        assert path.read_text().endswith(broken)


async def test_cancelling_a_run_twice_has_the_effect_of_once(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        cancelled = await process.wait_all(process.cancel(run), process.cancel(run))
        assert [each.status for each in cancelled] == [Status.CANCELLED, Status.CANCELLED]
        assert await process.agent_texts(run) == ["Half of thi"]
        assert (await process.cancel(run)).status is Status.CANCELLED


async def test_an_unexpected_error_ends_only_the_run_that_raised_it(runtime: RuntimeFixture):
    def raise_error(_: ModelRequest) -> ModelReply:
        raise ZeroDivisionError("a defect")

    async with runtime.open(by_agent={"general": [text_reply("Fine.")], "broken": [raise_error]}) as process:
        runtime.write_agent("broken")
        failed, succeeded = await process.wait_all(
            process.run("Break.", agent="broken"), process.run("Work.")
        )
        assert (failed.status, failed.reason, failed.error) == (
            Status.FAILED,
            Reason.CRASHED,
            "ZeroDivisionError: a defect",
        )
        assert succeeded.status is Status.DONE
        assert [type(crash) for crash in process.crashes] == [ZeroDivisionError]


async def test_a_run_in_a_deleted_session_fails_with_an_error_message(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Here."), text_reply("never")) as process:
        first = await process.run("Where?")
        session = await process.store.find(first.session_id)
        await process.store.delete(session)
        run = await process.run("And now?", session=session)
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "not found" in run.error


async def test_a_disk_error_ends_the_run_and_keeps_the_entries_written_before(runtime: RuntimeFixture):
    async with runtime.open(tool_call_reply(("ls", "{}"), text="Look."), text_reply("never")) as process:
        appends_left = 2

        def fail_when_full(_entries: tuple[Entry, ...], _sync: bool) -> None:
            nonlocal appends_left
            appends_left -= 1
            if appends_left < 0:
                raise DiskError("the disk is full")

        process.replace_parts(store=InterceptedStore(process.store, fail_when_full))
        run = await process.run("Go.")
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.DISK, "the disk is full")
        assert await process.agent_texts(run) == ["Look."]
        process.replace_parts(store=process.store)
        process.provider.script = {"*": [text_reply("x"), text_reply("Room again.")]}
        again = await process.run("Again.", session=await process.store.find(run.session_id))
        assert (again.text, process.crashes) == ("Room again.", [])


async def test_a_timeout_error_of_the_provider_is_not_reported_as_the_deadline(runtime: RuntimeFixture):
    async with runtime.open(TimeoutError("the driver's own")) as process:
        run = await process.run("Go.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CRASHED)
        assert "the driver's own" in run.error
