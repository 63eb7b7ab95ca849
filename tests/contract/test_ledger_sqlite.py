"""The ledger on disk: its file, other processes that use it, and its errors."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ledger_file import lock_ledger, query_ledger

from retinue.domain.event import Event
from retinue.errors import DiskError, Failed, RetinueError, SessionLocked, Unreadable
from retinue.interfaces import Transaction
from retinue.ledger import database
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


async def test_the_file_is_created_at_first_use_and_private_to_the_user(tmp_path: Path):
    path = tmp_path / "new" / "home" / "ledger.db"
    async with open_ledger(path) as ledger:
        assert not path.parent.exists()
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        modes = {part.name: stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parents[1].stat().st_mode) == 0o700


async def test_an_unused_ledger_creates_no_file(tmp_path: Path):
    async with open_ledger(tmp_path / "home" / "ledger.db"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_a_reopened_ledger_has_its_runs_and_continues_the_event_numbers(tmp_path: Path):
    path = tmp_path / "ledger.db"

    def emit_event(tx: Transaction) -> None:
        tx.emit(Event(kind="session.changed", at=CREATED_AT, session="s"))

    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        await ledger.write(emit_event)
    events: list[Event] = []
    async with open_ledger(path, on_event=events.append) as ledger:
        assert await ledger.read(lambda tx: tx.get_run("r1")) == make_run("r1")
        await ledger.write(emit_event)
    assert [event.seq for event in events] == [2]
    assert not (tmp_path / "ledger.db-wal").exists()


async def test_closing_finishes_earlier_writes(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    await ledger.read(lambda tx: tx.find_runs())
    writes = [
        asyncio.create_task(ledger.write(lambda tx, name=name: tx.add_run(make_run(name))))
        for name in ("r1", "r2", "r3")
    ]
    await asyncio.sleep(0)
    await ledger.close()
    await asyncio.gather(*writes)
    assert query_ledger(tmp_path / "ledger.db", "SELECT count(*) FROM runs") == [(3,)]


async def test_closing_during_the_opening_of_the_file_fails_waiting_writes(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    write = asyncio.create_task(ledger.write(lambda tx: tx.add_run(make_run("r1"))))
    await asyncio.sleep(0)
    await ledger.close()
    with pytest.raises(Failed, match="the ledger is closed"):
        await write


class Interrupt(BaseException):
    """An exception that no transaction may catch, like KeyboardInterrupt."""


async def test_an_interrupt_in_a_transaction_fails_its_whole_batch_and_the_ledger_stays_usable(
    tmp_path: Path,
):
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def stop(tx: Transaction) -> None:
        tx.add_run(make_run("stopped"))
        raise Interrupt

    async with open_ledger(tmp_path / "ledger.db") as ledger:
        await ledger.read(lambda tx: tx.find_runs())
        outcomes = await asyncio.gather(
            ledger.write(lambda tx: tx.add_run(make_run("beside"))),
            ledger.write(stop),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [Failed, Failed]
        await ledger.write(lambda tx: tx.add_run(make_run("after")))
        assert [run.id for run in await ledger.read(lambda tx: tx.find_runs())] == ["after"]
    assert [type(context["exception"]) for context in reported] == [Interrupt]
    asyncio.get_running_loop().set_exception_handler(None)


async def test_concurrent_writes_share_few_commits(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r0")))
        initial_size = (tmp_path / "ledger.db-wal").stat().st_size
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        single_commit_bytes = (tmp_path / "ledger.db-wal").stat().st_size - initial_size
        await asyncio.gather(
            *(ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}"))) for n in range(2, 202))
        )
        batch_bytes = (tmp_path / "ledger.db-wal").stat().st_size - initial_size - single_commit_bytes
    assert batch_bytes < 50 * single_commit_bytes


async def test_a_read_does_not_wait_for_a_writer_and_sees_the_committed_state(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with lock_ledger(path) as connection:
            connection.execute("DELETE FROM runs")
            assert await ledger.read(lambda tx: tx.get_run("r1")) == make_run("r1")
            connection.execute("ROLLBACK")


async def test_a_write_waits_for_another_process_without_blocking_the_event_loop(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with lock_ledger(path) as connection:
            writes = [
                asyncio.create_task(ledger.write(lambda tx, n=n: tx.add_run(make_run(n))))
                for n in ("r2", "r3")
            ]
            await asyncio.sleep(0.2)
            assert not any(write.done() for write in writes)
            assert await ledger.read(lambda tx: len(tx.find_runs())) == 1
            connection.execute("COMMIT")
        await asyncio.gather(*writes)
        assert await ledger.read(lambda tx: len(tx.find_runs())) == 3


async def test_opening_waits_for_a_lock_of_another_process(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    with lock_ledger(path, "EXCLUSIVE") as connection:
        async with open_ledger(path) as ledger:
            write = asyncio.create_task(ledger.write(lambda tx: tx.add_run(make_run("r1"))))
            await asyncio.sleep(0.2)
            assert not write.done()
            connection.execute("COMMIT")
            await write


async def test_two_ledgers_can_create_and_write_the_same_file_concurrently(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as first, open_ledger(path) as second:
        await asyncio.gather(
            *(
                ledger.write(lambda tx, name=name: tx.add_run(make_run(name)))
                for name, ledger in [(f"r{n}", (first, second)[n % 2]) for n in range(40)]
            )
        )
        assert await first.read(lambda tx: len(tx.find_runs())) == 40
    assert query_ledger(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_write_blocked_by_another_process_fails_and_the_ledger_stays_usable(
    tmp_path: Path,
):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, busy_timeout_s=0.05) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with lock_ledger(path) as connection:
            with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
                await ledger.write(lambda tx: tx.add_run(make_run("r2")))
            connection.execute("COMMIT")
        await ledger.write(lambda tx: tx.add_run(make_run("r2")))


async def test_the_busy_timeout_is_ten_seconds_and_also_applies_to_opening(tmp_path: Path):
    """Shows: P27."""
    assert database.BUSY_TIMEOUT_S == 10
    path = tmp_path / "ledger.db"
    with lock_ledger(path, "EXCLUSIVE") as connection:
        async with open_ledger(path, busy_timeout_s=0.05) as ledger:
            with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
                await ledger.read(lambda tx: tx.find_runs())
            connection.execute("COMMIT")
            assert await ledger.read(lambda tx: tx.find_runs()) == []


def test_every_sqlite_error_code_is_translated(tmp_path: Path):
    path = tmp_path / "ledger.db"
    cases: list[tuple[int | None, type[RetinueError], str]] = [
        (sqlite3.SQLITE_FULL, DiskError, "the disk is full"),
        (sqlite3.SQLITE_READONLY, DiskError, "cannot be written"),
        (sqlite3.SQLITE_IOERR | 3 << 8, DiskError, "the disk failed"),
        (sqlite3.SQLITE_CANTOPEN, DiskError, "cannot be opened"),
        (sqlite3.SQLITE_CORRUPT, Unreadable, "retinue doctor"),
        (sqlite3.SQLITE_NOTADB, Unreadable, "retinue doctor"),
        (sqlite3.SQLITE_BUSY | 2 << 8, SessionLocked, "another process"),
        (sqlite3.SQLITE_ERROR, Failed, "cannot execute a statement"),
        (None, Unreadable, "retinue doctor"),
    ]
    for code, error_type, message in cases:
        error = sqlite3.OperationalError("told by the database")
        if code is not None:
            error.sqlite_errorcode = code
        translated = database.translate_sqlite_error(error, path)
        assert type(translated) is error_type
        assert message in str(translated)
        assert str(path) in str(translated)


FULL_DISK_PROGRAM = """
    import asyncio, resource, sys
    from datetime import UTC, datetime
    from pathlib import Path
    from retinue.domain.run import RunRequest, Run
    from retinue.errors import DiskError
    from retinue.ledger.ledger import SqliteLedger

    def make_run(name, text=""):
        return Run(id=name, request=RunRequest(key=name, agent="main", task=None), session_id="s", slug="s", session_key="s/main",
                   agent="main", transcript_path="", text=text, created_at=datetime(2026, 1, 1, tzinfo=UTC))

    async def main():
        ledger = SqliteLedger(Path(sys.argv[1]))
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        outcomes = await asyncio.gather(
            ledger.write(lambda tx: tx.add_run(make_run("concurrent"))),
            ledger.write(lambda tx: tx.add_run(make_run("large", "x" * int(sys.argv[2])))),
            return_exceptions=True,
        )
        print([type(outcome).__name__ for outcome in outcomes], str(outcomes[1]).startswith(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await ledger.write(lambda tx: tx.add_run(make_run("after")))
        print([run.id for run in await ledger.read(lambda tx: tx.find_runs())])
        await ledger.close()

    asyncio.run(main())
"""


@pytest.mark.parametrize("size", [1_000_000, 30_000_000], ids=["at the commit", "before the commit"])
def test_a_full_disk_rolls_back_the_whole_batch_and_later_writes_work(tmp_path: Path, size: int):
    """The second size exceeds SQLite's page cache, so the limit is reached before the commit."""
    path = tmp_path / "ledger.db"
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK_PROGRAM), str(path), str(size)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert process.stdout.splitlines() == ["['DiskError', 'DiskError'] True", "['first', 'after']"], (
        process.stderr
    )
    assert query_ledger(path, "PRAGMA integrity_check") == [("ok",)]


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def make_file_as_parent(path: Path) -> Path:
    path.write_text("")
    return path / "ledger.db"


def make_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def unwritable_path(path: Path) -> Path:
    return Path("/proc") / path.name / "ledger.db"


@pytest.mark.parametrize("make_path", [make_folder, make_file_as_parent, make_fifo, unwritable_path])
async def test_an_impossible_ledger_path_is_a_disk_error(tmp_path: Path, make_path: Callable[[Path], Path]):
    path = make_path(tmp_path / "ledger.db")
    async with open_ledger(path) as ledger:
        for _ in range(2):
            with pytest.raises(DiskError) as error_info:
                await ledger.write(lambda tx: tx.find_runs())
            assert str(error_info.value).startswith(f"{path}: ")


async def test_a_ledger_that_could_not_be_opened_is_opened_once_the_cause_is_removed(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.mkdir()
    async with open_ledger(path) as ledger:
        with pytest.raises(DiskError):
            await ledger.read(lambda tx: tx.find_runs())
        path.rmdir()
        assert await ledger.read(lambda tx: tx.find_runs()) == []


async def test_processes_that_open_and_close_the_ledger_do_not_disturb_its_owner(tmp_path: Path):
    """Closing a second descriptor of the file in this process would drop its POSIX locks."""
    path = tmp_path / "ledger.db"
    reader_code = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('select count(*) from runs').fetchall(); c.close()"
    ledger = SqliteLedger(path)
    try:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        for _ in range(2):
            reader = await asyncio.create_subprocess_exec(sys.executable, "-c", reader_code)
            assert await reader.wait() == 0
        await ledger.write(lambda tx: tx.add_run(make_run("second")))
        open_files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        assert [each for each in open_files if each == f"{path}-wal"]
    finally:
        await ledger.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from runs").fetchone() == (2,)


async def test_check_changed_reports_writes_of_this_and_other_ledgers(tmp_path: Path):
    """A waiting caller checks this instead of reading everything again."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger, open_ledger(path) as other:
        assert ledger.check_changed()
        await ledger.write(lambda tx: tx.add_run(make_run("mine")))
        assert ledger.check_changed()
        assert not ledger.check_changed()
        await ledger.read(lambda tx: tx.find_runs())
        assert not ledger.check_changed()
        await other.write(lambda tx: tx.add_run(make_run("theirs")))
        assert ledger.check_changed()
        assert not ledger.check_changed()
