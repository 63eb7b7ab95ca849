"""A conversation opened again: what was kept of it is what its file says, or it is not used."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.run import Usage
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.errors import Failed, Unreadable
from retinue.sessions.store import FileStore
from retinue.sessions.window import WINDOW_BYTES
from retinue.testing.fixed_clock import fixed_clock

ASKED = Message(id="u1", role="user", text="Find it.")
ANSWERED = Message(id="a1", role="agent", text="Here it is.")

words = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Message, id=st.uuids().map(str), role=st.just("user"), text=words, origin=words, run=words),
    st.builds(
        Message,
        id=st.uuids().map(str),
        role=st.just("agent"),
        text=words,
        model=words,
        usage=st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9)),
        stop_reason=words,
        thoughts=st.lists(words, max_size=2).map(tuple),
    ),
    st.builds(ToolCall, id=st.uuids().map(str), tool=st.just("read"), args=words, parse_error=words),
    st.builds(
        ToolResult, call_id=st.uuids().map(str), text=words, ok=st.booleans(), duration_ms=st.integers(0, 9)
    ),
    st.builds(Notice, id=st.uuids().map(str), topic=st.just("x"), text=words),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


@pytest.fixture
async def session(store: FileStore) -> Session:
    return await a_session(store)


async def a_session(store: FileStore) -> Session:
    return await store.create(
        NewSession(
            agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/")
        )
    )


async def said(store: FileStore, session: Session, *added: Entry) -> list[Entry]:
    """One run's part in a conversation; gives back what was found at its beginning."""
    async with store.open(session) as conversation:
        found = conversation.entries.copy()
        await conversation.append(*added)
        await conversation.write_idle_prompt()
    return found


async def reopened(store: FileStore, session: Session) -> tuple[list[Entry], object]:
    """The entries, and the very thing they are remembered in."""
    async with store.open(session) as conversation:
        return conversation.entries.copy(), conversation.provider_cache


def texts(entries: list[Entry]) -> list[str]:
    return [entry.text.strip() for entry in entries if isinstance(entry, Message)]


