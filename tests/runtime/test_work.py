"""The loop's rules: a request is built from the file, and nothing is asked before what came before is on disk."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.model_turn import Reply, ReplyDelta, Request, StopReason, UnsavedToolCall
from retinue.domain.run import Status
from retinue.domain.transcript import Message, ToolCall, ToolResult, unanswered_calls
from retinue.runtime.run_control import cancel_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_a_run_is_a_task_a_reply_and_an_end(world: RuntimeFixture):
    """Shows: A039, A060."""
    async with world.open(text_reply("Forty-two.")) as house:
        run = await house.run("What is the answer?")
        assert (run.status, run.text, run.turns, run.error) == (Status.DONE, "Forty-two.", 1, "")
        assert entry_texts(await house.entries(run)) == ["What is the answer?", "Forty-two."]
        assert house.crashes == []


async def test_the_task_is_on_disk_before_the_first_request(world: RuntimeFixture):
    """Shows: A039, A040."""
    seen: list[str] = []

    def look(_: Request) -> Reply:
        seen.extend(path.read_text() for path in world.folder.rglob("session.md"))
        return text_reply("Done.")

    async with world.open(look) as house:
        await house.run("Look at your own file.")
    assert len(seen) == 1
    assert "Look at your own file." in seen[0]


async def test_a_reply_and_its_calls_are_there_together_and_each_result_before_the_next_request(
    world: RuntimeFixture,
):
    """Shows: A049, A058."""
    (world.workspace / "a.txt").write_text("first file")
    (world.workspace / "b.txt").write_text("second file")
    wishes = tool_call_reply(
        ("read", '{"path": "a.txt"}'), ("read", '{"path": "b.txt"}'), text="Reading both."
    )
    async with world.open(wishes, text_reply("Read.")) as house:
        run = await house.run("Read a and b.")
        second = house.heard(1)
        assert [type(entry) for entry in second] == [
            Message,
            Message,
            ToolCall,
            ToolCall,
            ToolResult,
            ToolResult,
        ]
        assert unanswered_calls(second) == ()
        assert {entry.text for entry in second if isinstance(entry, ToolResult)} == {
            "first file",
            "second file",
        }
        assert (run.status, run.turns, run.tool_calls) == (Status.DONE, 2, 2)


async def test_the_request_is_what_the_file_says_and_not_what_was_remembered(world: RuntimeFixture):
    """Shows: A040, A062."""
    async with world.open(text_reply("One."), text_reply("Two.")) as house:
        first = await house.run("Ask one.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text().replace("Ask one.", "Ask something else."))
        session = await house.store.find(first.session_id)
        await house.run("Ask two.", session=session)
        assert entry_texts(house.heard(1)) == ["Ask something else.", "One.", "Ask two."]


async def test_calls_of_one_turn_run_side_by_side(world: RuntimeFixture):
    meet = asyncio.Barrier(2)

    @tool(effect="read")
    async def left() -> str:
        """Waits for the right one."""
        await meet.wait()
        return "left was there"

    @tool(effect="read")
    async def right() -> str:
        """Waits for the left one."""
        await meet.wait()
        return "right was there"

    both = tool_call_reply(("left", "{}"), ("right", "{}"))
    async with world.open(both, text_reply("They met."), tools=[left, right]) as house:
        run = await asyncio.wait_for(house.run("Let them meet."), 10)
        assert run.text == "They met."
        assert {result.text for result in await house.results(run)} == {"left was there", "right was there"}


async def test_a_reply_has_its_entrys_id_from_the_first_word_on(world: RuntimeFixture):
    """So that whoever reads the file and hears the stream at once knows that both are one; also of words cut off."""
    async with world.open(
        tool_call_reply(("ls", "{}"), text="Looking around."),
        text_reply("Seen and told."),
        text_reply("Never whole."),
    ) as house:
        first = await house.run("Look.")
        before = house.events.copy()
        house.events.clear()
        house.driver.hold_until = asyncio.Event()
        second = await house.ask("Look.", session=await house.store.find(first.session_id))
        await house.until("text.delta")
        await cancel_run(second.id, house.ports, is_alive=lambda _: True)
        await house.ended(second)
        told: dict[str, str] = {}
        for event in (*before, *house.events):
            if event.kind == "text.delta":
                told[event.data["entry"]] = told.get(event.data["entry"], "") + event.data["text"]
        said = [
            each for each in await house.entries(first) if isinstance(each, Message) and each.by == "agent"
        ]
        assert told == {each.id: each.text for each in said}
        assert len(said) == 3


async def test_an_edit_by_a_person_during_the_models_turn_is_the_conversation(world: RuntimeFixture):
    """Shows: P14."""
    async with world.open(
        tool_call_reply(("ls", "{}"), text="Looking around."), text_reply("Seen.")
    ) as house:
        house.driver.hold_until = asyncio.Event()
        run = await house.ask("Say the old word.")
        await house.until("text.delta")
        path = Path(run.transcript_path)
        path.write_text(path.read_text().replace("the old word", "the new word"))
        house.driver.hold_until.set()
        ended = await house.ended(run)
        assert (ended.status, ended.text) == (Status.DONE, "Seen.")
        assert entry_texts(house.heard(0)[:1])[0] == "Say the old word."
        assert entry_texts(house.heard(1)[:1])[0] == "Say the new word."
        assert "the new word" in path.read_text()


async def test_what_an_editor_dropped_of_a_running_turn_is_written_again(world: RuntimeFixture):
    """Shows: P14."""
    old: list[str] = []

    def open_in_an_editor(_: Request) -> Reply:
        old.append(path.read_text())
        return tool_call_reply(("ls", "{}"), text="Looking around.")

    def save_what_it_had(_: Request) -> Reply:
        path.write_text(old[0].replace("Look.", "Look well."))
        return text_reply("Seen.")

    async with world.open(open_in_an_editor, save_what_it_had) as house:
        session = await house.begin()
        path = Path(session.path) / "session.md"
        run = await house.run("Look.", session=session)
        entries = await house.entries(run)
        assert entry_texts(entries[:1])[0] == "Look well."
        assert await house.said(run) == ["Looking around.", "Seen."]
        assert unanswered_calls(entries) == ()


async def test_another_model_that_answered_is_the_one_on_record(world: RuntimeFixture):
    """Shows: M21."""
    async with world.open(Reply(text="Hello.", model="cheaper-one")) as house:
        run = await house.run("Hi.")
        assert run.model == "scripted:cheaper-one"
        said = (await house.entries(run))[-1]
        assert isinstance(said, Message)
        assert said.model == "cheaper-one"


async def test_secrets_leave_every_text_before_it_is_stored_or_asked(world: RuntimeFixture):
    secret = "sk-test-0123456789abcdef"

    @tool(effect="read")
    def leak() -> str:
        """Says what it should not."""
        return f"the key is {secret}"

    wish = tool_call_reply(
        ("leak", "{}"), ("grep", f'{{"pattern": "{secret}"}}'), (secret, "{}"), text=f"I use {secret}."
    )
    named = replace(wish, model=f"model-{secret}")
    async with world.open(named, text_reply(f"It is {secret}!"), tools=[leak], secrets=[secret]) as house:
        run = await house.run(f"Keep {secret} to yourself.")
        everything = "".join(
            path.read_text() for path in world.folder.rglob("*") if path.is_file() and path.suffix != ".py"
        )
        assert secret not in everything
        assert secret not in repr(house.driver.requests[1].entries)
        assert secret not in repr(run)
        assert secret not in repr(house.events)
        assert run.text == "It is [secret of 24 characters]!"


async def test_the_beginning_of_the_request_stays_the_same_between_turns(world: RuntimeFixture):
    look = tool_call_reply(("ls", "{}"))
    async with world.open(look, look, text_reply("Done.")) as house:
        await house.run("Look twice.")
        asked = [one.request for one in house.driver.requests]
        assert {one.system for one in asked} == {asked[0].system}
        assert all(one.tools == asked[0].tools for one in asked)
        for earlier, later in zip(house.driver.requests, house.driver.requests[1:], strict=False):
            assert later.entries[: len(earlier.entries)] == earlier.entries


async def test_a_cut_reply_says_so_in_the_file(world: RuntimeFixture):
    reply = Reply(text="Long", truncation_notice="the rest was left out", stop_reason=StopReason.LENGTH)
    async with world.open(reply) as house:
        run = await house.run("Write a book.")
        said = (await house.entries(run))[-1]
        assert isinstance(said, Message)
        assert (said.text, said.stop) == ("Long\n[the rest was left out]", "length")


async def test_a_call_that_was_cut_never_runs_and_the_model_is_told(world: RuntimeFixture):
    """Shows: M08, M09, M10."""
    made: list[str] = []

    @tool
    def act(what: str) -> str:
        """Acts."""
        made.append(what)
        return "acted"

    cut = Reply(
        text="",
        tool_calls=(
            UnsavedToolCall(tool="act", arguments='{"what": "ha', invalid_reason="its arguments were cut"),
        ),
        stop_reason=StopReason.LENGTH,
    )
    async with world.open(cut, text_reply("I stop here."), tools=[act]) as house:
        run = await house.run("Act.")
        assert made == []
        told = (await house.results(run))[0]
        assert not told.ok
        assert "did not run: its arguments were cut" in told.text
        assert run.status is Status.DONE


async def test_what_a_person_typed_is_taken_where_it_stands(world: RuntimeFixture):
    async with world.open(text_reply("One."), text_reply("Two.")) as house:
        first = await house.run("Begin.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text() + "Typed by hand.\n")
        session = await house.store.find(first.session_id)
        second = await house.run("Typed by hand.", session=session, typed=True)
        assert second.text == "Two."
        assert path.read_text().count("Typed by hand.") == 1
        assert entry_texts(house.heard(1)) == ["Begin.", "One.", "Typed by hand."]


class Halting:
    """A driver that stumbles, waits and thinks aloud before it answers."""

    async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
        on_delta(ReplyDelta(thinking="Hmm."))
        on_delta(ReplyDelta(text="A false "))
        on_delta(ReplyDelta(is_discarded=True))
        on_delta(ReplyDelta(wait_reason="rate limited, again in 3 s"))
        on_delta(ReplyDelta(text="The answer."))
        return text_reply("The answer.")

    async def close(self) -> None:
        return


async def test_what_is_heard_on_the_way_is_told_and_what_was_discarded_is_not_kept(world: RuntimeFixture):
    async with world.open(driver=Halting()) as house:
        run = await house.run("Answer.")
        assert await house.said(run) == ["The answer."]
        told = [(event.kind, event.data.get("note") or event.data.get("text")) for event in house.events]
        live = [each for each in told if each[0] != "run.state" or each[1]]
        assert live == [
            ("entry.saved", None),
            ("thinking.delta", "Hmm."),
            ("text.delta", "A false "),
            ("text.discarded", None),
            ("run.state", "rate limited, again in 3 s"),
            ("text.delta", "The answer."),
            ("entry.saved", None),
        ]


async def test_a_session_whose_folder_moved_is_found_by_its_id(world: RuntimeFixture):
    """Shows: L001."""
    async with world.open(text_reply("Here."), text_reply("Moved.")) as house:
        first = await house.run("Where?")
        top = Path(first.transcript_path).parents[2]
        session = await house.store.find(first.session_id)
        top.rename(top.with_name(f"{top.name}-renamed"))
        run = await house.run("And now?", session=session)
        assert (run.status, run.text) == (Status.DONE, "Moved.")


async def test_somebody_who_only_looks_into_the_folder_is_waited_for(world: RuntimeFixture):
    async with world.open(text_reply("Here.")) as house:
        session = await house.begin()
        async with house.store.open(session):
            run = await house.ask("Go.", session=session)
            while (await house.now(run)).status is Status.QUEUED:
                await house.engine.wait_for_change()
            await asyncio.sleep(0.1)
            assert (await house.now(run)).status is Status.RUNNING
        assert (await house.ended(run)).text == "Here."


async def test_a_run_may_think_longer_than_its_agent_does(world: RuntimeFixture):
    world.agent("thinker", front="thinking: low\n")
    async with world.open(text_reply("a"), text_reply("b")) as house:
        await house.run("Think.", agent="thinker")
        await house.run("Think hard.", agent="thinker", thinking="high")
        assert [asked.request.model.thinking for asked in house.driver.requests] == ["low", "high"]
