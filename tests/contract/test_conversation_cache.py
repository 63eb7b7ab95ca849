"""The conversation cache: a reopened conversation equals its file, and a stale cache entry is not used."""

import asyncio
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from new_session import new_session

from retinue.domain.run import Usage
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import Failed, Unreadable
from retinue.sessions.store import FileStore
from retinue.sessions.window import WINDOW_BYTES
from retinue.testing.fixed_clock import fixed_clock

PROMPT = Message(id="u1", role="user", text="Find it.")
ANSWER = Message(id="a1", role="agent", text="Here it is.")

words = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
random_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Message, id=st.uuids().map(str), role=st.just("user"), text=words, origin=words, run=words),
    st.builds(
        Message,
        id=st.uuids().map(str),
        role=st.just("agent"),
        text=words,
        model=words,
        usage=st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9)),
        stop_reason=words,
        provider_data=st.lists(words, max_size=2).map(tuple),
    ),
    st.builds(ToolCall, id=st.uuids().map(str), tool=st.just("read"), args=words, invalid_reason=words),
    st.builds(
        ToolResult, call_id=st.uuids().map(str), text=words, ok=st.booleans(), duration_ms=st.integers(0, 9)
    ),
    st.builds(Notice, id=st.uuids().map(str), topic=st.just("x"), text=words),
)


async def append_entries(store: FileStore, session: Session, *entries: Entry) -> list[Entry]:
    """Append entries as a run does, and return the entries from before."""
    async with store.open(session) as conversation:
        entries_before = conversation.entries.copy()
        await conversation.append(*entries)
        await conversation.write_idle_prompt()
    return entries_before


async def reopen(store: FileStore, session: Session) -> tuple[list[Entry], object]:
    """Return the entries and the provider cache, whose identity shows whether the conversation was cached."""
    async with store.open(session) as conversation:
        return conversation.entries.copy(), conversation.provider_cache


def message_texts(entries: list[Entry]) -> list[str]:
    return [entry.text.strip() for entry in entries if isinstance(entry, Message)]


