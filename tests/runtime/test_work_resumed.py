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


async def left_in_the_call(world: RuntimeFixture, effect: str) -> Any:
    """A run whose process died while a tool was at work."""
    begun = asyncio.Event()
    async with world.open(
        tool_call_reply(("act", "{}"), text="Acting."), tools=[waits_for_ever(begun, effect)]
    ) as house:
        run = await house.ask("Act.")
        await begun.wait()
    return run


async def test_a_run_whose_process_died_stays_in_the_ledger_and_in_its_file(world: RuntimeFixture):
    run = await left_in_the_call(world, "read")
    async with world.open() as house:
        left = await house.now(run)
        assert (left.status, left.turns, left.tool_calls) == (Status.RUNNING, 1, 1)
        entries = await house.entries(run)
        assert [called.tool for called in unanswered_calls(entries)] == ["act"]


async def test_a_call_that_only_reads_is_made_again_and_the_model_is_not_asked_again(world: RuntimeFixture):
    for effect in ("read", "idempotent"):
        run = await left_in_the_call(world, effect)
        made: list[str] = []
        async with world.open(text_reply("Finished."), tools=[comes_back(made, effect)]) as house:
            ended = await house.resume(run)
            assert (ended.status, ended.text) == (Status.DONE, "Finished.")
            assert (ended.turns, ended.tool_calls, ended.attempts) == (2, 1, 2)
            assert ended.usage.input == 20
            assert [result.text for result in await house.results(run)] == ["done now"]
            assert made == [unanswered_calls(house.heard(0)[:-1])[0].id]
            assert len(house.driver.requests) == 1


async def test_a_call_with_an_effect_is_never_made_twice_and_its_outcome_is_called_unknown(
    world: RuntimeFixture,
):
    run = await left_in_the_call(world, "once")
    made: list[str] = []
    async with world.open(text_reply("I checked."), tools=[comes_back(made, "once")]) as house:
        ended = await house.resume(run)
        assert (ended.status, made) == (Status.DONE, [])
        result = (await house.results(run))[0]
        assert not result.ok
        assert "Outcome unknown" in result.text


async def test_what_a_person_changes_while_a_run_is_taken_up_again_is_asked_with(world: RuntimeFixture):
    """Its task stands in the file already, so nothing is added that would look at it."""
    async with world.open(text_reply("Half of this is heard."), hold=True) as house:
        run = await house.ask("Act.")
        await house.until("text.delta")
    file, told = Path(run.transcript_path), ["Act."]

    def edited() -> None:
        if not house.driver.requests:
            told.append(f"Act {len(told)} times.")
            file.write_text(file.read_text().replace(told[-2], told[-1]))

    async with world.open(text_reply("Done."), ledger=Meanwhile(world.ledger, edited)) as house:
        assert (await house.resume(run)).text == "Done."
        assert entry_texts(house.heard(0)[:1])[0] == told[-1]


async def test_a_reply_half_heard_is_asked_for_again(world: RuntimeFixture):
    async with world.open(text_reply("Half of this is heard."), hold=True) as house:
        run = await house.ask("Talk.")
        await house.until("text.delta")
    async with world.open(text_reply("All of it.")) as house:
        ended = await house.resume(run)
        assert ended.text == "All of it."
        assert await house.said(run) == ["All of it."]


async def test_a_task_that_others_spoke_after_is_named_again_when_it_is_taken_up(world: RuntimeFixture):
    async with world.open(text_reply("Half of this is heard."), hold=True) as house:
        run = await house.ask("Paint the fence.")
        await house.until("text.delta")
    async with world.open(text_reply("Hello."), text_reply("Painted.")) as house:
        await house.run("Hi there.", session=await house.store.find(run.session_id))
        ended = await house.resume(run)
        assert (ended.status, ended.text) == (Status.DONE, "Painted.")
        asked = house.heard(1)
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


async def test_a_last_word_that_is_on_disk_is_the_end_and_is_not_asked_for_again(world: RuntimeFixture):
    fell = asyncio.Event()
    async with world.open(text_reply("The end."), ledger=Unwilling(world.ledger, fell)) as house:
        run = await house.ask("Finish.")
        await fell.wait()
    async with world.open(text_reply("never")) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.text, ended.turns) == (Status.DONE, "The end.", 1)
        assert house.driver.requests == []


