"""The sweep: a start removes old leftovers of interrupted operations, a few at a time, and nothing else."""

import os
import time
from pathlib import Path

from new_session import new_session

import retinue
from retinue.config.load import load_config
from retinue.domain.session import Session
from retinue.sessions.store import FileStore

DAY_S = 24 * 3600
TOKEN = "01941f29-7c00-7000-8000-000000000001"
OLD_DELETED_NAME = "x-20260101000000.deleted.20260102000000"


def set_age(path: Path, seconds: float) -> Path:
    mtime = time.time() - seconds
    os.utime(path, (mtime, mtime), follow_symlinks=False)
    return path


def expire_last_sweep(store: FileStore) -> None:
    set_age(store.root / ".swept", DAY_S + 1)


def create_old_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "session.md").touch()
    return set_age(path, 2 * 3600)


def list_paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")} - {".swept"}


async def create_parent_and_child(store: FileStore) -> tuple[Session, Session]:
    parent = await store.create(new_session())
    return parent, await store.create(new_session("explorer", parent=parent, description="x"))


async def test_leftovers_older_than_an_hour_are_removed_from_every_folder(store: FileStore):
    """Shows: P32."""
    parent, child = await create_parent_and_child(store)
    session_folder, child_folder = Path(parent.path).parents[1], Path(child.path)
    before = list_paths(store.root)
    leftover_folders = [
        create_old_folder(store.root / ".staging" / f".new-{TOKEN}"),
        create_old_folder(store.root / f".new-{TOKEN}"),
        create_old_folder(session_folder / "branches" / f".new-{TOKEN}"),
        create_old_folder(Path(parent.path) / "agents" / f".new-{TOKEN}"),
    ]
    leftover_files = [
        store.root / ".staging" / TOKEN,
        session_folder / f".current-{TOKEN}",
        Path(parent.path) / f".session.json.{TOKEN}",
        child_folder / f".scope-plan.yml.{TOKEN}",
        child_folder / ".session.md.torn-20261115184207",
    ]
    for path in leftover_files:
        path.write_text("half")
        set_age(path, 2 * 3600)
    assert sorted(store.sweep()) == sorted(map(str, leftover_folders + leftover_files))
    assert list_paths(store.root) == before


async def test_recent_temporary_folders_are_kept(store: FileStore):
    """Shows: P32."""
    parent, _ = await create_parent_and_child(store)
    for folder in (store.root / ".staging", Path(parent.path) / "agents"):
        set_age(create_old_folder(folder / f".new-{TOKEN}"), 60)
    before = list_paths(store.root)
    assert store.sweep() == []
    assert list_paths(store.root) == before


async def test_other_files_in_a_session_folder_are_kept(store: FileStore):
    parent, child = await create_parent_and_child(store)
    for path in (
        Path(parent.path) / "notes" / f".new-{TOKEN}",
        Path(child.path) / "work" / "agents" / OLD_DELETED_NAME,
        Path(child.path) / ".git",
    ):
        create_old_folder(path)
    for name in (".session.md.swp", ".hidden", "session.md.torn-20260101000000", "session.json.bak"):
        (Path(parent.path) / name).write_text("mine")
        set_age(Path(parent.path) / name, 90 * DAY_S)
    before = list_paths(store.root)
    assert store.sweep() == []
    assert list_paths(store.root) == before


async def test_a_deleted_session_is_removed_after_thirty_days(store: FileStore):
    parent, child = await create_parent_and_child(store)
    expired = [
        create_old_folder(store.root / OLD_DELETED_NAME),
        create_old_folder(Path(child.path).parent / OLD_DELETED_NAME),
    ]
    recent = Path(await store.delete(child))
    assert sorted(store.sweep()) == sorted(map(str, expired))
    assert (recent / "session.md").exists()
    assert await store.sessions() == [await store.find(parent.id)]


async def test_a_sweep_runs_once_a_day(store: FileStore):
    """Shows: P32."""
    await create_parent_and_child(store)
    assert store.sweep() == []
    leftover = create_old_folder(store.root / ".staging" / f".new-{TOKEN}")
    assert store.sweep() == []
    expire_last_sweep(store)
    assert store.sweep() == [str(leftover)]


async def test_a_clock_that_was_set_back_does_not_stop_sweeps(store: FileStore):
    await create_parent_and_child(store)
    store.sweep()
    set_age(store.root / ".swept", -10 * DAY_S)
    leftover = create_old_folder(store.root / ".staging" / f".new-{TOKEN}")
    assert store.sweep() == [str(leftover)]


async def test_each_sweep_checks_a_limited_number_of_sessions(store: FileStore):
    for number in range(700):
        (store.root / f"x{number:03}" / "branches").mkdir(parents=True)
    leftover_folders = [
        str(create_old_folder(store.root / f"x{number}" / "branches" / f".new-{TOKEN}"))
        for number in ("000", "299", "300", "650")
    ]
    for expected in (leftover_folders[:2], leftover_folders[2:3], leftover_folders[3:], []):
        assert store.sweep() == expected
        expire_last_sweep(store)


async def test_a_sweep_without_a_sessions_folder_creates_nothing(store: FileStore):
    assert store.sweep() == []
    assert not store.root.exists()


async def test_opening_the_app_sweeps(tmp_path: Path):
    """Shows: P32."""
    config = load_config({"RETINUE_HOME": str(tmp_path / "home"), "RETINUE_CONFIG": str(tmp_path / "config")})
    leftover = create_old_folder(tmp_path / "home" / "sessions" / ".staging" / f".new-{TOKEN}")
    async with retinue.open(config=config) as app:
        assert not leftover.exists()
        assert await app.sessions.list() == []
