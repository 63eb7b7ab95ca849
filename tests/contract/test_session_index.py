"""Lists at a glance: what the last list found is believed as far as the folders still look the same, and no further."""

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

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.errors import NotFound
from retinue.sessions.list_cache import STAMP_SETTLE_NS
from retinue.sessions.lookup import SessionLookup
from retinue.sessions.store import FileStore
from retinue.storage.file_io import file_stamp
from retinue.worker.clock import system_clock

TOPS = 70
"""Enough that an index is worth writing."""

LISTER = """
import asyncio, sys
from pathlib import Path
from retinue.worker.clock import system_clock
from retinue.sessions.store import FileStore

read = []
sys.addaudithook(lambda event, args: read.append(str(args[0])) if event == "open" else None)
found = asyncio.run(FileStore(Path(sys.argv[1]), system_clock()).sessions())
print(len(found), sum(path.endswith(("session.md", "session.json", "scope-plan.yml")) for path in read))
"""


def new(agent: str = "general", **facts: Any) -> NewSession:
    attributes = {"a": [1, 2.5, None, {"b": "c"}]}
    workspace = Workspace(root="/w", label="x")
    return NewSession(
        agent=agent, preset_text="P\n", preset_hash="h", workspace=workspace, attributes=attributes, **facts
    )


async def say(store: FileStore, session: Session, text: str) -> None:
    async with store.open(session) as conversation:
        await conversation.append(Message(id=f"id-{text}", role="agent", text=text))


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """Sessions, the first with a child, the second with a branch, and an index of them all."""
    place = tmp_path / "sessions"
    store = FileStore(place, system_clock())
    tops = [await store.create(new(f"a{number:02}")) for number in range(TOPS)]
    await store.create(new(parent=tops[0], description="first"))
    await say(store, tops[1], "before")
    await store.branch(tops[1], name="other")
    store.close()
    settle(place)
    assert len(await listed(place)) == TOPS + 2
    return place


def settle(root: Path) -> None:
    """Until the clock has moved on from the last change: what was seen later than that is believed."""
    newest = max(path.lstat().st_ctime_ns for path in root.rglob("*"))
    while time.time_ns() <= newest + STAMP_SETTLE_NS:
        os.sched_yield()


async def listed(root: Path) -> list[Session]:
    """As a new process lists them."""
    store = FileStore(root, system_clock())
    found = await store.sessions()
    store.close()
    return found


def read(root: Path) -> list[Session]:
    """As all of their files say, without any index."""
    found = SessionLookup(str(root), system_clock().new_uuid).load_all()
    return sorted(found, key=lambda each: (each.updated_at, each.id), reverse=True)


def looked_into(root: Path) -> tuple[int, int]:
    """How many sessions another process lists, and how many of their files it opens for that."""
    told = subprocess.run(
        [sys.executable, "-c", LISTER, str(root)], capture_output=True, text=True, check=True
    ).stdout
    count, opened = told.split()
    return int(count), int(opened)


def top(root: Path, number: int) -> Path:
    return next(root.glob(f"a{number:02}-*"))


def main(root: Path, number: int) -> Path:
    return top(root, number) / "branches" / "main"


async def test_a_second_list_opens_no_session_and_says_the_same(root: Path):
    """Shows: P31, A077."""
    assert looked_into(root) == (TOPS + 2, 0)
    assert await listed(root) == read(root)


def _typed(root: Path) -> None:
    with (main(root, 1) / "session.md").open("a") as file:
        file.write("\n\n<!-- agent id=mine -->\nTyped in place.\n")


def _saved_by_rename(root: Path) -> None:
    fresh = main(root, 2) / "session.md~"
    fresh.write_text("<!-- user id=x -->\nSaved.\n\n<!-- agent id=y -->\nAs editors do.\n")
    fresh.rename(main(root, 2) / "session.md")


def _facts_replaced(root: Path) -> None:
    facts = main(root, 3) / "session.json"
    fresh = facts.with_suffix(".new")
    fresh.write_text(json.dumps(json.loads(facts.read_text()) | {"name": "Renamed"}))
    fresh.rename(facts)


def _conversation_removed(root: Path) -> None:
    (main(root, 4) / "session.md").unlink()


def _folder_removed(root: Path) -> None:
    shutil.rmtree(top(root, 5))


def _folder_renamed(root: Path) -> None:
    top(root, 6).rename(root / "moved")


def _folder_copied(root: Path) -> None:
    shutil.copytree(top(root, 7), root / "copied", symlinks=True)


def _folder_swapped(root: Path) -> None:
    one, two, aside = top(root, 8), top(root, 9), root.parent / "aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def _first_child_copied_in(root: Path) -> None:
    child = next((main(root, 0) / "agents").iterdir())
    shutil.copytree(child, main(root, 10) / "agents" / child.name)


def _next_child_copied_in(root: Path) -> None:
    child = next((main(root, 0) / "agents").iterdir())
    shutil.copytree(child, child.with_name("second"))


def _grandchild_copied_in(root: Path) -> None:
    child = next((main(root, 0) / "agents").iterdir())
    shutil.copytree(main(root, 11), child / "agents" / "grandchild")


def _child_removed(root: Path) -> None:
    shutil.rmtree(main(root, 0) / "agents")


def _branch_copied(root: Path) -> None:
    shutil.copytree(main(root, 12), main(root, 12).with_name("by-hand"))


def _branch_removed(root: Path) -> None:
    for branch in (top(root, 1) / "branches").glob("*-other"):
        shutil.rmtree(branch)