@given(
    st.lists(st.lists(random_entries, min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from((WINDOW_BYTES, 1_000, 300)),
)
@settings(max_examples=30, deadline=None)
def test_a_cached_conversation_equals_what_another_process_reads(runs: list[list[Entry]], window: int):
    """This also holds if the conversation is a window of the file, and if that window moves."""

    async def compare(home: Path) -> None:
        store = FileStore(home, fixed_clock(), window=window)
        other = FileStore(home, fixed_clock(), window=window)
        session = await store.create(new_session())
        for entries in runs:
            await append_entries(store, session, *entries)
            cached, _ = await reopen(store, session)
            fresh, _ = await reopen(other, session)
            assert cached == fresh
        store.close()
        other.close()

    with TemporaryDirectory() as home:
        asyncio.run(compare(Path(home)))


async def test_an_unchanged_file_is_not_read_again(store: FileStore, session: Session):
    await append_entries(store, session, PROMPT, ANSWER)
    _, provider_cache = await reopen(store, session)
    entries, second_cache = await reopen(store, session)
    assert second_cache is provider_cache
    assert entries == [PROMPT, ANSWER]


@pytest.mark.parametrize("by_rename", [True, False])
async def test_an_edit_between_two_runs_changes_the_conversation(
    store: FileStore, session: Session, by_rename: bool
):
    """Shows: A040."""
    await append_entries(store, session, PROMPT, ANSWER)
    path = Path(session.path) / "session.md"
    target = path.with_name("4913") if by_rename else path
    target.write_text(path.read_text().replace("Here it is.", "Nowhere yet"))
    target.replace(path)
    entries_before = await append_entries(store, session, Notice(id="n1", topic="x", text="on"))
    assert message_texts(entries_before) == ["Find it.", "Nowhere yet"]
    assert "Nowhere yet" in path.read_text()


async def test_entries_that_another_process_added_are_seen(store: FileStore, session: Session):
    await append_entries(store, session, PROMPT)
    other = FileStore(store.root, fixed_clock())
    await append_entries(other, session, ANSWER)
    other.close()
    assert (await reopen(store, session))[0] == [PROMPT, ANSWER]


async def test_typed_text_becomes_an_entry_once(store: FileStore, session: Session):
    await append_entries(store, session, PROMPT, ANSWER)
    path = Path(session.path) / "session.md"
    with path.open("a") as file:
        file.write("And then?\n")
    async with store.open(session) as conversation:
        assert conversation.typed_text().strip() == "And then?"
        await conversation.save_typed_text(Message(id="u2", role="user", text="And then?", run="r2"))
        await conversation.append(Message(id="a2", role="agent", text="Nothing."))
        await conversation.write_idle_prompt()
    cached, _ = await reopen(store, session)
    other = FileStore(store.root, fixed_clock())
    assert cached == (await reopen(other, session))[0]
    other.close()
    assert message_texts(cached) == ["Find it.", "Here it is.", "And then?", "Nothing."]


async def test_a_folder_that_was_replaced_by_a_copy_is_read_again(store: FileStore, session: Session):
    await append_entries(store, session, PROMPT, ANSWER)
    folder = Path(session.path)
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    (folder / "session.md").write_text("<!-- user id=\n")
    with pytest.raises(Unreadable):
        await reopen(store, session)


async def test_a_closed_conversation_stays_closed_when_the_session_is_opened_again(
    store: FileStore, session: Session
):
    await append_entries(store, session, PROMPT)
    async with store.open(session) as closed:
        pass
    async with store.open(session) as conversation:
        with pytest.raises(Failed, match="not open any more"):
            await closed.append(ANSWER)
        assert conversation.entries == [PROMPT]


async def test_an_entry_list_does_not_grow_in_a_later_run(store: FileStore, session: Session):
    await append_entries(store, session, PROMPT)
    async with store.open(session) as conversation:
        entries = conversation.entries
    await append_entries(store, session, ANSWER)
    assert entries == [PROMPT]


async def test_only_the_most_recent_conversations_are_cached(store: FileStore):
    first = await store.create(new_session())
    await append_entries(store, first, PROMPT)
    _, provider_cache = await reopen(store, first)
    for number in range(65):
        await append_entries(
            store, await store.create(new_session()), Message(id=f"u{number}", role="user", text="x")
        )
    entries, second_cache = await reopen(store, first)
    assert second_cache is not provider_cache
    assert entries == [PROMPT]


async def test_the_cache_holds_long_conversations_up_to_one_window(tmp_path: Path):
    """Shows: P31."""
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=5 << 20)
    first, second, short = [await store.create(new_session()) for _ in range(3)]
    await append_entries(store, short, PROMPT)
    _, short_cache = await reopen(store, short)
    await append_entries(store, first, Message(id="u1", role="user", text="x" * (3 << 20)))
    _, first_cache = await reopen(store, first)
    assert (await reopen(store, first))[1] is first_cache
    await append_entries(store, second, Message(id="u1", role="user", text="x" * (3 << 20)))
    _, second_cache = await reopen(store, second)
    assert (await reopen(store, second))[1] is second_cache
    assert (await reopen(store, first))[1] is not first_cache
    assert (await reopen(store, short))[1] is short_cache
    store.close()


async def test_an_exchange_longer_than_the_window_is_not_cached(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=1_000)
    session = await store.create(new_session())
    await append_entries(store, session, Message(id="u1", role="user", text="x" * 3_000))
    _, provider_cache = await reopen(store, session)
    assert (await reopen(store, session))[1] is not provider_cache
    store.close()


async def test_a_window_is_cached_until_it_moves(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=4_000)
    session = await store.create(new_session())
    for number in range(40):
        await append_entries(store, session, Message(id=f"u{number}", role="user", text="x" * 100))
        await append_entries(store, session, Message(id=f"a{number}", role="agent", text="y" * 100))
    first_ids: list[str] = []
    provider_caches: list[object] = []
    for number in range(20):
        async with store.open(session) as conversation:
            assert conversation.is_truncated
            provider_caches.append(conversation.provider_cache)
            first_ids.append(conversation.entries[0].id)
            await conversation.append(Message(id=f"b{number}", role="agent", text="z" * 50))
            await conversation.write_idle_prompt()
    window_starts = set(first_ids)
    assert 1 < len(window_starts) < len(first_ids) / 2
    assert len({id(provider_cache) for provider_cache in provider_caches}) == len(window_starts)
    store.close()
