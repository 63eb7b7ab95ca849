"""The session index: a list reuses it only for folders that have not changed since."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from new_session import new_session

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.errors import NotFound
from retinue.sessions.list_cache import STAMP_SETTLE_NS
from retinue.sessions.lookup import SessionLookup
from retinue.sessions.store import FileStore
from retinue.storage.file_io import file_stamp
from retinue.worker.clock import system_clock

SESSION_COUNT = 70
"""Enough sessions for an index to be written."""

LIST_PROGRAM = """
import asyncio, sys
from pathlib import Path
from retinue.worker.clock import system_clock
from retinue.sessions.store import FileStore

read = []
sys.addaudithook(lambda event, args: read.append(str(args[0])) if event == "open" else None)
found = asyncio.run(FileStore(Path(sys.argv[1]), system_clock()).sessions())
print(len(found), sum(path.endswith(("session.md", "session.json", "scope-plan.yml")) for path in read))
"""


def describe_session(agent: str = "general", **fields: Any) -> NewSession:
    attributes = {"a": [1, 2.5, None, {"b": "c"}]}
    workspace = Workspace(root="/w", label="x")
    return new_session(
        agent, preset_text="P\n", preset_hash="h", workspace=workspace, attributes=attributes, **fields
    )


async def append_message(store: FileStore, session: Session, text: str) -> None:
    async with store.open(session) as conversation:
        await conversation.append(Message(id=f"id-{text}", role="agent", text=text))


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """The root of a store with sessions, one of them with a child, one with a branch, and an index of them all."""
    root_dir = tmp_path / "sessions"
    store = FileStore(root_dir, system_clock())
    tops = [await store.create(describe_session(f"a{number:02}")) for number in range(SESSION_COUNT)]
    await store.create(describe_session(parent=tops[0], description="first"))
    await append_message(store, tops[1], "before")
    await store.branch(tops[1], name="other")
    store.close()
    wait_for_stable_stamps(root_dir)
    assert len(await list_sessions(root_dir)) == SESSION_COUNT + 2
    return root_dir


def wait_for_stable_stamps(root: Path) -> None:
    """Wait until the last change is old enough for its stamps to be reused."""
    newest = max(path.lstat().st_ctime_ns for path in root.rglob("*"))
    while time.time_ns() <= newest + STAMP_SETTLE_NS:
        os.sched_yield()


async def list_sessions(root: Path) -> list[Session]:
    """List the sessions like a new process."""
    store = FileStore(root, system_clock())
    sessions = await store.sessions()
    store.close()
    return sessions


def read_all_sessions(root: Path) -> list[Session]:
    """List the sessions from all of their files, without the index."""
    sessions = SessionLookup(str(root), system_clock().new_uuid).load_all()
    return sorted(sessions, key=lambda each: (each.updated_at, each.id), reverse=True)


def count_opened_files(root: Path) -> tuple[int, int]:
    """Return how many sessions another process lists, and how many of their files it opens."""
    output = subprocess.run(
        [sys.executable, "-c", LIST_PROGRAM, str(root)], capture_output=True, text=True, check=True
    ).stdout
    count, opened = output.split()
    return int(count), int(opened)


def session_folder(root: Path, number: int) -> Path:
    return next(root.glob(f"a{number:02}-*"))


def main_branch(root: Path, number: int) -> Path:
    return session_folder(root, number) / "branches" / "main"


async def test_a_second_list_opens_no_session_file_and_has_the_same_result(root: Path):
    """Shows: P31, A077."""
    assert count_opened_files(root) == (SESSION_COUNT + 2, 0)
    assert await list_sessions(root) == read_all_sessions(root)


def _type_text(root: Path) -> None:
    with (main_branch(root, 1) / "session.md").open("a") as file:
        file.write("\n\n<!-- agent id=mine -->\nTyped in place.\n")


def _save_by_rename(root: Path) -> None:
    fresh = main_branch(root, 2) / "session.md~"
    fresh.write_text("<!-- user id=x -->\nSaved.\n\n<!-- agent id=y -->\nAs editors do.\n")
    fresh.rename(main_branch(root, 2) / "session.md")


def _replace_record(root: Path) -> None:
    record = main_branch(root, 3) / "session.json"
    fresh = record.with_suffix(".new")
    fresh.write_text(json.dumps(json.loads(record.read_text()) | {"name": "Renamed"}))
    fresh.rename(record)


def _write_record_in_place(root: Path) -> None:
    record = main_branch(root, 13) / "session.json"
    record.write_text(record.read_text().replace('"name": null', '"name": "In place"'))


def _write_plan_in_place(root: Path) -> None:
    plan = main_branch(root, 14) / "scope-plan.yml"
    plan.write_text(plan.read_text().replace('"a14"', '"changed"'))


def _remove_conversation(root: Path) -> None:
    (main_branch(root, 4) / "session.md").unlink()


def _remove_folder(root: Path) -> None:
    shutil.rmtree(session_folder(root, 5))


def _rename_folder(root: Path) -> None:
    session_folder(root, 6).rename(root / "moved")


def _copy_folder(root: Path) -> None:
    shutil.copytree(session_folder(root, 7), root / "copied", symlinks=True)


def _swap_folders(root: Path) -> None:
    one, two, aside = session_folder(root, 8), session_folder(root, 9), root.parent / "aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def _copy_child_into_session_without_children(root: Path) -> None:
    child = next((main_branch(root, 0) / "agents").iterdir())
    shutil.copytree(child, main_branch(root, 10) / "agents" / child.name)


def _copy_child_into_session_with_children(root: Path) -> None:
    child = next((main_branch(root, 0) / "agents").iterdir())
    shutil.copytree(child, child.with_name("second"))


def _copy_grandchild(root: Path) -> None:
    child = next((main_branch(root, 0) / "agents").iterdir())
    shutil.copytree(main_branch(root, 11), child / "agents" / "grandchild")


def _remove_children(root: Path) -> None:
    shutil.rmtree(main_branch(root, 0) / "agents")


def _copy_branch(root: Path) -> None:
    shutil.copytree(main_branch(root, 12), main_branch(root, 12).with_name("by-hand"))


def _remove_branch(root: Path) -> None:
    for branch in (session_folder(root, 1) / "branches").glob("*-other"):
        shutil.rmtree(branch)


@pytest.mark.parametrize(
    "change",
    [
        _type_text, _save_by_rename, _replace_record, _write_record_in_place, _write_plan_in_place, _remove_conversation, _remove_folder, _rename_folder,
        _copy_folder, _swap_folders, _copy_child_into_session_without_children, _copy_child_into_session_with_children, _copy_grandchild,
        _remove_children, _copy_branch, _remove_branch,
    ],
    ids=lambda change: change.__name__.strip("_"),
)  # fmt: skip
async def test_the_next_list_shows_every_manual_change_of_the_folders(
    root: Path, change: Callable[[Path], None]
):
    """Shows: A077, P31."""
    before = await list_sessions(root)
    change(root)
    after = await list_sessions(root)
    assert after != before
    assert after == read_all_sessions(root)


async def test_another_process_lists_every_change_made_by_a_store(root: Path):
    store = FileStore(root, system_clock())
    sessions = {each.agent: each for each in await store.sessions()}
    await store.update(sessions["a03"], name="Named", pinned_at=sessions["a03"].created_at)
    assert await list_sessions(root) == read_all_sessions(root)
    await append_message(store, sessions["a04"], "words")
    assert (await list_sessions(root))[0].last_snippet == "words"
    await store.create(describe_session(parent=sessions["a05"], description="child"))
    assert len(await list_sessions(root)) == SESSION_COUNT + 3
    await store.clear(sessions["a04"])
    await store.delete(sessions["a06"])
    store.close()
    assert len(await list_sessions(root)) == SESSION_COUNT + 2
    assert await list_sessions(root) == read_all_sessions(root)


@pytest.mark.parametrize(
    ("name", "before", "field"),
    [("session.json", '"h"', "preset_hash"), ("scope-plan.yml", '"a20"', "agent")],
)
async def test_finding_one_session_reads_fields_that_a_list_takes_from_the_index(
    root: Path, name: str, before: str, field: str
):
    """Shows: A077."""
    path = main_branch(root, 20) / name
    path.write_text(path.read_text().replace(before, '"changed"'))
    session = json.loads((main_branch(root, 20) / "session.json").read_text())
    for ref in (session["id"], session["slug"], session["id"][:-1], str(path.parent)):
        store = FileStore(root, system_clock())
        await store.sessions()
        assert getattr(await store.find(ref), field) == "changed"
        store.close()


async def test_a_session_is_found_by_a_name_written_into_its_record(root: Path):
    record = main_branch(root, 20) / "session.json"
    record.write_text(record.read_text().replace('"name": null', '"name": "By hand"'))
    store = FileStore(root, system_clock())
    assert (await store.find("by hand")).path == str(record.parent)
    with pytest.raises(NotFound):
        await store.find("by nobody")
    store.close()


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, b"other", None])
async def test_a_damaged_index_is_ignored_and_written_again(root: Path, damage: bytes | None):
    """Shows: P31, A077."""
    path = root / ".index"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert await list_sessions(root) == read_all_sessions(root)
    assert path.read_bytes() == whole


async def test_an_index_with_a_changed_byte_is_not_used(root: Path):
    whole = (root / ".index").read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        (root / ".index").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert await list_sessions(root) == read_all_sessions(root)


async def test_the_index_of_a_moved_home_is_not_used(root: Path):
    moved = root.with_name("elsewhere")
    root.rename(moved)
    sessions = await list_sessions(moved)
    assert sessions == read_all_sessions(moved)
    assert {Path(each.path).is_relative_to(moved) for each in sessions} == {True}


async def test_a_deleted_index_is_written_again_by_the_next_list(root: Path):
    """Shows: A077."""
    (root / ".index").unlink()
    assert len(await list_sessions(root)) == SESSION_COUNT + 2
    assert count_opened_files(root) == (SESSION_COUNT + 2, 0)


async def test_text_of_a_removed_session_is_removed_from_the_index(root: Path):
    text = b"before"
    assert text in (root / ".index").read_bytes()
    shutil.rmtree(session_folder(root, 1))
    await list_sessions(root)
    assert text not in (root / ".index").read_bytes()


async def test_a_few_changes_do_not_rewrite_the_index(root: Path):
    before = file_stamp(str(root / ".index"))
    assert before is not None
    _type_text(root)
    await list_sessions(root)
    assert file_stamp(str(root / ".index")) == before


async def test_no_index_is_written_for_few_sessions(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", system_clock())
    await store.create(describe_session())
    wait_for_stable_stamps(tmp_path)
    assert len(await store.sessions()) == 1
    store.close()
    assert not (tmp_path / "sessions" / ".index").exists()


async def test_a_change_right_after_a_list_is_seen_however_coarse_the_clock_is(tmp_path: Path):
    """Two changes within one tick of the kernel's clock have the same stamp."""
    store = FileStore(tmp_path / "sessions", system_clock())
    parent = await store.create(describe_session())
    for count in range(200):
        await store.create(describe_session(parent=parent, description=str(count)))
        assert len(await store.sessions()) == count + 2
    store.close()


async def test_a_list_works_if_the_index_cannot_be_written(root: Path):
    (root / ".index").unlink()
    shutil.rmtree(root / ".staging")
    (root / ".staging").write_text("in the way")
    assert await list_sessions(root) == read_all_sessions(root)
    assert not (root / ".index").exists()


async def test_a_folder_name_that_is_not_valid_utf_8_is_listed_every_time(root: Path):
    shutil.copytree(session_folder(root, 3), root / os.fsdecode(b"\xff-20261115184207"), symlinks=True)
    (root / ".index").unlink()
    wait_for_stable_stamps(root)
    for _ in range(2):
        assert await list_sessions(root) == read_all_sessions(root)
    assert (root / ".index").exists()
