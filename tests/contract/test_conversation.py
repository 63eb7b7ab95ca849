"""An open conversation: acknowledged entries stay, and edits of the file by the user take effect."""

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import DiskError, Failed, SessionLocked, Unreadable
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

LONG_PROMPT = Message(id="u0", role="user", text="Find it. " * 5_000)
PROMPT = Message(id="u1", role="user", text="Find it.", at="2026-11-15T18:42:07Z", run="r1")
REPLY = Message(id="a1", role="agent", text="I look.", tool_call_count=1, run="r1")
CALL = ToolCall(id="c1", tool="grep", args='{"pattern": "cron"}', run="r1")
RESULT = ToolResult(call_id="c1", text="src/cron.py:1", duration_ms=12, run="r1")
ANSWER = Message(id="a2", role="agent", text="It is there.", run="r1")


def session_file(session: Session) -> Path:
    return Path(session.path) / "session.md"


def entry_texts(entries: list[Entry]) -> list[str]:
    return [each.args if isinstance(each, ToolCall) else each.text for each in entries]


def save_by_rename(path: Path, text: str) -> None:
    """Save like most editors: write a new file and rename it over the old one."""
    other = path.with_name("4913~")
    other.write_text(text)
    other.replace(path)


async def test_an_appended_prompt_is_in_the_file_at_once_below_the_head(store: FileStore, session: Session):
    """Shows: A030, A039."""
    assert session_file(session).stat().st_size == 0
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        text = session_file(session).read_text()
    assert text.startswith(
        f"<!-- retinue 1 session={session.slug} id={session.id} branch=main -->\n\n<!-- user id=u1"
    )
    assert text.endswith("\nFind it.\n\n")


async def test_messages_calls_and_results_are_in_the_file_in_order(store: FileStore, session: Session):
    """Shows: A049, A058, A060."""
    async with store.open(session) as conversation:
        for step in ((PROMPT,), (REPLY, CALL), (RESULT,), (ANSWER,)):
            await conversation.append(*step)
            assert (await store.read_entries(session))[0] == conversation.entries
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT, REPLY, CALL, RESULT, ANSWER]
        assert conversation.typed_text() == ""
        assert conversation.torn_tail_path is None


async def test_an_entry_that_is_already_in_the_file_is_not_added_again(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, REPLY, CALL)
        before = session_file(session).read_bytes()
        await conversation.append(PROMPT)
        await conversation.append(CALL, REPLY)
        assert session_file(session).read_bytes() == before
        await conversation.append(RESULT)
        await conversation.append(RESULT)
    async with store.open(session) as conversation:
        await conversation.append(RESULT)
        assert conversation.entries == [PROMPT, REPLY, CALL, RESULT]


