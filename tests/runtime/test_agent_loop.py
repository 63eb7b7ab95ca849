"""The agent loop: requests are built from the file, and everything is on disk before the next request."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from runtime_fixture import RuntimeFixture
from transcript_entries import entry_texts

from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta, StopReason, UnsavedToolCall
from retinue.domain.run import Status
from retinue.domain.transcript import Message, ToolCall, ToolResult, unanswered_calls
from retinue.runtime.run_control import cancel_run
from retinue.testing.scripted_provider import text_reply, tool_call_reply
from retinue.tools.define import tool


async def test_a_run_saves_its_task_and_reply_and_ends_as_done(runtime: RuntimeFixture):
    """Shows: A039, A060."""
    async with runtime.open(text_reply("Forty-two.")) as process:
        run = await process.run("What is the answer?")
        assert (run.status, run.text, run.turns, run.error) == (Status.DONE, "Forty-two.", 1, "")
        assert entry_texts(await process.entries(run)) == ["What is the answer?", "Forty-two."]
        assert process.crashes == []


async def test_the_task_is_on_disk_before_the_first_request(runtime: RuntimeFixture):
    """Shows: A039, A040."""
    files: list[str] = []

    def read_files_and_reply(_: ModelRequest) -> ModelReply:
        files.extend(path.read_text() for path in runtime.folder.rglob("session.md"))
        return text_reply("Done.")

    async with runtime.open(read_files_and_reply) as process:
        await process.run("Look at your own file.")
    assert len(files) == 1
    assert "Look at your own file." in files[0]


async def test_the_reply_its_tool_calls_and_all_results_are_sent_with_the_next_request(
    runtime: RuntimeFixture,
):
    """Shows: A049, A058."""
    (runtime.workspace / "a.txt").write_text("first file")
    (runtime.workspace / "b.txt").write_text("second file")
    reply = tool_call_reply(
        ("read", '{"path": "a.txt"}'), ("read", '{"path": "b.txt"}'), text="Reading both."
    )
    async with runtime.open(reply, text_reply("Read.")) as process:
        run = await process.run("Read a and b.")
        second = process.request_entries(1)
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


async def test_each_request_is_built_from_the_current_content_of_the_file(runtime: RuntimeFixture):
    """Shows: A040, A062."""
    async with runtime.open(text_reply("One."), text_reply("Two.")) as process:
        first = await process.run("Ask one.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text().replace("Ask one.", "Ask something else."))
        session = await process.store.find(first.session_id)
        await process.run("Ask two.", session=session)
        assert entry_texts(process.request_entries(1)) == ["Ask something else.", "One.", "Ask two."]


async def test_read_calls_of_one_turn_run_concurrently(runtime: RuntimeFixture):
    barrier = asyncio.Barrier(2)

    @tool(effect="read")
    async def first() -> str:
        """Wait for the second tool."""
        await barrier.wait()
        return "first tool ran"

    @tool(effect="read")
    async def second() -> str:
        """Wait for the first tool."""
        await barrier.wait()
        return "second tool ran"

    reply = tool_call_reply(("first", "{}"), ("second", "{}"))
    async with runtime.open(reply, text_reply("They met."), tools=[first, second]) as process:
        run = await asyncio.wait_for(process.run("Let them meet."), 10)
        assert run.text == "They met."
        assert {result.text for result in await process.tool_results(run)} == {
            "first tool ran",
            "second tool ran",
        }


async def test_streamed_text_carries_the_id_of_the_entry_that_is_saved_later(runtime: RuntimeFixture):
    """A client can match the streamed text with the file, even if the reply was cut off."""
    async with runtime.open(
        tool_call_reply(("ls", "{}"), text="Looking around."),
        text_reply("Seen and told."),
        text_reply("Never whole."),
    ) as process:
        first = await process.run("Look.")
        before = process.events.copy()
        process.events.clear()
        process.provider.hold_until = asyncio.Event()
        second = await process.submit("Look.", session=await process.store.find(first.session_id))
        await process.wait_for_event("text.delta")
        await cancel_run(second.id, process.context, is_alive=lambda _: True)
        await process.wait(second)
        streamed: dict[str, str] = {}
        for event in (*before, *process.events):
            if event.kind == "text.delta":
                streamed[event.data["entry"]] = streamed.get(event.data["entry"], "") + event.data["text"]
        replies = [
            each
            for each in await process.entries(first)
            if isinstance(each, Message) and each.role == "agent"
        ]
        assert streamed == {each.id: each.text for each in replies}
        assert len(replies) == 3


async def test_an_edit_of_the_file_during_a_turn_is_in_the_next_request(runtime: RuntimeFixture):
    """Shows: P14."""
    async with runtime.open(
        tool_call_reply(("ls", "{}"), text="Looking around."), text_reply("Seen.")
    ) as process:
        process.provider.hold_until = asyncio.Event()
        run = await process.submit("Say the old word.")
        await process.wait_for_event("text.delta")
        path = Path(run.transcript_path)
        path.write_text(path.read_text().replace("the old word", "the new word"))
        process.provider.hold_until.set()
        ended = await process.wait(run)
        assert (ended.status, ended.text) == (Status.DONE, "Seen.")
        assert entry_texts(process.request_entries(0)[:1])[0] == "Say the old word."
        assert entry_texts(process.request_entries(1)[:1])[0] == "Say the new word."
        assert "the new word" in path.read_text()


async def test_entries_that_an_editor_overwrote_during_a_run_are_written_again(runtime: RuntimeFixture):
    """Shows: P14."""
    opened_text = ""

    def open_in_an_editor(_: ModelRequest) -> ModelReply:
        nonlocal opened_text
        opened_text = path.read_text()
        return tool_call_reply(("ls", "{}"), text="Looking around.")

    def save_in_the_editor(_: ModelRequest) -> ModelReply:
        path.write_text(opened_text.replace("Look.", "Look well."))
        return text_reply("Seen.")

    async with runtime.open(open_in_an_editor, save_in_the_editor) as process:
        session = await process.create_session()
        path = Path(session.path) / "session.md"
        run = await process.run("Look.", session=session)
        entries = await process.entries(run)
        assert entry_texts(entries[:1])[0] == "Look well."
        assert await process.agent_texts(run) == ["Looking around.", "Seen."]
        assert unanswered_calls(entries) == ()


async def test_the_model_that_actually_answered_is_recorded(runtime: RuntimeFixture):
    """Shows: M21."""
    async with runtime.open(ModelReply(text="Hello.", model="cheaper-one")) as process:
        run = await process.run("Hi.")
        assert run.model == "scripted:cheaper-one"
        reply = (await process.entries(run))[-1]
        assert isinstance(reply, Message)
        assert reply.model == "cheaper-one"


async def test_secrets_are_redacted_before_a_text_is_stored_or_sent(runtime: RuntimeFixture):
    secret = "sk-test-0123456789abcdef"

    @tool(effect="read")
    def leak() -> str:
        """Return a secret."""
        return f"the key is {secret}"

    reply = tool_call_reply(
        ("leak", "{}"), ("grep", f'{{"pattern": "{secret}"}}'), (secret, "{}"), text=f"I use {secret}."
    )
    reply_with_model = replace(reply, model=f"model-{secret}")
    async with runtime.open(
        reply_with_model, text_reply(f"It is {secret}!"), tools=[leak], secrets=[secret]
    ) as process:
        run = await process.run(f"Keep {secret} to yourself.")
        all_files = "".join(
            path.read_text() for path in runtime.folder.rglob("*") if path.is_file() and path.suffix != ".py"
        )
        assert secret not in all_files
        assert secret not in repr(process.provider.requests[1].entries)
        assert secret not in repr(run)
        assert secret not in repr(process.events)
        assert run.text == "It is [secret of 24 characters]!"


async def test_later_requests_of_a_run_begin_like_earlier_ones(runtime: RuntimeFixture):
    reply = tool_call_reply(("ls", "{}"))
    async with runtime.open(reply, reply, text_reply("Done.")) as process:
        await process.run("Look twice.")
        requests = [recorded.request for recorded in process.provider.requests]
        assert {request.system for request in requests} == {requests[0].system}
        assert all(request.tools == requests[0].tools for request in requests)
        for earlier, later in zip(process.provider.requests, process.provider.requests[1:], strict=False):
            assert later.entries[: len(earlier.entries)] == earlier.entries


async def test_a_truncated_reply_is_marked_as_truncated_in_the_file(runtime: RuntimeFixture):
    reply = ModelReply(text="Long", truncation_notice="the rest was left out", stop_reason=StopReason.LENGTH)
    async with runtime.open(reply, text_reply("The end.")) as process:
        run = await process.run("Write a book.")
        message = (await process.entries(run))[1]
        assert isinstance(message, Message)
        assert (message.text, message.stop_reason) == ("Long\n[the rest was left out]", "length")


async def test_a_truncated_tool_call_is_not_executed_and_gets_an_error_result(runtime: RuntimeFixture):
    """Shows: M08, M09, M10."""
    executed: list[str] = []

    @tool
    def act(what: str) -> str:
        """Acts."""
        executed.append(what)
        return "acted"

    truncated = ModelReply(
        text="",
        tool_calls=(
            UnsavedToolCall(tool="act", arguments='{"what": "ha', invalid_reason="its arguments were cut"),
        ),
        stop_reason=StopReason.LENGTH,
    )
    async with runtime.open(truncated, text_reply("I stop here."), tools=[act]) as process:
        run = await process.run("Act.")
        assert executed == []
        result = (await process.tool_results(run))[0]
        assert not result.ok
        assert "did not run: its arguments were cut" in result.text
        assert run.status is Status.DONE


async def test_a_task_typed_into_the_file_is_not_appended_again(runtime: RuntimeFixture):
    async with runtime.open(text_reply("One."), text_reply("Two.")) as process:
        first = await process.run("Begin.")
        path = Path(first.transcript_path)
        path.write_text(path.read_text() + "Typed by hand.\n")
        session = await process.store.find(first.session_id)
        second = await process.run("Typed by hand.", session=session, is_typed=True)
        assert second.text == "Two."
        assert path.read_text().count("Typed by hand.") == 1
        assert entry_texts(process.request_entries(1)) == ["Begin.", "One.", "Typed by hand."]


class RetryingProvider:
    """A provider that streams thinking, discards a failed attempt and waits before it answers."""

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        on_delta(ReplyDelta(thinking="Hmm."))
        on_delta(ReplyDelta(text="A false "))
        on_delta(ReplyDelta(is_discarded=True))
        on_delta(ReplyDelta(wait_reason="rate limited, again in 3 s"))
        on_delta(ReplyDelta(text="The answer."))
        return text_reply("The answer.")

    async def close(self) -> None:
        return


async def test_streamed_text_of_a_failed_attempt_is_reported_as_discarded_and_not_saved(
    runtime: RuntimeFixture,
):
    async with runtime.open(provider=RetryingProvider()) as process:
        run = await process.run("Answer.")
        assert await process.agent_texts(run) == ["The answer."]
        events = [(event.kind, event.data.get("note") or event.data.get("text")) for event in process.events]
        assert [each for each in events if each[0] != "run.state" or each[1]] == [
            ("entry.saved", None),
            ("thinking.delta", "Hmm."),
            ("text.delta", "A false "),
            ("text.discarded", None),
            ("run.state", "rate limited, again in 3 s"),
            ("text.delta", "The answer."),
            ("entry.saved", None),
        ]


async def test_a_session_whose_folder_moved_is_found_by_its_id(runtime: RuntimeFixture):
    """Shows: L001."""
    async with runtime.open(text_reply("Here."), text_reply("Moved.")) as process:
        first = await process.run("Where?")
        top = Path(first.transcript_path).parents[2]
        session = await process.store.find(first.session_id)
        top.rename(top.with_name(f"{top.name}-renamed"))
        run = await process.run("And now?", session=session)
        assert (run.status, run.text) == (Status.DONE, "Moved.")


async def test_a_run_waits_while_its_session_is_open_elsewhere_in_the_process(runtime: RuntimeFixture):
    async with runtime.open(text_reply("Here.")) as process:
        session = await process.create_session()
        async with process.store.open(session):
            run = await process.submit("Go.", session=session)
            while (await process.reload(run)).status is Status.QUEUED:
                await process.worker.wait_for_change()
            await asyncio.sleep(0.1)
            assert (await process.reload(run)).status is Status.RUNNING
        assert (await process.wait(run)).text == "Here."


async def test_a_runs_thinking_level_overrides_that_of_its_agent(runtime: RuntimeFixture):
    runtime.write_agent("thinker", front="thinking: low\n")
    async with runtime.open(text_reply("a"), text_reply("b")) as process:
        await process.run("Think.", agent="thinker")
        await process.run("Think hard.", agent="thinker", thinking="high")
        assert [recorded.request.model.thinking for recorded in process.provider.requests] == ["low", "high"]
