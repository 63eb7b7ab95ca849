"""Damaged ledgers: they are detected, reported and renamed, and never cause another error."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_file import change_ledger, lock_ledger, write_runs

from retinue.errors import DiskError, NotFound, SessionLocked, Unreadable
from retinue.ledger.repair import damaged_copies, find_damage, find_page_damage, rename_damaged_ledger
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


async def test_a_file_that_is_no_database_is_reported_and_left_unchanged(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"# this is a shopping list\n" * 200)
    async with open_ledger(path) as ledger:
        with pytest.raises(Unreadable, match="retinue doctor") as caught:
            await ledger.write(lambda tx: tx.add_run(make_run("r1")))
    assert caught.value.location == str(path)
    assert path.read_bytes() == b"# this is a shopping list\n" * 200


def damage_file(path: Path, seed: int) -> None:
    """Overwrite some pages with random bytes or zeros, and for some seeds cut the file in half."""
    random_source = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(1 + seed % 4):
        page = 0 if seed == 0 else random_source.randrange(len(content) // 4096)
        content[page * 4096 : page * 4096 + 4096] = bytes(4096) if seed % 2 else random_source.randbytes(4096)
    if seed % 3 == 2:
        del content[len(content) // 2 :]
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(12))
async def test_damage_anywhere_gives_a_result_or_an_unreadable_error(tmp_path: Path, seed: int):
    path = tmp_path / "ledger.db"
    await write_runs(path, 200)
    damage_file(path, seed)
    outcomes: list[object] = []
    async with open_ledger(path) as ledger:
        outcomes += await asyncio.gather(
            ledger.write(lambda tx: tx.find_runs()),
            ledger.write(lambda tx: tx.update_run(make_run("r7"))),
            ledger.read(lambda tx: tx.find_runs()),
            return_exceptions=True,
        )
    assert {type(outcome) for outcome in outcomes} <= {list, type(None), Unreadable, NotFound}


@pytest.mark.parametrize("seed", range(12))
async def test_a_damaged_ledger_is_detected_and_moved_aside_and_a_new_one_works(tmp_path: Path, seed: int):
    """Shows: P16."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 200)
    assert find_damage(path) is None
    damage_file(path, seed)
    damaged_content = path.read_bytes()
    assert find_damage(path)
    moved_path = rename_damaged_ledger(path, now=CREATED_AT)
    assert moved_path == tmp_path / "ledger.db.damaged-20261115T184207123456Z"
    assert moved_path.read_bytes() == damaged_content
    assert find_damage(path) is None
    await write_runs(path, 1)
    assert find_damage(path) is None


async def test_the_write_ahead_log_of_a_damaged_ledger_is_moved_with_it(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("old")))
        for file in tmp_path.iterdir():
            (tmp_path / f"copy-{file.name}").write_bytes(file.read_bytes())
    copy = tmp_path / "copy-ledger.db"
    moved_path = rename_damaged_ledger(copy, now=CREATED_AT)
    async with open_ledger(copy) as ledger:
        assert await ledger.write(lambda tx: tx.find_runs()) == []
    async with open_ledger(moved_path) as ledger:
        assert [run.id for run in await ledger.read(lambda tx: tx.find_runs())] == ["old"]


async def test_moving_a_missing_ledger_aside_is_an_error(tmp_path: Path):
    with pytest.raises(DiskError, match="the damaged ledger cannot be renamed"):
        rename_damaged_ledger(tmp_path / "ledger.db", now=CREATED_AT)


