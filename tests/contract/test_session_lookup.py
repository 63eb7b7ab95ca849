"""A session found again by the process that wrote to it last: it is as any other process finds it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.errors import NotFound
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

words = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=20),
    st.sampled_from(("", " \n", "x" * 5_000, "\x00" * 4_000, "word " * 20_000)),
)
entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Message, id=st.uuids().map(str), role=st.just("user"), text=words),
    st.builds(Message, id=st.uuids().map(str), role=st.just("agent"), text=words),
    st.builds(ToolCall, id=st.uuids().map(str), tool=st.just("read"), args=words),
    st.builds(ToolResult, call_id=st.uuids().map(str), text=words),
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


async def said(store: FileStore, session: Session, *added: Entry) -> None:
    async with store.open(session) as conversation:
        await conversation.append(*added)
        await conversation.write_idle_prompt()


async def found_elsewhere(store: FileStore, session: Session) -> Session:
    other = FileStore(store.root, fixed_clock())
    try:
        return await other.find(session.id)
    finally:
        other.close()


@given(st.lists(st.lists(entries, min_size=1, max_size=3), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_what_was_just_written_is_known_as_another_process_reads_it(runs: list[list[Entry]]):
    async def compared(home: Path) -> None:
        store = FileStore(home, fixed_clock())
        session = await a_session(store)
        for added in runs:
            await said(store, session, *added)
            elsewhere = await found_elsewhere(store, session)
            assert await store.find(session.id) == elsewhere
            assert await store.find(f"{session.path}/session.md") == elsewhere
            assert await store.find(session.path) == elsewhere
        store.close()

    with TemporaryDirectory() as home:
        asyncio.run(compared(Path(home)))


async def test_words_of_others_are_seen_after_words_of_our_own(store: FileStore, session: Session):
    path = Path(session.path) / "session.md"
    await said(store, session, Message(id="a1", role="agent", text="Here it is."))
    for ref in (session.id, str(path), session.path):
        assert (await store.find(ref)).last_snippet == "Here it is."
    path.write_text(path.read_text().replace("Here it is.", "Nowhere yet"))
    for ref in (session.id, str(path), session.path):
        assert (await store.find(ref)).last_snippet == "Nowhere yet"


async def test_a_name_that_another_process_gave_is_seen(store: FileStore, session: Session):
    await said(store, session, Message(id="a1", role="agent", text="Here it is."))
    assert (await store.find(session.path)).name is None
    other = FileStore(store.root, fixed_clock())
    await other.update(session, name="the search")
    other.close()
    for ref in (session.id, session.path):
        assert (await store.find(ref)).name == "the search"


async def test_a_path_means_what_stands_there_now(store: FileStore, session: Session, tmp_path: Path):
    """A link may lead elsewhere the next time, and a folder may be gone."""
    second = await a_session(store)
    for number, each in enumerate((session, second)):
        await said(store, each, Message(id=f"a{number}", role="agent", text="Said."))
    link = tmp_path / "link"
    for each in (session, second, session):
        link.unlink(missing_ok=True)
        link.symlink_to(each.path)
        assert (await store.find(str(link))).id == each.id
        assert (await store.find(str(link))).id == each.id
    top = Path(session.path).parents[1]
    top.rename(tmp_path / "moved")
    for ref in (session.path, f"{session.path}/session.md"):
        with pytest.raises(NotFound):
            await store.find(ref)


async def test_a_path_of_a_session_finds_the_one_that_took_its_place(store: FileStore, session: Session):
    second = await a_session(store)
    assert (await store.find(session.path)).id == session.id
    first, other = Path(session.path).parents[1], Path(second.path).parents[1]
    first.rename(first.with_name("away"))
    other.rename(first)
    assert (await store.find(session.path)).id == second.id


async def test_a_file_saved_by_renaming_between_two_entries_is_the_one_that_is_added_to(
    store: FileStore, session: Session
):
    """The file is held open from one entry to the next; which file has the name is looked at each time."""
    path = Path(session.path) / "session.md"
    async with store.open(session) as conversation:
        for number in range(5):
            await conversation.append(Message(id=f"u{number}", role="user", text=f"words {number}"))
            copy = path.with_name("copy")
            copy.write_bytes(path.read_bytes().replace(b"words", b"sword"))
            copy.rename(path)
        await conversation.append(Message(id="a1", role="agent", text="The end."))
    texts = [each.text for each in (await store.read_entries(session))[0] if isinstance(each, Message)]
    assert texts == [*(f"sword {number}" for number in range(5)), "The end."]


def _files_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_more_open_conversations_than_files_may_be_open_are_all_written_to(store: FileStore):
    sessions = [await a_session(store) for _ in range(70)]
    talks = [store.open(each) for each in sessions]
    opened = [await each.__aenter__() for each in talks]
    before = _files_open()
    for conversation in opened:
        await conversation.append(Message(id="u1", role="user", text="Find it."))
    assert _files_open() < before + 40
    for each in talks:
        await each.__aexit__(None, None, None)
    assert [len((await store.read_entries(each))[0]) for each in sessions] == [1] * 70
