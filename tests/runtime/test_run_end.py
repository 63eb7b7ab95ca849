"""How runs end: by a last word, a limit, a person, a full disk or a defect; and each end leaves a file to go on with."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.app.composition import scheduler_callbacks
from retinue.domain.model_turn import Reply, Request, StopReason
from retinue.domain.run import Reason, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolResult, unanswered_calls
from retinue.errors import DiskError, ModelFailed
from retinue.interfaces import Conversation, SessionStore
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_a_reply_without_words_or_calls_is_asked_for_again_and_then_is_stuck(runtime: RuntimeFixture):
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


async def test_a_refusal_ends_the_run_with_its_words_and_is_not_asked_again(runtime: RuntimeFixture):
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


async def test_a_model_that_fails_ends_the_run_with_its_reason_and_keeps_the_task(runtime: RuntimeFixture):
    async with runtime.open(ModelFailed("the server said no", reason="auth")) as process:
        run = await process.run("Anything.")
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.AUTH, "the server said no")
        assert entry_texts(await process.entries(run)) == ["Anything."]


async def test_the_turn_limit_of_a_definition_ends_the_run_and_settles_its_calls(runtime: RuntimeFixture):
    runtime.write_agent("brief", front="max_turns: 2\n")
    again = tool_call_reply(("ls", "{}"))
    async with runtime.open(again, again, text_reply("never")) as process:
        run = await process.run("List for ever.", agent="brief")
        assert (run.status, run.reason, run.turns) == (Status.FAILED, Reason.TURN_LIMIT, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert entry_texts(entries[-1:])[0] == "No result: the agent's turn limit was reached."


async def test_the_deadline_ends_the_run_and_keeps_the_words_heard_so_far(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.run("Hurry.", deadline_seconds=1)
        assert (run.status, run.reason) == (Status.TIMED_OUT, Reason.DEADLINE)
        last = (await process.entries(run))[-1]
        assert isinstance(last, Message)
        assert (last.text, last.stop_reason, run.text) == ("Half of thi", "cancelled", "Half of thi")


async def test_a_cancelled_run_keeps_the_words_heard_so_far_and_leaves_its_file_ready(
    runtime: RuntimeFixture,
):
    """Shows: K01."""
    async with runtime.open(text_reply("Half of this is heard."), text_reply("Fresh."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        stopped = await process.cancel(run)
        assert (stopped.status, stopped.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        assert (stopped.text, await process.agent_texts(run)) == ("Half of thi", ["Half of thi"])
        process.provider.hold_until = None
        session = await process.store.find(run.session_id)
        assert (await process.run("Again.", session=session)).text == "Fresh."


async def test_a_run_cancelled_during_a_call_leaves_no_call_without_a_result(runtime: RuntimeFixture):
    """Shows: K01."""
    begun = asyncio.Event()

    @tool
    async def forever() -> str:
        """Never comes back."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with runtime.open(tool_call_reply(("forever", "{}"), ("ls", "{}")), tools=[forever]) as process:
        run = await process.submit("Wait.")
        await begun.wait()
        stopped = await process.cancel(run)
        assert (stopped.status, stopped.turns, stopped.tool_calls) == (Status.CANCELLED, 1, 2)
        entries = await process.entries(run)
        assert unanswered_calls(entries) == ()
        assert any(isinstance(entry, ToolResult) and "stopped before" in entry.text for entry in entries)


async def test_a_run_cancelled_while_its_reply_is_written_says_it_once(runtime: RuntimeFixture):
    """A person saves the file at that moment, so the writing takes a while; another conversation is open, so it
    is done in a thread."""
    acting = tool_call_reply(("ls", "{}"), text="I look around.")

    def saved_meanwhile(request: Request) -> Reply:
        path = next(path for path in runtime.folder.rglob("session.md") if path.read_text())
        path.write_text(path.read_text().replace("Look.", "Look around."))
        # The first time that anything else gets its turn, the thread is at work.
        asyncio.get_running_loop().call_soon(process.worker.cancel, request.entries[0].run)
        return acting

    async with runtime.open(saved_meanwhile) as process:
        async with process.store.open(await process.create_session()):
            run = await process.submit("Look.")
            stopped = await process.wait(run)
        assert (stopped.status, stopped.turns, stopped.tool_calls) == (Status.CANCELLED, 1, 1)
        entries = await process.entries(run)
        assert [entry.text for entry in entries if isinstance(entry, Message)] == [
            "Look around.",
            "I look around.",
        ]
        assert unanswered_calls(entries) == ()