async def test_counts_after_a_death_are_those_of_the_file(world: RuntimeFixture):
    begun = asyncio.Event()
    steps = [
        tool_call_reply(("ls", "{}"), ("ls", "{}"), text="One."),
        tool_call_reply(("act", "{}"), text="Two."),
    ]
    async with world.open(*steps, tools=[waits_for_ever(begun, "read")]) as house:
        run = await house.ask("Count.")
        await begun.wait()
    async with world.open(text_reply("Three."), tools=[comes_back([], "read")]) as house:
        ended = await house.resume(run)
        assert (ended.turns, ended.tool_calls, ended.usage.output) == (3, 3, 15)


async def test_an_edit_made_while_the_run_was_down_is_the_conversation(world: RuntimeFixture):
    """Shows: A040."""
    run = await left_in_the_call(world, "read")
    path = Path(run.transcript_path)
    path.write_text(path.read_text().replace("Act.", "Act gently."))
    async with world.open(text_reply("Gently done."), tools=[comes_back([], "read")]) as house:
        await house.resume(run)
        assert entry_texts(house.heard(0)[:1])[0] == "Act gently."


async def test_a_run_is_taken_up_three_times_at_most_and_then_counts_as_lost(world: RuntimeFixture):
    run = await left_in_the_call(world, "read")
    for _ in range(3):
        begun = asyncio.Event()
        async with world.open(tools=[waits_for_ever(begun, "read")]) as house:
            await recovery.resume_run(run.id, house.ports, previous_owner=(await house.now(run)).owner_id)
            await begun.wait()
    async with world.open(text_reply("never")) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.reason, ended.attempts) == (Status.LOST, Reason.RECOVERY_LIMIT, 4)
        assert house.driver.requests == []


async def test_of_two_processes_that_saw_the_owner_die_only_one_takes_the_run(world: RuntimeFixture):
    """Shows: P19."""
    run = await left_in_the_call(world, "read")
    refused: list[str] = []
    tools = [comes_back([], "read")]
    async with (
        world.open(text_reply("Mine."), tools=tools) as one,
        world.open(text_reply("Mine."), tools=tools) as two,
    ):
        dead = (await one.now(run)).owner_id
        await recovery.resume_run(run.id, one.ports, previous_owner=dead)
        try:
            await recovery.resume_run(run.id, two.ports, previous_owner=dead)
        except Refused as error:
            refused.append(str(error))
        assert (await one.ended(run)).text == "Mine."
        assert (len(refused), len(one.driver.requests), len(two.driver.requests)) == (1, 1, 0)


async def test_the_deadline_counts_from_the_first_start_and_survives_the_death(world: RuntimeFixture):
    begun = asyncio.Event()
    async with world.open(tool_call_reply(("act", "{}")), tools=[waits_for_ever(begun, "read")]) as house:
        run = await house.ask("Act.", deadline_seconds=3600)
        await begun.wait()
    an_hour_later = replace(system_clock(), now=lambda: datetime.now(UTC) + timedelta(hours=1))
    async with world.open(text_reply("never"), tools=[comes_back([], "read")], clock=an_hour_later) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.reason) == (Status.TIMED_OUT, Reason.DEADLINE)
        assert house.driver.requests == []


async def test_calls_of_a_run_that_is_gone_get_an_honest_answer_in_the_next_one(world: RuntimeFixture):
    """Shows: P18."""
    run = await left_in_the_call(world, "read")
    world.ledger = type(world.ledger)()
    made: list[str] = []
    async with world.open(text_reply("I see."), tools=[comes_back(made, "read")]) as house:
        session = await house.store.find(run.session_id)
        ended = await house.run("What happened?", session=session)
        assert (ended.status, made) == (Status.DONE, [])
        entries = house.heard(0)
        assert unanswered_calls(entries) == ()
        assert "Nothing is known of its outcome" in (await house.results(run))[0].text


async def test_the_last_turn_stays_the_last_when_the_process_dies_on_it(world: RuntimeFixture):
    """The reply that used up the turns is on disk, and its calls were never to be made."""
    world.agent("brief", "max_turns: 1\n")
    made: list[str] = []
    died = asyncio.Event()

    def dies(event: Event) -> None:
        if event.kind == "entry.saved" and event.data["of"] == "agent":
            died.set()
            raise asyncio.CancelledError

    async with world.open(
        tool_call_reply(("act", "{}"), text="Acting."), tools=[comes_back(made, "read")], emit=dies
    ) as house:
        run = await house.ask("Act.", agent="brief")
        await died.wait()
    async with world.open(text_reply("One more."), tools=[comes_back(made, "read")]) as house:
        ended = await house.resume(run)
        assert (ended.status, ended.reason, ended.turns) == (Status.FAILED, Reason.TURN_LIMIT, 1)
        assert (made, house.driver.requests) == ([], [])
        assert unanswered_calls(await house.entries(run)) == ()