async def test_each_of_many_concurrent_appends_returns_when_its_entry_is_in_the_file(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:

        async def add(number: int) -> bool:
            await conversation.append(Message(id=f"u{number}", role="user", text=f"word {number}"))
            return f"word {number}\n" in session_file(session).read_text()

        assert all(await asyncio.gather(*(add(number) for number in range(40))))
        assert [each.id for each in conversation.entries] == [f"u{number}" for number in range(40)]


async def test_each_of_many_concurrent_appends_fails_if_the_file_cannot_be_written(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        session_file(session).unlink()
        session_file(session).mkdir()
        adding = (
            conversation.append(Message(id=f"w{number}", role="user", text="word")) for number in range(20)
        )
        results = await asyncio.gather(*adding, return_exceptions=True)
        assert all(isinstance(each, Failed | DiskError) for each in results)
        assert conversation.entries == [PROMPT]


async def test_a_cancelled_append_among_others_does_not_cancel_the_others(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        tasks = [
            asyncio.ensure_future(conversation.append(Message(id=f"u{number}", role="user", text="word")))
            for number in range(10)
        ]
        await asyncio.sleep(0)
        tasks[5].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in results if each is not None] == [asyncio.CancelledError]
        assert session_file(session).read_text().count("word") == 10


async def test_many_tasks_can_append_to_one_conversation_concurrently(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        notices = [Notice(id=f"n{count}", topic="x", text=f"{count}") for count in range(40)]
        await asyncio.gather(*(conversation.append(each) for each in notices))
        assert sorted(conversation.entries, key=lambda each: each.id) == sorted(
            notices, key=lambda each: each.id
        )
    entries, problems = await store.read_entries(session)
    assert len(entries) == 40
    assert problems == []


async def test_an_idle_conversation_ends_with_one_idle_prompt_which_the_next_entry_replaces(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.write_idle_prompt()
        assert session_file(session).stat().st_size == 0
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
        await conversation.write_idle_prompt()
        assert session_file(session).read_text().count("<!-- user") == 2
        await conversation.append(ANSWER)
        assert session_file(session).read_text().count("<!-- user") == 1
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        await conversation.append(Notice(id="n", topic="x", text="news"))
        await conversation.write_idle_prompt()
    assert session_file(session).read_text().count("<!-- user") == 2
    assert entry_texts((await store.read_entries(session))[0]) == ["Find it.", "It is there.", "news"]


async def test_text_typed_below_the_idle_prompt_becomes_the_next_entry_and_is_written_once(
    store: FileStore, session: Session
):
    """Shows: A061, A040."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, ANSWER)
        await conversation.write_idle_prompt()
    with session_file(session).open("a") as file:
        file.write("And the tests?\n")
    typed = session_file(session).read_bytes()
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT, ANSWER]
        assert conversation.typed_text() == "And the tests?"
        await conversation.save_typed_text(
            Message(id="new", role="user", text="as it was when asked", run="r2")
        )
        assert conversation.typed_text() == ""
        prompt = conversation.entries[-1]
        assert entry_texts([prompt]) == ["And the tests?"]
        assert session_file(session).read_bytes() == typed
        assert f"<!-- user id={prompt.id} -->" in typed.decode()
        await conversation.append(Message(id="a3", role="agent", text="None."))
        assert session_file(session).read_bytes().startswith(typed)
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        assert entry_texts(conversation.entries) == ["Find it.", "It is there.", "And the tests?", "None."]
        assert conversation.entries[2].id == prompt.id


async def test_saving_typed_text_without_any_adds_the_entry(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.save_typed_text(PROMPT)
        assert conversation.entries == [PROMPT]
    assert (await store.read_entries(session))[0] == [PROMPT]


async def test_text_typed_into_the_empty_file_of_a_new_session_becomes_the_first_entry(
    store: FileStore, session: Session
):
    session_file(session).write_text("Just do it.\n")
    async with store.open(session) as conversation:
        assert conversation.typed_text() == "Just do it."
        await conversation.save_typed_text(Message(id="x", role="user", text="Just do it."))
        await conversation.append(ANSWER)
    async with store.open(session) as conversation:
        assert entry_texts(conversation.entries) == ["Just do it.", "It is there."]


async def test_a_typed_prompt_without_a_reply_stays_an_entry_after_the_run(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
    with session_file(session).open("a") as file:
        file.write("More")
    async with store.open(session) as conversation:
        await conversation.save_typed_text(Message(id="x", role="user", text=conversation.typed_text()))
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        assert entry_texts(conversation.entries) == ["Find it.", "More"]
        assert conversation.typed_text() == ""


async def test_text_typed_during_a_run_is_kept(store: FileStore, session: Session):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
        with session_file(session).open("a") as file:
            file.write("Wait, also the docs")
        await conversation.append(ANSWER)
        assert entry_texts(conversation.entries) == ["Find it.", "Wait, also the docs", "It is there."]
    async with store.open(session) as conversation:
        assert entry_texts(conversation.entries) == ["Find it.", "Wait, also the docs", "It is there."]


async def test_an_edit_in_place_during_a_run_changes_the_conversation(store: FileStore, session: Session):
    """Shows: P14, A040."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        conversation.provider_cache["encoded"] = 1
        assert await conversation.reload_if_edited() is False
        assert conversation.provider_cache == {"encoded": 1}
        session_file(session).write_text(
            session_file(session).read_text().replace("Find it.", "Find them all.")
        )
        assert await conversation.reload_if_edited() is True
        assert conversation.provider_cache == {}
        assert entry_texts(conversation.entries) == ["Find them all."]
        await conversation.append(ANSWER)
    assert entry_texts((await store.read_entries(session))[0]) == ["Find them all.", "It is there."]


async def test_the_next_append_sees_an_edit_that_was_saved_by_rename(store: FileStore, session: Session):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        save_by_rename(
            session_file(session), session_file(session).read_text().replace("Find it.", "Find them all.")
        )
        await conversation.append(ANSWER)
        assert entry_texts(conversation.entries) == ["Find them all.", "It is there."]
    assert entry_texts((await store.read_entries(session))[0]) == ["Find them all.", "It is there."]


async def test_entries_of_the_run_that_a_stale_save_dropped_are_written_again(
    store: FileStore, session: Session
):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        stale = session_file(session).read_text()
        await conversation.append(REPLY, CALL)
        await conversation.append(RESULT)
        save_by_rename(session_file(session), stale + "<!-- a note of mine -->\n")
        await conversation.append(ANSWER)
        assert [each.id for each in conversation.entries] == ["u1", "a1", "c1", "c1", "a2"]
    assert "<!-- a note of mine -->" in session_file(session).read_text()
    assert [each.id for each in (await store.read_entries(session))[0]] == ["u1", "a1", "c1", "c1", "a2"]


async def test_a_refresh_restores_an_entry_that_a_stale_save_dropped(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        stale = session_file(session).read_text()
        await conversation.append(ANSWER)
        session_file(session).write_text(stale)
        await conversation.reload_if_edited()
        assert conversation.entries == [PROMPT, ANSWER]
    assert (await store.read_entries(session))[0] == [PROMPT, ANSWER]


async def test_entries_that_the_user_deletes_while_the_conversation_is_idle_stay_deleted(
    store: FileStore, session: Session
):
    """Shows: A062."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        first = session_file(session).read_text()
        await conversation.append(ANSWER)
        await conversation.write_idle_prompt()
        session_file(session).write_text(first)
        assert await conversation.reload_if_edited() is True
        assert conversation.entries == [PROMPT]
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT]


async def test_an_editor_that_strips_trailing_blank_lines_changes_no_entry(
    store: FileStore, session: Session
):
    message = Message(id="a9", role="agent", text="ends with a newline\n")
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, message)
        for stripped in (b"\n", b"\n\n", b""):
            session_file(session).write_bytes(
                session_file(session).read_bytes().rstrip(b"\n") + b"\n" + stripped
            )
            await conversation.append(Notice(id=f"n{len(stripped)}", topic="x", text="on"))
    entries, problems = await store.read_entries(session)
    assert [each.id for each in entries] == ["u1", "a9", "n1", "n2", "n0"]
    assert problems == []


async def test_a_broken_marker_is_an_error_with_its_line_and_the_file_stays_unchanged(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, ANSWER)
    broken = session_file(session).read_text().replace("<!-- agent id", "<!-- agent my id")
    session_file(session).write_text(broken)
    with pytest.raises(Unreadable, match=r"session\.md:6: "):
        async with store.open(session):
            pass
    assert session_file(session).read_text() == broken
    entries, problems = await store.read_entries(session)
    assert entries == [PROMPT]
    assert "session.md:6" in problems[0]


async def test_a_torn_tail_is_moved_to_its_own_file_and_no_acknowledged_entry_is_lost(
    store: FileStore, session: Session
):
    """Shows: P03."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        good = session_file(session).read_bytes()
        await conversation.append(REPLY, CALL)
        whole = session_file(session).read_bytes()
    for number, cut in enumerate(range(len(good) + 1, len(whole), 7)):
        session_file(session).write_bytes(whole[:cut])
        entries, problems = await store.read_entries(session)
        assert entries == [PROMPT]
        assert "torn tail" in problems[0]
        assert session_file(session).read_bytes() == whole[:cut]
        async with store.open(session) as conversation:
            assert conversation.entries == [PROMPT]
            assert conversation.torn_tail_path is not None
            assert Path(conversation.torn_tail_path).read_bytes() == whole[len(good) : cut]
        assert session_file(session).read_bytes() == good
        assert len(list(session_file(session).parent.glob("session.md.torn-*"))) == number + 1


async def test_a_conversation_continues_after_a_torn_tail(store: FileStore, session: Session):
    """Shows: P03."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
    with session_file(session).open("ab") as file:
        file.write(b"<!-- agent id=a2 n=12")
    async with store.open(session) as conversation:
        assert conversation.torn_tail_path is not None
        await conversation.append(ANSWER)
    assert (await store.read_entries(session)) == ([PROMPT, ANSWER], [])


async def test_thinking_blocks_are_stored_in_a_sidecar_file_and_read_back_unchanged(
    store: FileStore, session: Session
):
    blocks = ('{"type":"thinking","signature":"é\\u2028"}', "\ud800")
    thinking = Message(id="a1", role="agent", text="Done.", provider_data=blocks)
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, thinking)
    assert "thinking" not in session_file(session).read_text()
    assert "thoughts=1" in session_file(session).read_text()
    with (Path(session.path) / "thoughts.jsonl").open("a") as file:
        file.write('{"id": "half')
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT, thinking]
        await conversation.append(Message(id="a2", role="agent", text="More.", provider_data=("[]",)))
    async with store.open(session) as conversation:
        assert [each.provider_data for each in conversation.entries if isinstance(each, Message)] == [
            (),
            blocks,
            ("[]",),
        ]
        (Path(session.path) / "thoughts.jsonl").unlink()
    async with store.open(session) as conversation:
        assert entry_texts(conversation.entries) == ["Find it.", "Done.", "More."]


async def test_the_tool_log_escapes_headings_and_block_ends(store: FileStore, session: Session):
    """Shows: A018."""
    tricky_result = ToolResult(
        call_id="c2", text="* a heading\n#+end_example\n  ,* more\n\ud800", ok=False, duration_ms=3
    )
    async with store.open(session) as conversation:
        await conversation.log_tool_call(CALL, RESULT)
        await conversation.log_tool_call(ToolCall(id="c2", tool="read", args="{}"), tricky_result)
    lines = (Path(session.path) / "tools.org").read_text().splitlines()
    assert [line for line in lines if line.startswith("*")] == ["* grep c1", "* read c2"]
    assert [line for line in lines if line.startswith(":OUTCOME:")] == [":OUTCOME: ok", ":OUTCOME: failed"]
    assert lines.count("#+end_example") == 2
    assert '{"pattern": "cron"}' in lines
    assert {",* a heading", ",#+end_example", "  ,,* more", "\\ud800"} <= set(lines)


async def test_opening_an_open_session_fails_and_names_the_process_that_has_it(
    store: FileStore, session: Session
):
    """Shows: P19."""
    async with store.open(session):
        with pytest.raises(
            SessionLocked, match=rf"open in PID {os.getpid()} on host .+ since .+\. End that process, or wait"
        ):
            async with store.open(session):
                pass
    async with store.open(session) as conversation:
        assert conversation.entries == []


async def test_a_stale_lock_text_does_not_block_opening_the_session(store: FileStore, session: Session):
    """Shows: P20."""
    (Path(session.path) / ".lock").write_text("PID 1 on host elsewhere since 1999\nboot x\n")
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)


async def test_a_closed_conversation_refuses_to_write(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
    with pytest.raises(Failed, match="not open any more"):
        await conversation.append(ANSWER)
    assert await conversation.reload_if_edited() is False


async def test_a_cancelled_opening_releases_the_lock(store: FileStore, session: Session):
    """While another conversation is open, a long file is read in a thread, and the opening task can be
    cancelled before that thread ends."""
    other = await store.create(new_session("other"))
    async with store.open(session) as conversation:
        await conversation.append(LONG_PROMPT)
    async with store.open(other):
        opening = asyncio.create_task(store.open(session).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    for _ in range(200):
        try:
            async with store.open(session) as conversation:
                assert conversation.entries == [LONG_PROMPT]
                return
        except SessionLocked:
            await asyncio.sleep(0.01)
    pytest.fail("the lock was never given back")


async def test_a_session_folder_moved_while_open_is_still_written_to(
    store: FileStore, session: Session, tmp_path: Path
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        Path(session.path).rename(tmp_path / "elsewhere")
        await conversation.append(ANSWER)
    assert "It is there." in (tmp_path / "elsewhere" / "session.md").read_text()


async def test_appending_to_a_removed_file_is_an_error(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        session_file(session).unlink()
        with pytest.raises(Failed, match="is missing"):
            await conversation.append(ANSWER)


async def test_an_append_writes_only_its_entry_however_long_the_session_is(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(
            *(Notice(id=f"n{count}", topic="x", text="y" * 100) for count in range(5000))
        )
        before = session_file(session).stat()
        await conversation.append(PROMPT)
        after = session_file(session).stat()
        assert after.st_ino == before.st_ino
        assert after.st_size - before.st_size < 200


async def test_appends_that_a_closing_store_did_not_write_fail(store: FileStore, session: Session):
    other = await store.create(new_session("other"))
    async with store.open(session) as conversation, store.open(other):
        messages = [Message(id=f"u{n}", role="user", text="Hello.") for n in range(200)]
        appends = [asyncio.ensure_future(conversation.append(each)) for each in messages]
        await asyncio.sleep(0)
        store.close()
        results = await asyncio.gather(*appends, return_exceptions=True)
    acknowledged = [each.id for each, result in zip(messages, results, strict=True) if result is None]
    entries, _ = await FileStore(store.root, fixed_clock()).read_entries(session)
    assert {entry.id for entry in entries} == set(acknowledged)
    assert len(acknowledged) < len(messages)
    assert {str(result) for result in results if result is not None} == {"The session store is closed."}


async def test_a_cancelled_append_finishes_before_the_cancellation_is_raised(
    store: FileStore, session: Session
):
    other = await store.create(new_session("other"))
    async with store.open(session) as conversation, store.open(other):
        writing = asyncio.create_task(conversation.append(LONG_PROMPT))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert conversation.entries == [LONG_PROMPT]
    opening = asyncio.create_task(store.open(session).__aenter__())
    async with store.open(other):
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with store.open(session) as conversation:
            assert conversation.entries == [LONG_PROMPT]


@pytest.mark.parametrize(
    "line", ['{"id": "a1", "blocks": null}', '{"id": [], "blocks": []}', "[]", "5", "[" * 100_000]
)
async def test_a_damaged_thinking_file_does_not_stop_the_conversation(
    store: FileStore, session: Session, line: str
):
    thoughts_file = Path(session.path) / "thoughts.jsonl"
    thinking = Message(id="a1", role="agent", text="Done.", provider_data=("[]",))
    async with store.open(session) as conversation:
        await conversation.append(thinking)
    thoughts_file.write_text(thoughts_file.read_text() + line)
    async with store.open(session) as conversation:
        assert conversation.entries == [thinking]
    thoughts_file.unlink()
    thoughts_file.mkdir()
    async with store.open(session) as conversation:
        assert conversation.entries == [replace(thinking, provider_data=())]


async def test_an_unsynced_append_keeps_an_edit_that_the_user_has_just_saved(
    store: FileStore, session: Session
):
    """An unsynced append does not wait, unless the changed file must be read first."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        file = Path(session.path, "session.md")
        file.write_text(file.read_text().replace(PROMPT.text, "Something else."))
        await conversation.append(ANSWER, sync=False)
        assert [getattr(each, "text", "") for each in conversation.entries] == [
            "Something else.",
            ANSWER.text,
        ]
    entries, problems = await store.read_entries(session)
    assert [getattr(each, "text", "") for each in entries] == ["Something else.", ANSWER.text]
    assert problems == []
