"""A conversation held open: what is acknowledged stays, what a person does to the file counts."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.errors import DiskError, Failed, SessionLocked, Unreadable
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

NOT_SHORT = Message(id="u0", role="user", text="Find it. " * 5_000)
PROMPT = Message(id="u1", role="user", text="Find it.", at="2026-11-15T18:42:07Z", run="r1")
REPLY = Message(id="a1", role="agent", text="I look.", tool_call_count=1, run="r1")
CALL = ToolCall(id="c1", tool="grep", args='{"pattern": "cron"}', run="r1")
RESULT = ToolResult(call_id="c1", text="src/cron.py:1", duration_ms=12, run="r1")
ANSWER = Message(id="a2", role="agent", text="It is there.", run="r1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


@pytest.fixture
async def session(store: FileStore) -> Session:
    return await store.create(
        NewSession(
            agent="general",
            preset_text="---\nname: general\n---\nYou help.\n",
            preset_hash="h",
            workspace=Workspace(root="/w"),
        )
    )


def file_of(session: Session) -> Path:
    return Path(session.path) / "session.md"


def texts(entries: list[Entry]) -> list[str]:
    return [each.args if isinstance(each, ToolCall) else each.text for each in entries]


def saved_by_rename(path: Path, text: str) -> None:
    """As most editors save: a new file takes the old one's name."""
    other = path.with_name("4913~")
    other.write_text(text)
    other.replace(path)


async def test_the_prompt_is_in_the_file_before_anything_else_happens(store: FileStore, session: Session):
    """Shows: A030, A039."""
    assert file_of(session).stat().st_size == 0
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        text = file_of(session).read_text()
    assert text.startswith(
        f"<!-- retinue 1 session={session.slug} id={session.id} branch=main -->\n\n<!-- user id=u1"
    )
    assert text.endswith("\nFind it.\n\n")


async def test_everything_said_called_and_returned_is_in_the_file_in_order(
    store: FileStore, session: Session
):
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


async def test_an_entry_already_there_is_not_added_again(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, REPLY, CALL)
        before = file_of(session).read_bytes()
        await conversation.append(PROMPT)
        await conversation.append(CALL, REPLY)
        assert file_of(session).read_bytes() == before
        await conversation.append(RESULT)
        await conversation.append(RESULT)
    async with store.open(session) as conversation:
        await conversation.append(RESULT)
        assert conversation.entries == [PROMPT, REPLY, CALL, RESULT]


async def test_of_many_that_append_at_once_each_is_told_when_its_own_is_there(
    store: FileStore, session: Session
):
    async with store.open(session) as talk:

        async def add(number: int) -> bool:
            await talk.append(Message(id=f"u{number}", role="user", text=f"word {number}"))
            return f"word {number}\n" in file_of(session).read_text()

        assert all(await asyncio.gather(*(add(number) for number in range(40))))
        assert [each.id for each in talk.entries] == [f"u{number}" for number in range(40)]


async def test_of_many_that_append_at_once_each_is_told_that_its_own_is_not_there(
    store: FileStore, session: Session
):
    async with store.open(session) as talk:
        await talk.append(PROMPT)
        file_of(session).unlink()
        file_of(session).mkdir()
        adding = (talk.append(Message(id=f"w{number}", role="user", text="word")) for number in range(20))
        told = await asyncio.gather(*adding, return_exceptions=True)
        assert all(isinstance(each, Failed | DiskError) for each in told)
        assert talk.entries == [PROMPT]


async def test_a_stopped_task_that_appends_with_others_stops_when_all_is_there(
    store: FileStore, session: Session
):
    async with store.open(session) as talk:
        tasks = [
            asyncio.ensure_future(talk.append(Message(id=f"u{number}", role="user", text="word")))
            for number in range(10)
        ]
        await asyncio.sleep(0)
        tasks[5].cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in told if each is not None] == [asyncio.CancelledError]
        assert file_of(session).read_text().count("word") == 10


