"""Session lookup by the process that wrote last: the result equals what any other process finds."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import NotFound
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

words = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=20),
    st.sampled_from(("", " \n", "x" * 5_000, "\x00" * 4_000, "word " * 20_000)),
)
random_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Message, id=st.uuids().map(str), role=st.just("user"), text=words),
    st.builds(Message, id=st.uuids().map(str), role=st.just("agent"), text=words),
    st.builds(ToolCall, id=st.uuids().map(str), tool=st.just("read"), args=words),
    st.builds(ToolResult, call_id=st.uuids().map(str), text=words),
    st.builds(Notice, id=st.uuids().map(str), topic=st.just("x"), text=words),
)


async def append_entries(store: FileStore, session: Session, *new_entries: Entry) -> None:
    async with store.open(session) as conversation:
        await conversation.append(*new_entries)
        await conversation.write_idle_prompt()


async def find_in_other_store(store: FileStore, session: Session) -> Session:
    other = FileStore(store.root, fixed_clock())
    try:
        return await other.find(session.id)
    finally:
        other.close()


@given(st.lists(st.lists(random_entries, min_size=1, max_size=3), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_a_lookup_after_a_write_equals_the_lookup_by_another_store(runs: list[list[Entry]]):
    async def check_lookups(home: Path) -> None:
        store = FileStore(home, fixed_clock())
        session = await store.create(new_session())
        for new_entries in runs:
            await append_entries(store, session, *new_entries)
            expected = await find_in_other_store(store, session)
            assert await store.find(session.id) == expected
            assert await store.find(f"{session.path}/session.md") == expected
            assert await store.find(session.path) == expected
        store.close()

    with TemporaryDirectory() as home:
        asyncio.run(check_lookups(Path(home)))


async def test_a_lookup_sees_an_edit_by_another_program_after_a_write_of_its_own(
    store: FileStore, session: Session
):
    path = Path(session.path) / "session.md"
    await append_entries(store, session, Message(id="a1", role="agent", text="Here it is."))
    for ref in (session.id, str(path), session.path):
        assert (await store.find(ref)).last_snippet == "Here it is."
    path.write_text(path.read_text().replace("Here it is.", "Nowhere yet"))
    for ref in (session.id, str(path), session.path):
        assert (await store.find(ref)).last_snippet == "Nowhere yet"


async def test_a_lookup_sees_a_name_that_another_process_set(store: FileStore, session: Session):
    await append_entries(store, session, Message(id="a1", role="agent", text="Here it is."))
    assert (await store.find(session.path)).name is None
    other = FileStore(store.root, fixed_clock())
    await other.update(session, name="the search")
    other.close()
    for ref in (session.id, session.path):
        assert (await store.find(ref)).name == "the search"


async def test_a_lookup_by_path_follows_changed_links_and_moved_folders(
    store: FileStore, session: Session, tmp_path: Path
):
    """A link may change its target, and a folder may be moved away."""
    second = await store.create(new_session())
    for number, each in enumerate((session, second)):
        await append_entries(store, each, Message(id=f"a{number}", role="agent", text="Said."))
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


async def test_a_lookup_by_path_finds_a_session_that_replaced_another(store: FileStore, session: Session):
    second = await store.create(new_session())
    assert (await store.find(session.path)).id == session.id
    first, other = Path(session.path).parents[1], Path(second.path).parents[1]
    first.rename(first.with_name("away"))
    other.rename(first)
    assert (await store.find(session.path)).id == second.id


async def test_an_append_goes_to_a_file_that_was_replaced_by_rename(store: FileStore, session: Session):
    """The file stays open between entries, so each append checks which file has the name."""
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


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_open_conversations_share_a_limited_number_of_open_files(store: FileStore):
    sessions = [await store.create(new_session()) for _ in range(70)]
    openings = [store.open(each) for each in sessions]
    conversations = [await each.__aenter__() for each in openings]
    before = count_open_files()
    for conversation in conversations:
        await conversation.append(Message(id="u1", role="user", text="Find it."))
    assert count_open_files() < before + 40
    for each in openings:
        await each.__aexit__(None, None, None)
    assert [len((await store.read_entries(each))[0]) for each in sessions] == [1] * 70
