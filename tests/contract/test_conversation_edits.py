"""A person who saves all the time, and tasks that give up: nothing acknowledged is lost and nobody hangs."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.domain.workspace import Workspace
from retinue.errors import Failed, NotFound
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


@pytest.fixture
async def session(store: FileStore) -> Session:
    return await store.create(
        NewSession(
            agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/")
        )
    )


def keep_saving(path: Path, done: threading.Event, *, by_rename: bool) -> None:
    """Reads, thinks for a moment, and saves what it had read with one more remark: as a careless editor does."""
    for number in range(1000):
        text = path.read_text()
        if done.wait(0.03):
            return
        edited = text + f"\n<!-- remark {number} -->\n" if text else text
        if by_rename:
            other = path.with_name("4913~")
            other.write_text(edited)
            other.replace(path)
        else:
            path.write_text(edited)
        if done.wait(0.05):
            return


@pytest.mark.parametrize("by_rename", [True, False])
async def test_an_editor_that_keeps_saving_stale_text_loses_nothing_of_the_run(
    store: FileStore, session: Session, by_rename: bool
):
    """Shows: P14."""
    path = Path(session.path) / "session.md"
    done = threading.Event()
    acknowledged: list[str] = []
    async with store.open(session) as conversation:
        await conversation.append(Message(id="u", role="user", text="go"))
        person = threading.Thread(target=keep_saving, args=(path, done), kwargs={"by_rename": by_rename})
        person.start()
        try:
            for number in range(12):
                await conversation.append(Notice(id=f"n{number}", topic="x", text="y" * 50 * number))
                acknowledged.append(f"n{number}")
                await asyncio.sleep(0.04)
        finally:
            done.set()
            await asyncio.to_thread(person.join)
        await conversation.refresh()
        there = [each.id for each in conversation.entries]
        assert sorted(there) == sorted(["u", *acknowledged])
    entries, problems = await store.read_entries(session)
    assert sorted(each.id for each in entries) == sorted(there)
    assert problems == []
    assert "<!-- remark" in path.read_text()


async def test_an_append_nobody_waits_for_any_more_is_whole_or_absent(store: FileStore, session: Session):
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


async def test_a_session_file_that_is_a_folder_is_an_error_in_one_sentence(
    store: FileStore, session: Session
):
    path = Path(session.path) / "session.md"
    path.unlink()
    path.mkdir()
    with pytest.raises(Failed, match=r"session\.md cannot be read: Is a directory"):
        async with store.open(session):
            pass
    entries, problems = await store.read_entries(session)
    assert entries == []
    assert "Is a directory" in problems[0]


async def test_a_folder_that_is_gone_cannot_be_opened(store: FileStore, session: Session):
    await store.delete(session)
    with pytest.raises(NotFound, match="no session folder"):
        async with store.open(session):
            pass


async def test_a_closed_store_says_so(store: FileStore, session: Session):
    store.close()
    with pytest.raises(Failed, match="store is closed"):
        await store.sessions()


async def test_a_hundred_conversations_take_their_first_words_at_once(store: FileStore, session: Session):
    """Shows: A017."""

    async def child(number: int) -> list[str]:
        made = await store.create(
            NewSession(
                agent="scout",
                preset_text="---\n---\nP\n",
                preset_hash="",
                workspace=Workspace(root="/"),
                parent=session,
                description=f"part {number}",
            )
        )
        async with store.open(made) as conversation:
            await conversation.append(Message(id="u", role="user", text=f"part {number}"))
            await conversation.append(Message(id="a", role="agent", text="done"))
        return [each.id for each in (await store.read_entries(made))[0]]

    assert await asyncio.gather(*map(child, range(100))) == [["u", "a"]] * 100
    assert len(await store.sessions(agent="scout")) == 100


async def test_an_exchange_that_a_person_pasted_twice_is_two_exchanges(store: FileStore, session: Session):
    """Providers refuse two calls of one id: copies get ids of their own, the same at every reading."""
    async with store.open(session) as talk:
        await talk.append(
            Message(id="u", role="user", text="Look."),
            Message(id="a", role="agent", text="", tool_call_count=1),
            ToolCall(id="c", tool="ls", args="{}"),
        )
        await talk.append(ToolResult(call_id="c", text="here"))
        await talk.append(Message(id="b", role="agent", text="Seen."))
    path = Path(session.path) / "session.md"
    text = path.read_text()
    path.write_text(text + text[text.index("<!-- user") :])
    async with store.open(session) as talk:
        first = list(talk.entries)
        calls = [entry.id for entry in first if isinstance(entry, ToolCall)]
        results = [entry.call_id for entry in first if isinstance(entry, ToolResult)]
        assert calls == results == ["c", "c-2"]
        assert unanswered_calls(first) == ()
    async with store.open(session) as talk:
        assert list(talk.entries) == first