@pytest.mark.parametrize(
    "change",
    [
        _typed, _saved_by_rename, _facts_replaced, _conversation_removed, _folder_removed, _folder_renamed,
        _folder_copied, _folder_swapped, _first_child_copied_in, _next_child_copied_in, _grandchild_copied_in,
        _child_removed, _branch_copied, _branch_removed,
    ],
    ids=lambda change: change.__name__.strip("_"),
)  # fmt: skip
async def test_what_a_person_does_to_the_folders_is_in_the_next_list(
    root: Path, change: Callable[[Path], None]
):
    """Shows: A077, P31."""
    before = await listed(root)
    change(root)
    after = await listed(root)
    assert after != before
    assert after == read(root)


async def test_what_the_store_does_is_in_the_next_list_of_another_process(root: Path):
    store = FileStore(root, system_clock())
    found = {each.agent: each for each in await store.sessions()}
    await store.update(found["a03"], name="Named", pinned_at=found["a03"].created_at)
    assert await listed(root) == read(root)
    await say(store, found["a04"], "words")
    assert (await listed(root))[0].last_snippet == "words"
    await store.create(new(parent=found["a05"], description="child"))
    assert len(await listed(root)) == TOPS + 3
    await store.clear(found["a04"])
    await store.delete(found["a06"])
    store.close()
    assert len(await listed(root)) == TOPS + 2
    assert await listed(root) == read(root)


@pytest.mark.parametrize(
    ("name", "before", "field"),
    [("session.json", '"h"', "preset_hash"), ("scope-plan.yml", '"a20"', "agent")],
)
async def test_what_a_list_does_not_look_at_still_counts_for_the_one_session_that_is_meant(
    root: Path, name: str, before: str, field: str
):
    """Shows: A077."""
    path = main(root, 20) / name
    path.write_text(path.read_text().replace(before, '"changed"'))
    session = json.loads((main(root, 20) / "session.json").read_text())
    for ref in (session["id"], session["slug"], session["id"][:-1], str(path.parent)):
        store = FileStore(root, system_clock())
        await store.sessions()
        assert getattr(await store.find(ref), field) == "changed"
        store.close()


async def test_a_name_written_by_hand_is_found(root: Path):
    facts = main(root, 20) / "session.json"
    facts.write_text(facts.read_text().replace('"name": null', '"name": "By hand"'))
    store = FileStore(root, system_clock())
    assert (await store.find("by hand")).path == str(facts.parent)
    with pytest.raises(NotFound):
        await store.find("by nobody")
    store.close()


@pytest.mark.parametrize("damage", [b"", b"\x00" * 100, b"other", None])
async def test_an_index_that_cannot_be_used_is_passed_over_and_written_anew(root: Path, damage: bytes | None):
    """Shows: P31, A077."""
    path = root / ".index"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert await listed(root) == read(root)
    assert path.read_bytes() == whole


async def test_an_index_with_any_byte_changed_is_not_believed(root: Path):
    whole = (root / ".index").read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        (root / ".index").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert await listed(root) == read(root)


async def test_the_index_of_a_home_that_was_moved_is_not_believed(root: Path):
    moved = root.with_name("elsewhere")
    root.rename(moved)
    found = await listed(moved)
    assert found == read(moved)
    assert {Path(each.path).is_relative_to(moved) for each in found} == {True}


async def test_a_deleted_index_is_written_again_by_the_next_list(root: Path):
    """Shows: A077."""
    (root / ".index").unlink()
    assert len(await listed(root)) == TOPS + 2
    assert looked_into(root) == (TOPS + 2, 0)


async def test_what_is_gone_is_gone_from_the_index_too(root: Path):
    words = b"before"
    assert words in (root / ".index").read_bytes()
    shutil.rmtree(top(root, 1))
    await listed(root)
    assert words not in (root / ".index").read_bytes()


async def test_a_few_changes_do_not_rewrite_the_index(root: Path):
    before = file_stamp(str(root / ".index"))
    assert before is not None
    _typed(root)
    await listed(root)
    assert file_stamp(str(root / ".index")) == before


async def test_few_sessions_need_no_index(tmp_path: Path):
    store = FileStore(tmp_path / "sessions", system_clock())
    await store.create(new())
    settle(tmp_path)
    assert len(await store.sessions()) == 1
    store.close()
    assert not (tmp_path / "sessions" / ".index").exists()


async def test_a_change_right_after_a_list_is_seen_however_coarse_the_clock_is(tmp_path: Path):
    """Two changes within one tick of the kernel's clock leave one stamp."""
    store = FileStore(tmp_path / "sessions", system_clock())
    parent = await store.create(new())
    for count in range(200):
        await store.create(new(parent=parent, description=str(count)))
        assert len(await store.sessions()) == count + 2
    store.close()


async def test_a_list_leaves_an_index_that_cannot_be_written_as_it_is(root: Path):
    (root / ".index").unlink()
    shutil.rmtree(root / ".staging")
    (root / ".staging").write_text("in the way")
    assert await listed(root) == read(root)
    assert not (root / ".index").exists()


async def test_names_that_are_no_text_are_listed_each_time(root: Path):
    shutil.copytree(top(root, 3), root / os.fsdecode(b"\xff-20261115184207"), symlinks=True)
    (root / ".index").unlink()
    settle(root)
    for _ in range(2):
        assert await listed(root) == read(root)
    assert (root / ".index").exists()