async def test_many_tasks_append_to_one_conversation_at_once(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        notices = [Notice(id=f"n{count}", topic="x", text=f"{count}") for count in range(40)]
        await asyncio.gather(*(conversation.append(each) for each in notices))
        assert sorted(conversation.entries, key=lambda each: each.id) == sorted(
            notices, key=lambda each: each.id
        )
    entries, problems = await store.read_entries(session)
    assert len(entries) == 40
    assert problems == []


async def test_an_idle_conversation_ends_with_one_open_line_and_goes_on_in_its_place(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.write_idle_prompt()
        assert file_of(session).stat().st_size == 0
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
        await conversation.write_idle_prompt()
        assert file_of(session).read_text().count("<!-- user") == 2
        await conversation.append(ANSWER)
        assert file_of(session).read_text().count("<!-- user") == 1
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        await conversation.append(Notice(id="n", topic="x", text="news"))
        await conversation.write_idle_prompt()
    assert file_of(session).read_text().count("<!-- user") == 2
    assert texts((await store.read_entries(session))[0]) == ["Find it.", "It is there.", "news"]


async def test_what_a_person_types_becomes_the_next_entry_and_is_not_written_twice(
    store: FileStore, session: Session
):
    """Shows: A061, A040."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, ANSWER)
        await conversation.write_idle_prompt()
    with file_of(session).open("a") as file:
        file.write("And the tests?\n")
    typed = file_of(session).read_bytes()
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT, ANSWER]
        assert conversation.typed_text() == "And the tests?"
        await conversation.save_typed_text(
            Message(id="new", role="user", text="as it was when asked", run="r2")
        )
        assert conversation.typed_text() == ""
        taken = conversation.entries[-1]
        assert texts([taken]) == ["And the tests?"]
        assert file_of(session).read_bytes() == typed
        assert f"<!-- user id={taken.id} -->" in typed.decode()
        await conversation.append(Message(id="a3", role="agent", text="None."))
        assert file_of(session).read_bytes().startswith(typed)
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        assert texts(conversation.entries) == ["Find it.", "It is there.", "And the tests?", "None."]
        assert conversation.entries[2].id == taken.id


async def test_taking_what_was_typed_when_nothing_is_there_adds_the_entry(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.save_typed_text(PROMPT)
        assert conversation.entries == [PROMPT]
    assert (await store.read_entries(session))[0] == [PROMPT]


async def test_words_typed_into_a_new_sessions_empty_file_are_taken(store: FileStore, session: Session):
    file_of(session).write_text("Just do it.\n")
    async with store.open(session) as conversation:
        assert conversation.typed_text() == "Just do it."
        await conversation.save_typed_text(Message(id="x", role="user", text="Just do it."))
        await conversation.append(ANSWER)
    async with store.open(session) as conversation:
        assert texts(conversation.entries) == ["Just do it.", "It is there."]


async def test_a_taken_prompt_that_nobody_answered_is_an_entry_after_the_run_rests(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
    with file_of(session).open("a") as file:
        file.write("More")
    async with store.open(session) as conversation:
        await conversation.save_typed_text(Message(id="x", role="user", text=conversation.typed_text()))
        await conversation.write_idle_prompt()
    async with store.open(session) as conversation:
        assert texts(conversation.entries) == ["Find it.", "More"]
        assert conversation.typed_text() == ""


async def test_words_typed_while_a_run_goes_on_are_never_touched(store: FileStore, session: Session):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        await conversation.write_idle_prompt()
        with file_of(session).open("a") as file:
            file.write("Wait, also the docs")
        await conversation.append(ANSWER)
        assert texts(conversation.entries) == ["Find it.", "Wait, also the docs", "It is there."]
    async with store.open(session) as conversation:
        assert texts(conversation.entries) == ["Find it.", "Wait, also the docs", "It is there."]


async def test_an_edit_in_place_during_a_run_is_the_conversation(store: FileStore, session: Session):
    """Shows: P14, A040."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        conversation.provider_cache["encoded"] = 1
        assert await conversation.refresh() is False
        assert conversation.provider_cache == {"encoded": 1}
        file_of(session).write_text(file_of(session).read_text().replace("Find it.", "Find them all."))
        assert await conversation.refresh() is True
        assert conversation.provider_cache == {}
        assert texts(conversation.entries) == ["Find them all."]
        await conversation.append(ANSWER)
    assert texts((await store.read_entries(session))[0]) == ["Find them all.", "It is there."]


async def test_an_edit_saved_by_rename_is_found_by_the_next_append(store: FileStore, session: Session):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        saved_by_rename(file_of(session), file_of(session).read_text().replace("Find it.", "Find them all."))
        await conversation.append(ANSWER)
        assert texts(conversation.entries) == ["Find them all.", "It is there."]
    assert texts((await store.read_entries(session))[0]) == ["Find them all.", "It is there."]


async def test_a_save_that_drops_what_the_run_added_gets_it_back(store: FileStore, session: Session):
    """Shows: P14."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        stale = file_of(session).read_text()
        await conversation.append(REPLY, CALL)
        await conversation.append(RESULT)
        saved_by_rename(file_of(session), stale + "<!-- a note of mine -->\n")
        await conversation.append(ANSWER)
        assert [each.id for each in conversation.entries] == ["u1", "a1", "c1", "c1", "a2"]
    assert "<!-- a note of mine -->" in file_of(session).read_text()
    assert [each.id for each in (await store.read_entries(session))[0]] == ["u1", "a1", "c1", "c1", "a2"]


async def test_a_dropped_entry_comes_back_by_refresh_alone(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        stale = file_of(session).read_text()
        await conversation.append(ANSWER)
        file_of(session).write_text(stale)
        await conversation.refresh()
        assert conversation.entries == [PROMPT, ANSWER]
    assert (await store.read_entries(session))[0] == [PROMPT, ANSWER]


async def test_between_runs_a_deletion_is_a_deletion(store: FileStore, session: Session):
    """Shows: A062."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        first = file_of(session).read_text()
        await conversation.append(ANSWER)
        await conversation.write_idle_prompt()
        file_of(session).write_text(first)
        assert await conversation.refresh() is True
        assert conversation.entries == [PROMPT]
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT]


async def test_an_editor_that_strips_the_blank_line_at_the_end_changes_nothing(
    store: FileStore, session: Session
):
    body = Message(id="a9", role="agent", text="ends with a newline\n")
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, body)
        for stripped in (b"\n", b"\n\n", b""):
            file_of(session).write_bytes(file_of(session).read_bytes().rstrip(b"\n") + b"\n" + stripped)
            await conversation.append(Notice(id=f"n{len(stripped)}", topic="x", text="on"))
    entries, problems = await store.read_entries(session)
    assert [each.id for each in entries] == ["u1", "a9", "n1", "n2", "n0"]
    assert problems == []