async def test_a_run_is_left_for_the_next_process_though_the_ledger_cannot_be_written_to(
    world: RuntimeFixture,
):
    begun = asyncio.Event()
    ledger = Stubborn(world.ledger)
    async with world.open(
        tool_call_reply(("act", "{}")), tools=[waits_for_ever(begun, "read")], ledger=ledger
    ) as house:
        run = await house.ask("Act.")
        await begun.wait()
        ledger.refusals = 1
    assert ledger.refusals == 0
    async with world.open(text_reply("Finished."), tools=[comes_back([], "read")]) as house:
        assert (await house.now(run)).status is Status.RUNNING
        assert (await house.resume(run)).status is Status.DONE


async def test_a_torn_tail_is_told_when_the_session_is_opened_again(world: RuntimeFixture):
    async with world.open(text_reply("One."), text_reply("Two.")) as house:
        first = await house.run("Ask one.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text() + "\n<!-- agent id=01TORN n=500 -->\nHalf of")
        run = await house.run("Ask two.", session=await house.store.find(first.session_id))
        notes = [event.data["note"] for event in house.events if "note" in event.data]
        kept = next(path.parent.glob("session.md.torn-*"))
        assert (run.status, len(notes), str(kept) in notes[0]) == (Status.DONE, 1, True)
        assert "Half of" in kept.read_text()


async def test_a_result_that_a_person_took_out_is_not_made_up_anew(world: RuntimeFixture):
    """The model has spoken since: an old call without a result is history, and gets no second answer at the end."""
    made: list[str] = []
    async with world.open(
        tool_call_reply(("act", "{}")), text_reply("Done."), tools=[comes_back(made, "once")]
    ) as house:
        run = await house.run("Act.")
    path = Path(run.transcript_path)
    text = path.read_text()
    start = text.index("<!-- result")
    path.write_text(text[:start] + text[text.index("<!-- agent", start) :])
    async with world.open(text_reply("Noted."), tools=[comes_back(made, "once")]) as house:
        session = await house.store.find(run.session_id)
        await house.run("And now?", session=session)
        assert [each for each in await house.entries(run) if isinstance(each, ToolResult)] == []


async def test_what_lay_too_long_is_lost_and_not_begun_again_unasked(world: RuntimeFixture):
    """Shows: P23."""
    async with world.open(text_reply("never"), hold=True) as house:
        run = await house.ask("Go.")
        await house.until("run.state")
    async with world.open(text_reply("late"), limits=Limits(resume_window_seconds=0)) as house:
        (lost,) = await recovery.resume_available_runs([await house.now(run)], house.ports)
        assert (lost.status, lost.reason) == (Status.LOST, Reason.STALE)
        assert "resume_window_seconds" in lost.error
        assert house.driver.requests == []


async def test_messages_of_one_conversation_keep_their_order_through_a_death(world: RuntimeFixture):
    """The one that was cut off first, and is answered; then the others as they were sent.
    Shows: C044, L015.
    """
    async with world.open(text_reply("never whole"), hold=True) as house:
        first = await house.ask("One.")
        session = first.session_id
        await house.until("text.delta")
        for task in ("Two.", "Three."):
            await house.ask(task, session=await house.store.find(session))
    async with world.open(text_reply("1"), text_reply("2"), text_reply("3")) as house:

        def oldest_first(tx: Transaction) -> list[Run]:
            return list(reversed(tx.find_runs()))

        def told(tx: Transaction) -> list[str]:
            return [event.kind for event in tx.find_events()]

        left = await house.ports.ledger.read(oldest_first)
        await recovery.requeue_dead_runs(house.ports, house.ports.owners.is_alive)
        await resume_interrupted_runs(left, house.ports)
        for run in left:
            await house.engine.wait(run.id)
        said = [entry.text for entry in await house.entries(first) if isinstance(entry, Message)]
        assert said == ["One.", "1", "Two.", "2", "Three.", "3"]
        kinds = await house.ports.ledger.read(told)
        assert kinds.count("text.discarded") == 1
        assert "run.started" in kinds[kinds.index("text.discarded") :]
