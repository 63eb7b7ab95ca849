"""Leftovers: removed at a start once they are old, a little at a time, and nothing else with them."""

import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.load import load_config
from retinue.domain.session import NewSession, Session
from retinue.domain.workspace import Workspace
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

DAY = 24 * 3600
TOKEN = "01941f29-7c00-7000-8000-000000000001"
LONG_AGO = "x-20260101000000.deleted.20260102000000"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


def new(agent: str = "general", **facts: Any) -> NewSession:
    return NewSession(
        agent=agent, preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/w"), **facts
    )


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def a_day_later(store: FileStore) -> None:
    aged(store.root / ".swept", DAY + 1)


def made(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "session.md").touch()
    return aged(path, 2 * 3600)


def held(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")} - {".swept"}


async def family(store: FileStore) -> tuple[Session, Session]:
    parent = await store.create(new())
    return parent, await store.create(new("explorer", parent=parent, description="x"))


async def test_whatever_was_left_half_done_an_hour_ago_is_removed_wherever_it_lies(store: FileStore):
    """Shows: P32."""
    parent, child = await family(store)
    top, inside = Path(parent.path).parents[1], Path(child.path)
    before = held(store.root)
    halves = [
        made(store.root / ".staging" / f".new-{TOKEN}"),
        made(store.root / f".new-{TOKEN}"),
        made(top / "branches" / f".new-{TOKEN}"),
        made(Path(parent.path) / "agents" / f".new-{TOKEN}"),
    ]
    files = [
        store.root / ".staging" / TOKEN,
        top / f".current-{TOKEN}",
        Path(parent.path) / f".session.json.{TOKEN}",
        inside / f".scope-plan.yml.{TOKEN}",
        inside / ".session.md.torn-20261115184207",
    ]
    for path in files:
        path.write_text("half")
        aged(path, 2 * 3600)
    assert sorted(store.sweep()) == sorted(map(str, halves + files))
    assert held(store.root) == before


async def test_what_is_being_built_is_left_alone(store: FileStore):
    """Shows: P32."""
    parent, _ = await family(store)
    for place in (store.root / ".staging", Path(parent.path) / "agents"):
        aged(made(place / f".new-{TOKEN}"), 60)
    before = held(store.root)
    assert store.sweep() == []
    assert held(store.root) == before


async def test_what_others_put_into_a_sessions_folder_is_theirs(store: FileStore):
    parent, child = await family(store)
    for path in (
        Path(parent.path) / "notes" / f".new-{TOKEN}",
        Path(child.path) / "work" / "agents" / LONG_AGO,
        Path(child.path) / ".git",
    ):
        made(path)
    for name in (".session.md.swp", ".hidden", "session.md.torn-20260101000000", "session.json.bak"):
        (Path(parent.path) / name).write_text("mine")
        aged(Path(parent.path) / name, 90 * DAY)
    before = held(store.root)
    assert store.sweep() == []
    assert held(store.root) == before


async def test_a_deleted_session_is_removed_after_thirty_days(store: FileStore):
    parent, child = await family(store)
    old = [made(store.root / LONG_AGO), made(Path(child.path).parent / LONG_AGO)]
    fresh = Path(await store.delete(child))
    assert sorted(store.sweep()) == sorted(map(str, old))
    assert (fresh / "session.md").exists()
    assert await store.sessions() == [await store.find(parent.id)]


async def test_a_sweep_is_made_once_a_day(store: FileStore):
    """Shows: P32."""
    await family(store)
    assert store.sweep() == []
    half = made(store.root / ".staging" / f".new-{TOKEN}")
    assert store.sweep() == []
    a_day_later(store)
    assert store.sweep() == [str(half)]


async def test_a_clock_that_was_set_back_does_not_end_the_sweeping(store: FileStore):
    await family(store)
    store.sweep()
    aged(store.root / ".swept", -10 * DAY)
    half = made(store.root / ".staging" / f".new-{TOKEN}")
    assert store.sweep() == [str(half)]


async def test_many_sessions_are_looked_through_in_turns(store: FileStore):
    for number in range(700):
        (store.root / f"x{number:03}" / "branches").mkdir(parents=True)
    halves = [
        str(made(store.root / f"x{number}" / "branches" / f".new-{TOKEN}"))
        for number in ("000", "299", "300", "650")
    ]
    for expected in (halves[:2], halves[2:3], halves[3:], []):
        assert store.sweep() == expected
        a_day_later(store)


async def test_nothing_is_swept_and_nothing_made_where_there_are_no_sessions(store: FileStore):
    assert store.sweep() == []
    assert not store.root.exists()


async def test_a_start_sweeps(tmp_path: Path):
    """Shows: P32."""
    config = load_config({"RETINUE_HOME": str(tmp_path / "home"), "RETINUE_CONFIG": str(tmp_path / "config")})
    half = made(tmp_path / "home" / "sessions" / ".staging" / f".new-{TOKEN}")
    async with retinue.open(config=config) as app:
        assert not half.exists()
        assert await app.sessions.list() == []
