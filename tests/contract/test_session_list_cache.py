"""The cached session list: changes by this process appear at once, and other changes when a fresh list is requested."""

from collections.abc import Generator
from pathlib import Path

import pytest
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Message
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock

MAX_AGE_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Generator[FileStore]:
    store = FileStore(tmp_path, system_clock())
    yield store
    store.close()


@pytest.fixture
def other_store(tmp_path: Path) -> Generator[FileStore]:
    """A second store on the same folder, like that of another process."""
    store = FileStore(tmp_path, system_clock())
    yield store
    store.close()


async def create_session(store: FileStore, name: str) -> Session:
    return await store.create(new_session(name=name))


async def cached_names(store: FileStore) -> set[str | None]:
    return {each.name for each in await store.sessions(max_age_s=MAX_AGE_S)}


async def test_changes_by_this_process_appear_in_its_next_cached_list(store: FileStore):
    one, two = await create_session(store, "one"), await create_session(store, "two")
    assert await cached_names(store) == {"two", "one"}
    async with store.open(one) as conversation:
        await conversation.append(Message(id="a", role="user", text="First words"))
        snippets = {each.name: each.last_snippet for each in await store.sessions(max_age_s=MAX_AGE_S)}
        assert snippets == {"one": "First words", "two": ""}
        await conversation.append(Message(id="b", role="agent", text="Last words"))
        await conversation.write_idle_prompt()
    assert {each.last_snippet for each in await store.sessions(max_age_s=MAX_AGE_S)} == {"Last words", ""}
    await store.update(two, name="zwei")
    assert await cached_names(store) == {"one", "zwei"}
    branch = await store.branch(one, name="side")
    assert branch.id in [each.id for each in await store.sessions(max_age_s=MAX_AGE_S)]
    await store.clear(one)
    assert (
        next(each for each in await store.sessions(max_age_s=MAX_AGE_S) if each.id == one.id).last_snippet
        == ""
    )
    await store.delete(two)
    assert "zwei" not in await cached_names(store)
    await store.restore(two.id)
    assert "zwei" in await cached_names(store)


async def test_sessions_added_or_deleted_elsewhere_appear_at_once_and_renames_in_a_fresh_list(
    store: FileStore, other_store: FileStore
):
    first = await create_session(store, "first")
    assert await cached_names(store) == {"first"}
    second = await create_session(other_store, "second")
    assert await cached_names(store) == {"second", "first"}
    await other_store.update(first, name="erste")
    assert {each.name for each in await store.sessions()} == {"second", "erste"}
    assert await cached_names(store) == {"second", "erste"}
    await other_store.delete(second)
    assert await cached_names(store) == {"erste"}


async def test_an_unchanged_cached_list_has_the_same_sessions(store: FileStore):
    for name in ("a", "b", "c"):
        await create_session(store, name)
    before = await store.sessions()
    cached = await store.sessions(max_age_s=MAX_AGE_S)
    assert [each.id for each in cached] == [each.id for each in before]
    assert await store.sessions(max_age_s=MAX_AGE_S, agent="nobody") == []
    assert len(await store.sessions(max_age_s=MAX_AGE_S, children=False)) == 3
