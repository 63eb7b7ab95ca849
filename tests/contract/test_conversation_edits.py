"""Concurrent edits of an open conversation and cancelled appends: no acknowledged entry is lost."""

import asyncio
import threading
from pathlib import Path

import pytest
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.errors import Failed, NotFound
from retinue.sessions.store import FileStore


def keep_saving(path: Path, stop: threading.Event, *, by_rename: bool) -> None:
    """Save a stale text with one more remark again and again, like a careless editor."""
    for number in range(1000):
        text = path.read_text()
        if stop.wait(0.03):
            return
        edited = text + f"\n<!-- remark {number} -->\n" if text else text
        if by_rename:
            other = path.with_name("4913~")
            other.write_text(edited)
            other.replace(path)
        else:
            path.write_text(edited)
        if stop.wait(0.05):
            return


@pytest.mark.parametrize("by_rename", [True, False])
async def test_an_editor_that_keeps_saving_stale_text_loses_no_entry_of_the_run(
    store: FileStore, session: Session, by_rename: bool
):
    """Shows: P14."""
    path = Path(session.path) / "session.md"
    stop = threading.Event()
    acknowledged: list[str] = []
    async with store.open(session) as conversation:
        await conversation.append(Message(id="u", role="user", text="go"))
        editor = threading.Thread(target=keep_saving, args=(path, stop), kwargs={"by_rename": by_rename})
        editor.start()
        try:
            for number in range(12):
                await conversation.append(Notice(id=f"n{number}", topic="x", text="y" * 50 * number))
                acknowledged.append(f"n{number}")
                await asyncio.sleep(0.04)
        finally:
            stop.set()
            await asyncio.to_thread(editor.join)
        await conversation.reload_if_edited()
        ids = [each.id for each in conversation.entries]
        assert sorted(ids) == sorted(["u", *acknowledged])
    entries, problems = await store.read_entries(session)
    assert sorted(each.id for each in entries) == sorted(ids)
    assert problems == []
    assert "<!-- remark" in path.read_text()


async def test_a_cancelled_append_is_written_completely_or_not_at_all(store: FileStore, session: Session):
    async with store.open(session) as conversation:
        await conversation.append(Message(id="u", role="user", text="go"))
        for number in range(10):
            task = asyncio.create_task(conversation.append(Notice(id=f"n{number}", topic="x", text="y")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await conversation.append(Notice(id="last", topic="x", text="z"))
    entries, problems = await store.read_entries(session)
    assert entries == conversation.entries
    assert entries[-1].id == "last"
    assert problems == []


async def test_a_session_file_that_is_a_folder_is_an_error(store: FileStore, session: Session):
    path = Path(session.path) / "session.md"
    path.unlink()
    path.mkdir()
    with pytest.raises(Failed, match=r"session\.md cannot be read: Is a directory"):
        async with store.open(session):
            pass
    entries, problems = await store.read_entries(session)
    assert entries == []
    assert "Is a directory" in problems[0]


async def test_a_deleted_session_cannot_be_opened(store: FileStore, session: Session):
    await store.delete(session)
    with pytest.raises(NotFound, match="does not exist"):
        async with store.open(session):
            pass


async def test_a_closed_store_refuses_to_list_sessions(store: FileStore, session: Session):
    store.close()
    with pytest.raises(Failed, match="store is closed"):
        await store.sessions()


async def test_a_hundred_child_sessions_can_be_created_and_written_concurrently(
    store: FileStore, session: Session
):
    """Shows: A017."""

    async def create_child(number: int) -> list[str]:
        child = await store.create(new_session("scout", parent=session, description=f"part {number}"))
        async with store.open(child) as conversation:
            await conversation.append(Message(id="u", role="user", text=f"part {number}"))
            await conversation.append(Message(id="a", role="agent", text="done"))
        return [each.id for each in (await store.read_entries(child))[0]]

    assert await asyncio.gather(*map(create_child, range(100))) == [["u", "a"]] * 100
    assert len(await store.sessions(agent="scout")) == 100


async def test_an_exchange_that_the_user_pasted_twice_has_separate_call_ids(
    store: FileStore, session: Session
):
    """Providers refuse two calls with one id, so a copied call gets its own id, the same at every read."""
    async with store.open(session) as conversation:
        await conversation.append(
            Message(id="u", role="user", text="Look."),
            Message(id="a", role="agent", text="", tool_call_count=1),
            ToolCall(id="c", tool="ls", args="{}"),
        )
        await conversation.append(ToolResult(call_id="c", text="here"))
        await conversation.append(Message(id="b", role="agent", text="Seen."))
    path = Path(session.path) / "session.md"
    text = path.read_text()
    path.write_text(text + text[text.index("<!-- user") :])
    async with store.open(session) as conversation:
        first = list(conversation.entries)
        calls = [entry.id for entry in first if isinstance(entry, ToolCall)]
        results = [entry.call_id for entry in first if isinstance(entry, ToolResult)]
        assert calls == results == ["c", "c-2"]
        assert unanswered_calls(first) == ()
    async with store.open(session) as conversation:
        assert list(conversation.entries) == first