async def test_a_broken_marker_is_an_error_with_its_line_and_the_file_is_left_alone(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, ANSWER)
    broken = file_of(session).read_text().replace("<!-- agent id", "<!-- agent my id")
    file_of(session).write_text(broken)
    with pytest.raises(Unreadable, match=r"session\.md:6: "):
        async with store.open(session):
            pass
    assert file_of(session).read_text() == broken
    entries, problems = await store.read_entries(session)
    assert entries == [PROMPT]
    assert "session.md:6" in problems[0]


async def test_a_torn_tail_is_cut_aside_and_nothing_acknowledged_is_lost(store: FileStore, session: Session):
    """Shows: P03."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        good = file_of(session).read_bytes()
        await conversation.append(REPLY, CALL)
        whole = file_of(session).read_bytes()
    for number, cut in enumerate(range(len(good) + 1, len(whole), 7)):
        file_of(session).write_bytes(whole[:cut])
        entries, problems = await store.read_entries(session)
        assert entries == [PROMPT]
        assert "torn tail" in problems[0]
        assert file_of(session).read_bytes() == whole[:cut]
        async with store.open(session) as conversation:
            assert conversation.entries == [PROMPT]
            assert conversation.torn_tail_path is not None
            assert Path(conversation.torn_tail_path).read_bytes() == whole[len(good) : cut]
        assert file_of(session).read_bytes() == good
        assert len(list(file_of(session).parent.glob("session.md.torn-*"))) == number + 1


async def test_a_conversation_goes_on_after_a_torn_tail(store: FileStore, session: Session):
    """Shows: P03."""
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
    with file_of(session).open("ab") as file:
        file.write(b"<!-- agent id=a2 n=12")
    async with store.open(session) as conversation:
        assert conversation.torn_tail_path is not None
        await conversation.append(ANSWER)
    assert (await store.read_entries(session)) == ([PROMPT, ANSWER], [])


async def test_thoughts_are_kept_beside_the_file_and_come_back_unchanged(store: FileStore, session: Session):
    blocks = ('{"type":"thinking","signature":"é\\u2028"}', "\ud800")
    thinking = Message(id="a1", role="agent", text="Done.", thoughts=blocks)
    async with store.open(session) as conversation:
        await conversation.append(PROMPT, thinking)
    assert "thinking" not in file_of(session).read_text()
    assert "thoughts=1" in file_of(session).read_text()
    with (Path(session.path) / "thoughts.jsonl").open("a") as file:
        file.write('{"id": "half')
    async with store.open(session) as conversation:
        assert conversation.entries == [PROMPT, thinking]
        await conversation.append(Message(id="a2", role="agent", text="More.", thoughts=("[]",)))
    async with store.open(session) as conversation:
        assert [each.thoughts for each in conversation.entries if isinstance(each, Message)] == [
            (),
            blocks,
            ("[]",),
        ]
        (Path(session.path) / "thoughts.jsonl").unlink()
    async with store.open(session) as conversation:
        assert texts(conversation.entries) == ["Find it.", "Done.", "More."]


async def test_the_tool_log_takes_headings_and_nothing_depends_on_it(store: FileStore, session: Session):
    """Shows: A018."""
    sly = ToolResult(
        call_id="c2", text="* a heading\n#+end_example\n  ,* more\n\ud800", ok=False, duration_ms=3
    )
    async with store.open(session) as conversation:
        await conversation.log_tool_call(CALL, RESULT)
        await conversation.log_tool_call(ToolCall(id="c2", tool="read", args="{}"), sly)
    lines = (Path(session.path) / "tools.org").read_text().splitlines()
    assert [line for line in lines if line.startswith("*")] == ["* grep c1", "* read c2"]
    assert [line for line in lines if line.startswith(":OUTCOME:")] == [":OUTCOME: ok", ":OUTCOME: failed"]
    assert lines.count("#+end_example") == 2
    assert '{"pattern": "cron"}' in lines
    assert {",* a heading", ",#+end_example", "  ,,* more", "\\ud800"} <= set(lines)


async def test_a_second_opener_is_told_who_has_the_session(store: FileStore, session: Session):
    """Shows: P19."""
    async with store.open(session):
        with pytest.raises(
            SessionLocked, match=rf"open in PID {os.getpid()} on host .+ since .+; end that process or wait"
        ):
            async with store.open(session):
                pass
    async with store.open(session) as conversation:
        assert conversation.entries == []


async def test_a_stale_lock_text_of_a_living_process_blocks_nobody(store: FileStore, session: Session):
    """Shows: P20."""
    (Path(session.path) / ".lock").write_text("PID 1 on host elsewhere since 1999\nboot x\n")
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)


async def test_a_closed_conversation_refuses_to_write(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
    with pytest.raises(Failed, match="not open any more"):
        await conversation.append(ANSWER)
    assert await conversation.refresh() is False


async def test_an_opening_that_was_cancelled_gives_the_lock_back(store: FileStore, session: Session):
    """With another conversation open, a file that is not short is read in a thread, and that can be left alone in the
    middle."""
    other = await store.create(
        NewSession(agent="other", preset_text="You help.\n", preset_hash="h", workspace=Workspace(root="/w"))
    )
    async with store.open(session) as conversation:
        await conversation.append(NOT_SHORT)
    async with store.open(other):
        opening = asyncio.create_task(store.open(session).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    for _ in range(200):
        try:
            async with store.open(session) as conversation:
                assert conversation.entries == [NOT_SHORT]
                return
        except SessionLocked:
            await asyncio.sleep(0.01)
    pytest.fail("the lock was never given back")


async def test_a_folder_moved_while_open_is_still_written_to(
    store: FileStore, session: Session, tmp_path: Path
):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        Path(session.path).rename(tmp_path / "elsewhere")
        await conversation.append(ANSWER)
    assert "It is there." in (tmp_path / "elsewhere" / "session.md").read_text()


async def test_a_file_removed_for_good_is_an_error_that_says_so(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(PROMPT)
        file_of(session).unlink()
        with pytest.raises(Failed, match="is gone"):
            await conversation.append(ANSWER)


async def test_adding_an_entry_writes_only_that_entry_however_long_the_session_is(
    store: FileStore, session: Session
):
    async with store.open(session) as conversation:
        await conversation.append(
            *(Notice(id=f"n{count}", topic="x", text="y" * 100) for count in range(5000))
        )
        before = file_of(session).stat()
        await conversation.append(PROMPT)
        after = file_of(session).stat()
        assert after.st_ino == before.st_ino
        assert after.st_size - before.st_size < 200


async def test_what_a_closing_store_never_wrote_is_not_taken_for_written(store: FileStore, session: Session):
    other = await store.create(
        NewSession(agent="other", preset_text="", preset_hash="h", workspace=Workspace(root="/w"))
    )
    async with store.open(session) as talk, store.open(other):
        said = [Message(id=f"u{n}", role="user", text="Hello.") for n in range(200)]
        wishes = [asyncio.ensure_future(talk.append(each)) for each in said]
        await asyncio.sleep(0)
        store.close()
        told = await asyncio.gather(*wishes, return_exceptions=True)
    acknowledged = [each.id for each, answer in zip(said, told, strict=True) if answer is None]
    found, _ = await FileStore(store.root, fixed_clock()).read_entries(session)
    assert {entry.id for entry in found} == set(acknowledged)
    assert len(acknowledged) < len(said)
    assert {str(answer) for answer in told if answer is not None} == {"The store is closed"}


async def test_a_cancelled_append_is_over_before_the_cancellation_passes(store: FileStore, session: Session):
    other = await store.create(
        NewSession(agent="other", preset_text="", preset_hash="h", workspace=Workspace(root="/w"))
    )
    async with store.open(session) as talk, store.open(other):
        writing = asyncio.create_task(talk.append(NOT_SHORT))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert talk.entries == [NOT_SHORT]
    opening = asyncio.create_task(store.open(session).__aenter__())
    async with store.open(other):
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with store.open(session) as talk:
            assert talk.entries == [NOT_SHORT]


@pytest.mark.parametrize(
    "line", ['{"id": "a1", "blocks": null}', '{"id": [], "blocks": []}', "[]", "5", "[" * 100_000]
)
async def test_thoughts_that_somebody_spoilt_are_gone_without(store: FileStore, session: Session, line: str):
    beside = Path(session.path) / "thoughts.jsonl"
    thinking = Message(id="a1", role="agent", text="Done.", thoughts=("[]",))
    async with store.open(session) as conversation:
        await conversation.append(thinking)
    beside.write_text(beside.read_text() + line)
    async with store.open(session) as conversation:
        assert conversation.entries == [thinking]
    beside.unlink()
    beside.mkdir()
    async with store.open(session) as conversation:
        assert conversation.entries == [replace(thinking, thoughts=())]


async def test_words_that_wait_for_no_sync_find_a_file_that_a_person_has_just_changed(
    store: FileStore, session: Session
):
    """Nobody waits for what is not synced, unless there is something to read first."""
    async with store.open(session) as talk:
        await talk.append(PROMPT)
        file = Path(session.path, "session.md")
        file.write_text(file.read_text().replace(PROMPT.text, "Something else."))
        await talk.append(ANSWER, sync=False)
        assert [getattr(each, "text", "") for each in talk.entries] == ["Something else.", ANSWER.text]
    found, wrong = await store.read_entries(session)
    assert [getattr(each, "text", "") for each in found] == ["Something else.", ANSWER.text]
    assert wrong == []
