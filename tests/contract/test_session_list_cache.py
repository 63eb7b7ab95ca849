"""Lists that are asked for again and again: what this process did shows at once, and what others did soon."""

from collections.abc import Generator
from pathlib import Path

import pytest

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock

LONG = 3600.0


@pytest.fixture
def ours(tmp_path: Path) -> Generator[FileStore]:
    store = FileStore(tmp_path, system_clock())
    yield store
    store.close()


@pytest.fixture
def theirs(tmp_path: Path) -> Generator[FileStore]:
    """Another process's, as far as the first can tell."""
    store = FileStore(tmp_path, system_clock())
    yield store
    store.close()


async def made(store: FileStore, name: str) -> Session:
    place = Workspace(root="/")
    return await store.create(
        NewSession(agent="general", preset_text="You help.\n", preset_hash="", workspace=place, name=name)
    )


async def names(store: FileStore) -> set[str | None]:
    return {each.name for each in await store.sessions(max_age_s=LONG)}


async def test_what_this_process_does_to_a_session_shows_in_its_next_list(ours: FileStore):
    one, two = await made(ours, "one"), await made(ours, "two")
    assert await names(ours) == {"two", "one"}
    async with ours.open(one) as talk:
        await talk.append(Message(id="a", role="user", text="First words"))
        listed = {each.name: each.last_snippet for each in await ours.sessions(max_age_s=LONG)}
        assert listed == {"one": "First words", "two": ""}
        await talk.append(Message(id="b", role="agent", text="Last words"))
        await talk.write_idle_prompt()
    assert {each.last_snippet for each in await ours.sessions(max_age_s=LONG)} == {"Last words", ""}
    await ours.update(two, name="zwei")
    assert await names(ours) == {"one", "zwei"}
    branch = await ours.branch(one, name="side")
    assert branch.id in [each.id for each in await ours.sessions(max_age_s=LONG)]
    await ours.clear(one)
    assert next(each for each in await ours.sessions(max_age_s=LONG) if each.id == one.id).last_snippet == ""
    await ours.delete(two)
    assert "zwei" not in await names(ours)
    await ours.restore(two.id)
    assert "zwei" in await names(ours)


async def test_sessions_that_come_and_go_elsewhere_show_at_once_and_the_rest_when_it_is_asked_for(
    ours: FileStore, theirs: FileStore
):
    first = await made(ours, "first")
    assert await names(ours) == {"first"}
    second = await made(theirs, "second")
    assert await names(ours) == {"second", "first"}
    await theirs.update(first, name="erste")
    assert {each.name for each in await ours.sessions()} == {"second", "erste"}
    assert await names(ours) == {"second", "erste"}
    await theirs.delete(second)
    assert await names(ours) == {"erste"}


async def test_a_list_in_which_nothing_changed_is_the_same_values(ours: FileStore):
    for name in ("a", "b", "c"):
        await made(ours, name)
    before = await ours.sessions()
    again = await ours.sessions(max_age_s=LONG)
    assert [each.id for each in again] == [each.id for each in before]
    assert await ours.sessions(max_age_s=LONG, agent="nobody") == []
    assert len(await ours.sessions(max_age_s=LONG, children=False)) == 3