async def test_an_empty_or_locked_ledger_is_not_damaged(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.touch()
    assert find_damage(path) is None
    await write_runs(path, 1)
    with lock_ledger(path):
        assert find_damage(path) is None


@pytest.mark.parametrize(
    "change",
    [
        "ask = 'gASVHAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjARldmlslIWUUpQu'",
        'ask = \'{"key": "k", "agent": 7, "task": null}\'',
        'ask = \'{"key": "k"}\'',
        "status = 'sleeping'",
        "reason = 'because'",
        "waiting_for = 'godot'",
        "created_at = 9223372036854775807",
        "text = CAST(x'ff80' AS TEXT)",
    ],
)
async def test_an_invalid_run_row_is_damage_and_unreadable(tmp_path: Path, change: str):
    """Shows: P28."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    change_ledger(path, f"UPDATE runs SET {change}")
    async with open_ledger(path) as ledger:
        assert find_damage(path)
        for access in (ledger.write, ledger.read):
            with pytest.raises(Unreadable, match="retinue doctor"):
                await access(lambda tx: tx.get_run("r0"))


async def test_invalid_event_data_is_unreadable(tmp_path: Path):
    """Shows: P28."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 0)
    change_ledger(path, "INSERT INTO events VALUES (1, 0, 'run.queued', 's', 'r', '', 'main', '[1]')")
    async with open_ledger(path) as ledger:
        with pytest.raises(Unreadable, match="an event is damaged"):
            await ledger.read(lambda tx: tx.find_events())


@pytest.mark.parametrize("table", ["deliveries", "approvals", "deeds"])
async def test_an_invalid_row_in_any_table_is_damage(tmp_path: Path, table: str):
    """Shows: P16, P28."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    invalid_rows = {
        "deliveries": "('d', 'r0', 'r0', 's', 'pending', 0, 0, '{}')",
        "approvals": "('a', 'r0', 'c', 'pending', '[1]')",
        "deeds": "('c', 'r0', 'started', 'gASVHAAAAAAAAACM')",
    }
    change_ledger(path, f"INSERT INTO {table} VALUES {invalid_rows[table]}")
    assert "damaged" in (find_damage(path) or "")


READER_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM runs").fetchall()
print("open", flush=True)
sys.stdin.readline()
"""


async def test_a_ledger_that_another_process_has_open_is_not_moved_aside(tmp_path: Path):
    """The other process only reads, and holds nothing but the kernel's locks.

    Shows: P16.
    """
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER_PROGRAM, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"open\n"
    with pytest.raises(SessionLocked, match="another process has the damaged ledger open"):
        rename_damaged_ledger(path, now=CREATED_AT)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    await reader.communicate(b"\n")
    assert damaged_copies(path) == []
    rename_damaged_ledger(path, now=CREATED_AT)
    assert damaged_copies(path) == [tmp_path / "ledger.db.damaged-20261115T184207123456Z"]


async def test_a_ledger_continues_with_a_new_file_after_releasing_the_old_one(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("old")))
        await ledger.release_file()
        rename_damaged_ledger(path, now=CREATED_AT)
        assert await ledger.read(lambda tx: tx.find_runs()) == []
        await ledger.write(lambda tx: tx.add_run(make_run("new")))
        assert [run.id for run in await ledger.read(lambda tx: tx.find_runs())] == ["new"]


def test_the_quick_page_check_finds_a_lost_page(tmp_path: Path):
    path = tmp_path / "ledger.db"
    asyncio.run(write_runs(path, 200))
    assert find_page_damage(path) is None
    damage_file(path, 0)
    assert find_page_damage(path)


async def test_releasing_the_file_during_writes_loses_no_write(tmp_path: Path):
    """New writes arrive as soon as earlier ones have returned."""
    async with open_ledger(tmp_path / "ledger.db") as ledger:

        async def write_twenty_runs(name: str) -> None:
            for number in range(20):
                await ledger.write(lambda tx, number=number: tx.add_run(make_run(f"{name} {number}")))

        for turn in range(10):
            writers = [asyncio.ensure_future(write_twenty_runs(f"{turn} {number}")) for number in range(4)]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await ledger.release_file()
                await asyncio.gather(*writers)
        assert await ledger.read(lambda tx: tx.count_runs()) == 10 * 4 * 20
