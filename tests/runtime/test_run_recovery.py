"""A process dies and another takes its runs up: what was answered is not asked again, what was done is not redone."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.event import Event
from retinue.domain.limits import Limits
from retinue.domain.run import Reason, Run, Status
from retinue.domain.transcript import Message, Notice, ToolResult, unanswered_calls
from retinue.errors import Refused, SessionLocked
from retinue.interfaces import Call, Ledger, Tool, Transaction
from retinue.runtime import recovery
from retinue.runtime.crash_quarantine import resume_interrupted_runs
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.worker.clock import system_clock

T = TypeVar("T")


def waits_for_ever(begun: asyncio.Event, effect: str) -> Tool:
    @tool(effect=effect)
    async def act() -> str:
        """Never comes back."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return act


def comes_back(made: list[str], effect: str) -> Tool:
    @tool(effect=effect)
    def act(call: Call) -> str:
        """Comes back."""
        made.append(call.id)
        return "done now"

    return act


class Stubborn:
    """A ledger that another process keeps locked for a while."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.refusals = 0

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        if self.refusals:
            self.refusals -= 1
            raise SessionLocked("another process keeps the ledger locked")
        return await self.ledger.write(step, on_commit)

    async def read(self, step: Callable[[Transaction], T]) -> T:
        return await self.ledger.read(step)


class Meanwhile:
    """A ledger that is long at every look: meanwhile something else happens."""

    def __init__(self, ledger: Ledger, happens: Callable[[], object]) -> None:
        self.ledger = ledger
        self._happens = happens

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        return await self.ledger.write(step, on_commit)

    async def read(self, step: Callable[[Transaction], T]) -> T:
        self._happens()
        return await self.ledger.read(step)


async def left_in_the_call(runtime: RuntimeFixture, effect: str) -> Any:
    """A run whose process died while a tool was at work."""
    begun = asyncio.Event()
    async with runtime.open(
        tool_call_reply(("act", "{}"), text="Acting."), tools=[waits_for_ever(begun, effect)]
    ) as process:
        run = await process.submit("Act.")
        await begun.wait()
    return run


async def test_a_run_whose_process_died_stays_in_the_ledger_and_in_its_file(runtime: RuntimeFixture):
    run = await left_in_the_call(runtime, "read")
    async with runtime.open() as process:
        left = await process.reload(run)
        assert (left.status, left.turns, left.tool_calls) == (Status.RUNNING, 1, 1)
        entries = await process.entries(run)
        assert [called.tool for called in unanswered_calls(entries)] == ["act"]


async def test_a_call_that_only_reads_is_made_again_and_the_model_is_not_asked_again(runtime: RuntimeFixture):
    for effect in ("read", "idempotent"):
        run = await left_in_the_call(runtime, effect)
        made: list[str] = []
        async with runtime.open(text_reply("Finished."), tools=[comes_back(made, effect)]) as process:
            ended = await process.resume(run)
            assert (ended.status, ended.text) == (Status.DONE, "Finished.")
            assert (ended.turns, ended.tool_calls, ended.attempts) == (2, 1, 2)
            assert ended.usage.input == 20
            assert [result.text for result in await process.tool_results(run)] == ["done now"]
            assert made == [unanswered_calls(process.request_entries(0)[:-1])[0].id]
            assert len(process.provider.requests) == 1


async def test_a_call_with_an_effect_is_never_made_twice_and_its_outcome_is_called_unknown(
    runtime: RuntimeFixture,
):
    run = await left_in_the_call(runtime, "once")
    made: list[str] = []
    async with runtime.open(text_reply("I checked."), tools=[comes_back(made, "once")]) as process:
        ended = await process.resume(run)
        assert (ended.status, made) == (Status.DONE, [])
        result = (await process.tool_results(run))[0]
        assert not result.ok
        assert "Outcome unknown" in result.text


async def test_what_a_person_changes_while_a_run_is_taken_up_again_is_asked_with(runtime: RuntimeFixture):
    """Its task stands in the file already, so nothing is added that would look at it."""
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Act.")
        await process.wait_for_event("text.delta")
    file, told = Path(run.transcript_path), ["Act."]

    def edited() -> None:
        if not process.provider.requests:
            told.append(f"Act {len(told)} times.")
            file.write_text(file.read_text().replace(told[-2], told[-1]))

    async with runtime.open(text_reply("Done."), ledger=Meanwhile(runtime.ledger, edited)) as process:
        assert (await process.resume(run)).text == "Done."
        assert entry_texts(process.request_entries(0)[:1])[0] == told[-1]


async def test_a_reply_half_heard_is_asked_for_again(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Talk.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("All of it.")) as process:
        ended = await process.resume(run)
        assert ended.text == "All of it."
        assert await process.agent_texts(run) == ["All of it."]


async def test_a_task_that_others_spoke_after_is_named_again_when_it_is_taken_up(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Half of this is heard."), hold=True) as process:
        run = await process.submit("Paint the fence.")
        await process.wait_for_event("text.delta")
    async with runtime.open(text_reply("Hello."), text_reply("Painted.")) as process:
        await process.run("Hi there.", session=await process.store.find(run.session_id))
        ended = await process.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Painted.")
        asked = process.request_entries(1)
        assert entry_texts(asked[:3]) == ["Paint the fence.", "Hi there.", "Hello."]
        assert isinstance(asked[3], Notice)
        assert asked[3].text.endswith("Go on with it now: Paint the fence.")


class Unwilling:
    """A ledger that takes no end of a run: a process that dies between the last word and the end."""

    def __init__(self, ledger: Ledger, fell: asyncio.Event) -> None:
        self._ledger = ledger
        self._fell = fell
        self.steps = 0

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        self.steps += 1
        if self.steps > 1:
            self._fell.set()
            await asyncio.Event().wait()
        return await self._ledger.write(step, on_commit)

    async def read(self, step: Callable[[Transaction], T]) -> T:
        return await self._ledger.read(step)


async def test_a_last_word_that_is_on_disk_is_the_end_and_is_not_asked_for_again(runtime: RuntimeFixture):
    fell = asyncio.Event()
    async with runtime.open(text_reply("The end."), ledger=Unwilling(runtime.ledger, fell)) as process:
        run = await process.submit("Finish.")
        await fell.wait()
    async with runtime.open(text_reply("never")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "The end.", 1)
        assert process.provider.requests == []


async def test_counts_after_a_death_are_those_of_the_file(runtime: RuntimeFixture):
    begun = asyncio.Event()
    steps = [
        tool_call_reply(("ls", "{}"), ("ls", "{}"), text="One."),
        tool_call_reply(("act", "{}"), text="Two."),
    ]
    async with runtime.open(*steps, tools=[waits_for_ever(begun, "read")]) as process:
        run = await process.submit("Count.")
        await begun.wait()
    async with runtime.open(text_reply("Three."), tools=[comes_back([], "read")]) as process:
        ended = await process.resume(run)
        assert (ended.turns, ended.tool_calls, ended.usage.output) == (3, 3, 15)


async def test_an_edit_made_while_the_run_was_down_is_the_conversation(runtime: RuntimeFixture):
    """Shows: A040."""
    run = await left_in_the_call(runtime, "read")
    path = Path(run.transcript_path)
    path.write_text(path.read_text().replace("Act.", "Act gently."))
    async with runtime.open(text_reply("Gently done."), tools=[comes_back([], "read")]) as process:
        await process.resume(run)
        assert entry_texts(process.request_entries(0)[:1])[0] == "Act gently."


async def test_a_run_is_taken_up_three_times_at_most_and_then_counts_as_lost(runtime: RuntimeFixture):
    run = await left_in_the_call(runtime, "read")
    for _ in range(3):
        begun = asyncio.Event()
        async with runtime.open(tools=[waits_for_ever(begun, "read")]) as process:
            await recovery.resume_run(
                run.id, process.context, previous_owner=(await process.reload(run)).owner_id
            )
            await begun.wait()
    async with runtime.open(text_reply("never")) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.attempts) == (Status.LOST, Reason.RECOVERY_LIMIT, 4)
        assert process.provider.requests == []


async def test_of_two_processes_that_saw_the_owner_die_only_one_takes_the_run(runtime: RuntimeFixture):
    """Shows: P19."""
    run = await left_in_the_call(runtime, "read")
    refused: list[str] = []
    tools = [comes_back([], "read")]
    async with (
        runtime.open(text_reply("Mine."), tools=tools) as one,
        runtime.open(text_reply("Mine."), tools=tools) as two,
    ):
        dead = (await one.reload(run)).owner_id
        await recovery.resume_run(run.id, one.context, previous_owner=dead)
        try:
            await recovery.resume_run(run.id, two.context, previous_owner=dead)
        except Refused as error:
            refused.append(str(error))
        assert (await one.wait(run)).text == "Mine."
        assert (len(refused), len(one.provider.requests), len(two.provider.requests)) == (1, 1, 0)


async def test_the_deadline_counts_from_the_first_start_and_survives_the_death(runtime: RuntimeFixture):
    begun = asyncio.Event()
    async with runtime.open(tool_call_reply(("act", "{}")), tools=[waits_for_ever(begun, "read")]) as process:
        run = await process.submit("Act.", deadline_seconds=3600)
        await begun.wait()
    an_hour_later = replace(system_clock(), now=lambda: datetime.now(UTC) + timedelta(hours=1))
    async with runtime.open(
        text_reply("never"), tools=[comes_back([], "read")], clock=an_hour_later
    ) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)
        assert process.provider.requests == []


async def test_calls_of_a_run_that_is_gone_get_an_honest_answer_in_the_next_one(runtime: RuntimeFixture):
    """Shows: P18."""
    run = await left_in_the_call(runtime, "read")
    runtime.ledger = type(runtime.ledger)()
    made: list[str] = []
    async with runtime.open(text_reply("I see."), tools=[comes_back(made, "read")]) as process:
        session = await process.store.find(run.session_id)
        ended = await process.run("What happened?", session=session)
        assert (ended.status, made) == (Status.DONE, [])
        entries = process.request_entries(0)
        assert unanswered_calls(entries) == ()
        assert "Nothing is known of its outcome" in (await process.tool_results(run))[0].text


async def test_the_last_turn_stays_the_last_when_the_process_dies_on_it(runtime: RuntimeFixture):
    """The reply that used up the turns is on disk, and its calls were never to be made."""
    runtime.write_agent("brief", "max_turns: 1\n")
    made: list[str] = []
    died = asyncio.Event()

    def dies(event: Event) -> None:
        if event.kind == "entry.saved" and event.data["entry_kind"] == "agent":
            died.set()
            raise asyncio.CancelledError

    async with runtime.open(
        tool_call_reply(("act", "{}"), text="Acting."), tools=[comes_back(made, "read")], emit=dies
    ) as process:
        run = await process.submit("Act.", agent="brief")
        await died.wait()
    async with runtime.open(text_reply("One more."), tools=[comes_back(made, "read")]) as process:
        ended = await process.resume(run)
        assert (ended.status, ended.reason, ended.turns) == (Status.FAILED, Reason.TURN_LIMIT, 1)
        assert (made, process.provider.requests) == ([], [])
        assert unanswered_calls(await process.entries(run)) == ()


async def test_a_run_is_left_for_the_next_process_though_the_ledger_cannot_be_written_to(
    runtime: RuntimeFixture,
):
    begun = asyncio.Event()
    ledger = Stubborn(runtime.ledger)
    async with runtime.open(
        tool_call_reply(("act", "{}")), tools=[waits_for_ever(begun, "read")], ledger=ledger
    ) as process:
        run = await process.submit("Act.")
        await begun.wait()
        ledger.refusals = 1
    assert ledger.refusals == 0
    async with runtime.open(text_reply("Finished."), tools=[comes_back([], "read")]) as process:
        assert (await process.reload(run)).status is Status.RUNNING
        assert (await process.resume(run)).status is Status.DONE


async def test_a_torn_tail_is_told_when_the_session_is_opened_again(runtime: RuntimeFixture):
    async with runtime.open(text_reply("One."), text_reply("Two.")) as process:
        first = await process.run("Ask one.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text() + "\n<!-- agent id=01TORN n=500 -->\nHalf of")
        run = await process.run("Ask two.", session=await process.store.find(first.session_id))
        notes = [event.data["note"] for event in process.events if "note" in event.data]
        kept = next(path.parent.glob("session.md.torn-*"))
        assert (run.status, len(notes), str(kept) in notes[0]) == (Status.DONE, 1, True)
        assert "Half of" in kept.read_text()


async def test_a_result_that_a_person_took_out_is_not_made_up_anew(runtime: RuntimeFixture):
    """The model has spoken since: an old call without a result is history, and gets no second answer at the end."""
    made: list[str] = []
    async with runtime.open(
        tool_call_reply(("act", "{}")), text_reply("Done."), tools=[comes_back(made, "once")]
    ) as process:
        run = await process.run("Act.")
    path = Path(run.transcript_path)
    text = path.read_text()
    start = text.index("<!-- result")
    path.write_text(text[:start] + text[text.index("<!-- agent", start) :])
    async with runtime.open(text_reply("Noted."), tools=[comes_back(made, "once")]) as process:
        session = await process.store.find(run.session_id)
        await process.run("And now?", session=session)
        assert [each for each in await process.entries(run) if isinstance(each, ToolResult)] == []


async def test_what_lay_too_long_is_lost_and_not_begun_again_unasked(runtime: RuntimeFixture):
    """Shows: P23."""
    async with runtime.open(text_reply("never"), hold=True) as process:
        run = await process.submit("Go.")
        await process.wait_for_event("run.state")
    async with runtime.open(text_reply("late"), limits=Limits(resume_window_seconds=0)) as process:
        (lost,) = await recovery.resume_available_runs([await process.reload(run)], process.context)
        assert (lost.status, lost.reason) == (Status.LOST, Reason.STALE)
        assert "resume_window_seconds" in lost.error
        assert process.provider.requests == []


async def test_messages_of_one_conversation_keep_their_order_through_a_death(runtime: RuntimeFixture):
    """The one that was cut off first, and is answered; then the others as they were sent.
    Shows: C044, L015.
    """
    async with runtime.open(text_reply("never whole"), hold=True) as process:
        first = await process.submit("One.")
        session = first.session_id
        await process.wait_for_event("text.delta")
        for task in ("Two.", "Three."):
            await process.submit(task, session=await process.store.find(session))
    async with runtime.open(text_reply("1"), text_reply("2"), text_reply("3")) as process:

        def oldest_first(tx: Transaction) -> list[Run]:
            return list(reversed(tx.find_runs()))

        def told(tx: Transaction) -> list[str]:
            return [event.kind for event in tx.find_events()]

        left = await process.context.ledger.read(oldest_first)
        await recovery.requeue_dead_runs(process.context, process.context.owners.is_alive)
        await resume_interrupted_runs(left, process.context)
        for run in left:
            await process.worker.wait(run.id)
        said = [entry.text for entry in await process.entries(first) if isinstance(entry, Message)]
        assert said == ["One.", "1", "Two.", "2", "Three.", "3"]
        kinds = await process.context.ledger.read(told)
        assert kinds.count("text.discarded") == 1
        assert "run.started" in kinds[kinds.index("text.discarded") :]