async def test_a_run_whose_file_a_person_broke_ends_as_it_would_have(runtime: RuntimeFixture):
    broken = "\n<!-- user what is this -->\n"
    async with runtime.open(text_reply("Half of this."), hold=True) as process:
        run = await process.submit("Speak.")
        await process.wait_for_event("text.delta")
        path = Path(run.transcript_path)
        path.write_text(path.read_text() + broken)
        stopped = await process.cancel(run)
        assert (stopped.status, stopped.reason) == (Status.CANCELLED, Reason.USER_CANCEL)
        assert path.read_text().endswith(broken)


async def test_cancelling_twice_is_cancelling_once(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
        both = await process.wait_all(process.cancel(run), process.cancel(run))
        assert [one.status for one in both] == [Status.CANCELLED, Status.CANCELLED]
        assert await process.agent_texts(run) == ["Half of thi"]
        assert (await process.cancel(run)).status is Status.CANCELLED


async def test_a_defect_in_one_run_is_that_runs_end_and_no_others(runtime: RuntimeFixture):
    def defect(_: Request) -> Reply:
        raise ZeroDivisionError("a defect")

    async with runtime.open(by_agent={"general": [text_reply("Fine.")], "broken": [defect]}) as process:
        runtime.write_agent("broken")
        bad, good = await process.wait_all(process.run("Break.", agent="broken"), process.run("Work."))
        assert (bad.status, bad.reason, bad.error) == (
            Status.FAILED,
            Reason.CRASHED,
            "ZeroDivisionError: a defect",
        )
        assert good.status is Status.DONE
        assert [type(crash) for crash in process.crashes] == [ZeroDivisionError]


async def test_a_run_whose_session_is_gone_fails_with_a_sentence(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Here."), text_reply("never")) as process:
        first = await process.run("Where?")
        session = await process.store.find(first.session_id)
        await process.store.delete(session)
        run = await process.run("And now?", session=session)
        assert (run.status, run.reason) == (Status.FAILED, Reason.CONFIG)
        assert "There is no session" in run.error


class Full:
    """A conversation whose disk is full after so many appends."""

    def __init__(self, store: SessionStore, room: int) -> None:
        self._store = store
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncGenerator[Conversation]:
        async with self._store.open(session) as talk:
            add = talk.append

            async def append(*entries: Entry, sync: bool = True) -> None:
                self.room -= 1
                if self.room < 0:
                    raise DiskError("the disk is full")
                await add(*entries, sync=sync)

            talk.append = append
            yield talk


async def test_a_full_disk_ends_the_run_and_keeps_what_was_written(runtime: RuntimeFixture):
    async with runtime.open(tool_call_reply(("ls", "{}"), text="Look."), text_reply("never")) as process:
        store = Full(process.store, room=2)
        full = replace(process.context, store=store)
        process.worker.start(
            scheduler_callbacks(full, lambda _, error: process.crashes.append(error), lambda _: True)
        )
        run = await process.run("Go.")
        assert (run.status, run.reason, run.error) == (Status.FAILED, Reason.DISK, "the disk is full")
        assert await process.agent_texts(run) == ["Look."]
        process.worker.start(
            scheduler_callbacks(
                process.context, lambda _, error: process.crashes.append(error), lambda _: True
            )
        )
        process.provider.script = {"*": [text_reply("x"), text_reply("Room again.")]}
        again = await process.run("Again.", session=await process.store.find(run.session_id))
        assert (again.text, process.crashes) == ("Room again.", [])


async def test_a_driver_that_times_out_by_itself_is_not_the_deadline(runtime: RuntimeFixture):
    async with runtime.open(TimeoutError("the driver's own")) as process:
        run = await process.run("Go.")
        assert (run.status, run.reason) == (Status.FAILED, Reason.CRASHED)
        assert "the driver's own" in run.error
