"""A damaged ledger is recognised, named and set aside; it never becomes anything but an error."""

import asyncio
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.errors import DiskError, NotFound, SessionLocked, Unreadable
from retinue.ledger.repair import damaged_copies, find_damage, find_page_damage, move_damaged_aside
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def told(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


async def made(path: Path, count: int = 200) -> None:
    async with open_ledger(path) as ledger:
        await ledger.read(lambda tx: tx.find_runs())
        await asyncio.gather(
            *(
                ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}", text="x" * 300)))
                for n in range(count)
            )
        )


async def test_a_file_that_is_no_database_is_named_with_the_doctor_and_left_alone(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"# this is a shopping list\n" * 200)
    async with open_ledger(path) as ledger:
        with pytest.raises(Unreadable, match="retinue doctor") as caught:
            await ledger.write(lambda tx: tx.add_run(make_run("r1")))
    assert caught.value.location == str(path)
    assert path.read_bytes() == b"# this is a shopping list\n" * 200


def spoil(path: Path, seed: int) -> None:
    """Some pages of random bytes or zeros, the first page among them, and now and then half of the file."""
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(1 + seed % 4):
        page = 0 if seed == 0 else chance.randrange(len(content) // 4096)
        content[page * 4096 : page * 4096 + 4096] = bytes(4096) if seed % 2 else chance.randbytes(4096)
    if seed % 3 == 2:
        del content[len(content) // 2 :]
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(12))
async def test_damage_anywhere_is_an_answer_or_unreadable_never_another_error(tmp_path: Path, seed: int):
    path = tmp_path / "ledger.db"
    await made(path)
    spoil(path, seed)
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
async def test_a_damaged_file_is_found_kept_aside_and_followed_by_a_ledger_that_works(
    tmp_path: Path, seed: int
):
    """Shows: P16."""
    path = tmp_path / "ledger.db"
    await made(path)
    assert find_damage(path) is None
    spoil(path, seed)
    bad = path.read_bytes()
    assert find_damage(path)
    place = move_damaged_aside(path, now=CREATED_AT)
    assert place == tmp_path / "ledger.db.damaged-20261115T184207123456Z"
    assert place.read_bytes() == bad
    assert find_damage(path) is None
    await made(path, 1)
    assert find_damage(path) is None


async def test_the_log_of_a_damaged_ledger_goes_with_it(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("old")))
        for part in tmp_path.iterdir():
            (tmp_path / f"copy-{part.name}").write_bytes(part.read_bytes())
    copy = tmp_path / "copy-ledger.db"
    place = move_damaged_aside(copy, now=CREATED_AT)
    async with open_ledger(copy) as ledger:
        assert await ledger.write(lambda tx: tx.find_runs()) == []
    async with open_ledger(place) as ledger:
        assert [run.id for run in await ledger.read(lambda tx: tx.find_runs())] == ["old"]


async def test_nothing_to_set_aside_is_one_sentence(tmp_path: Path):
    with pytest.raises(DiskError, match="the damaged ledger cannot be renamed"):
        move_damaged_aside(tmp_path / "ledger.db", now=CREATED_AT)


async def test_a_locked_or_a_new_file_is_not_called_damaged(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.touch()
    assert find_damage(path) is None
    await made(path, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
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
async def test_a_planted_row_is_damage_and_never_becomes_anything_else(tmp_path: Path, change: str):
    """Shows: P28."""
    path = tmp_path / "ledger.db"
    await made(path, 1)
    told(path, f"UPDATE runs SET {change}")
    async with open_ledger(path) as ledger:
        assert find_damage(path)
        for wish in (ledger.write, ledger.read):
            with pytest.raises(Unreadable, match="retinue doctor"):
                await wish(lambda tx: tx.get_run("r0"))


async def test_planted_event_data_is_damage(tmp_path: Path):
    """Shows: P28."""
    path = tmp_path / "ledger.db"
    await made(path, 0)
    told(path, "INSERT INTO events VALUES (1, 0, 'run.queued', 's', 'r', '', 'main', '[1]')")
    async with open_ledger(path) as ledger:
        with pytest.raises(Unreadable, match="an event is damaged"):
            await ledger.read(lambda tx: tx.find_events())


@pytest.mark.parametrize("table", ["deliveries", "approvals", "deeds"])
async def test_what_is_planted_in_any_table_is_found(tmp_path: Path, table: str):
    """Shows: P16, P28."""
    path = tmp_path / "ledger.db"
    await made(path, 1)
    planted = {
        "deliveries": "('d', 'r0', 'r0', 's', 'pending', 0, 0, '{}')",
        "approvals": "('a', 'r0', 'c', 'pending', '[1]')",
        "deeds": "('c', 'r0', 'started', 'gASVHAAAAAAAAACM')",
    }
    told(path, f"INSERT INTO {table} VALUES {planted[table]}")
    assert "damaged" in (find_damage(path) or "")


HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM runs").fetchall()
print("open", flush=True)
sys.stdin.readline()
"""


async def test_a_file_that_another_process_has_open_is_not_set_aside(tmp_path: Path):
    """Not even where that process only looks, and holds nothing but the kernel's locks.

    Shows: P16.
    """
    path = tmp_path / "ledger.db"
    await made(path, 1)
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDS, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"open\n"
    with pytest.raises(SessionLocked, match="another process has the damaged ledger open"):
        move_damaged_aside(path, now=CREATED_AT)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    await other.communicate(b"\n")
    assert damaged_copies(path) == []
    move_damaged_aside(path, now=CREATED_AT)
    assert damaged_copies(path) == [tmp_path / "ledger.db.damaged-20261115T184207123456Z"]


async def test_a_ledger_goes_on_with_another_file_after_it_has_let_go(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("old")))
        await ledger.release_file()
        move_damaged_aside(path, now=CREATED_AT)
        assert await ledger.read(lambda tx: tx.find_runs()) == []
        await ledger.write(lambda tx: tx.add_run(make_run("new")))
        assert [run.id for run in await ledger.read(lambda tx: tx.find_runs())] == ["new"]


def test_a_quick_look_finds_a_page_that_is_gone(tmp_path: Path):
    path = tmp_path / "ledger.db"
    asyncio.run(made(path))
    assert find_page_damage(path) is None
    spoil(path, 0)
    assert find_page_damage(path)


async def test_a_ledger_lets_go_only_when_whoever_goes_on_has_been_heard(tmp_path: Path):
    """Those who were answered in the last moment ask again before it can."""
    async with open_ledger(tmp_path / "ledger.db") as ledger:

        async def asks(name: str) -> None:
            for at in range(20):
                await ledger.write(lambda tx, at=at: tx.add_run(make_run(f"{name} {at}")))

        for turn in range(10):
            at_work = [asyncio.ensure_future(asks(f"{turn} {number}")) for number in range(4)]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await ledger.release_file()
                await asyncio.gather(*at_work)
        assert await ledger.read(lambda tx: tx.count_runs()) == 10 * 4 * 20