@given(
    st.lists(st.lists(entries, min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from((WINDOW_BYTES, 1_000, 300)),
)
@settings(max_examples=30, deadline=None)
def test_what_is_kept_is_what_another_process_reads(runs: list[list[Entry]], window: int):
    """Also where only a window of the file is held, and where that moves."""

    async def compared(home: Path) -> None:
        store = FileStore(home, fixed_clock(), window=window)
        other = FileStore(home, fixed_clock(), window=window)
        session = await a_session(store)
        for added in runs:
            await said(store, session, *added)
            kept, _ = await reopened(store, session)
            read, _ = await reopened(other, session)
            assert kept == read
        store.close()
        other.close()

    with TemporaryDirectory() as home:
        asyncio.run(compared(Path(home)))


async def test_a_file_that_nobody_touched_is_not_read_again(store: FileStore, session: Session):
    await said(store, session, ASKED, ANSWERED)
    _, memo = await reopened(store, session)
    found, again = await reopened(store, session)
    assert again is memo
    assert found == [ASKED, ANSWERED]


@pytest.mark.parametrize("by_rename", [True, False])
async def test_what_a_person_changed_between_two_runs_is_the_conversation(
    store: FileStore, session: Session, by_rename: bool
):
    """Shows: A040."""
    await said(store, session, ASKED, ANSWERED)
    path = Path(session.path) / "session.md"
    place = path.with_name("4913") if by_rename else path
    place.write_text(path.read_text().replace("Here it is.", "Nowhere yet"))
    place.replace(path)
    found = await said(store, session, Notice(id="n1", topic="x", text="on"))
    assert texts(found) == ["Find it.", "Nowhere yet"]
    assert "Nowhere yet" in path.read_text()


async def test_what_another_process_added_meanwhile_is_seen(store: FileStore, session: Session):
    await said(store, session, ASKED)
    other = FileStore(store.root, fixed_clock())
    await said(other, session, ANSWERED)
    other.close()
    assert (await reopened(store, session))[0] == [ASKED, ANSWERED]


async def test_what_a_person_typed_is_taken_once(store: FileStore, session: Session):
    await said(store, session, ASKED, ANSWERED)
    path = Path(session.path) / "session.md"
    with path.open("a") as file:
        file.write("And then?\n")
    async with store.open(session) as conversation:
        assert conversation.typed_text().strip() == "And then?"
        await conversation.save_typed_text(Message(id="u2", role="user", text="And then?", run="r2"))
        await conversation.append(Message(id="a2", role="agent", text="Nothing."))
        await conversation.write_idle_prompt()
    kept, _ = await reopened(store, session)
    other = FileStore(store.root, fixed_clock())
    assert kept == (await reopened(other, session))[0]
    other.close()
    assert texts(kept) == ["Find it.", "Here it is.", "And then?", "Nothing."]


async def test_a_copy_that_took_the_place_of_the_folder_is_read(store: FileStore, session: Session):
    await said(store, session, ASKED, ANSWERED)
    folder = Path(session.path)
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    (folder / "session.md").write_text("<!-- user id=\n")
    with pytest.raises(Unreadable):
        await reopened(store, session)


async def test_what_was_closed_stays_closed_when_it_is_opened_again(store: FileStore, session: Session):
    await said(store, session, ASKED)
    async with store.open(session) as closed:
        pass
    async with store.open(session) as conversation:
        with pytest.raises(Failed, match="not open any more"):
            await closed.append(ANSWERED)
        assert conversation.entries == [ASKED]


async def test_entries_handed_out_do_not_grow_in_a_later_run(store: FileStore, session: Session):
    await said(store, session, ASKED)
    async with store.open(session) as conversation:
        handed = conversation.entries
    await said(store, session, ANSWERED)
    assert handed == [ASKED]


async def test_only_the_latest_are_kept(store: FileStore):
    first = await a_session(store)
    await said(store, first, ASKED)
    _, memo = await reopened(store, first)
    for number in range(65):
        await said(store, await a_session(store), Message(id=f"u{number}", role="user", text="x"))
    found, again = await reopened(store, first)
    assert again is not memo
    assert found == [ASKED]


async def test_of_long_conversations_no_more_is_kept_than_one_may_hold(tmp_path: Path):
    """Shows: P31."""
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=5 << 20)
    first, second, short = [await a_session(store) for _ in range(3)]
    await said(store, short, ASKED)
    _, kept_short = await reopened(store, short)
    await said(store, first, Message(id="u1", role="user", text="x" * (3 << 20)))
    _, kept_first = await reopened(store, first)
    assert (await reopened(store, first))[1] is kept_first
    await said(store, second, Message(id="u1", role="user", text="x" * (3 << 20)))
    _, kept_second = await reopened(store, second)
    assert (await reopened(store, second))[1] is kept_second
    assert (await reopened(store, first))[1] is not kept_first
    assert (await reopened(store, short))[1] is kept_short
    store.close()


async def test_a_single_exchange_that_is_longer_than_all_that_may_be_held_is_not_kept(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=1_000)
    session = await a_session(store)
    await said(store, session, Message(id="u1", role="user", text="x" * 3_000))
    _, memo = await reopened(store, session)
    assert (await reopened(store, session))[1] is not memo
    store.close()


async def test_a_window_is_kept_until_it_moves(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=4_000)
    session = await a_session(store)
    for number in range(40):
        await said(store, session, Message(id=f"u{number}", role="user", text="x" * 100))
        await said(store, session, Message(id=f"a{number}", role="agent", text="y" * 100))
    seen: list[str] = []
    memos: list[object] = []
    for number in range(20):
        async with store.open(session) as conversation:
            assert conversation.is_truncated
            memos.append(conversation.provider_cache)
            seen.append(conversation.entries[0].id)
            await conversation.append(Message(id=f"b{number}", role="agent", text="z" * 50))
            await conversation.write_idle_prompt()
    beginnings = set(seen)
    assert 1 < len(beginnings) < len(seen) / 2
    assert len({id(memo) for memo in memos}) == len(beginnings)
    store.close()
