"""The ledger on disk: its file, its neighbours in other processes, and what its failures say."""

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

from retinue.domain.event import Event
from retinue.errors import DiskError, Failed, RetinueError, SessionLocked, Unreadable
from retinue.interfaces import Transaction
from retinue.ledger import database
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


async def test_the_file_is_made_at_the_first_use_for_this_user_alone(tmp_path: Path):
    path = tmp_path / "new" / "home" / "ledger.db"
    async with open_ledger(path) as ledger:
        assert not path.parent.exists()
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        modes = {part.name: stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parents[1].stat().st_mode) == 0o700


async def test_a_ledger_that_is_never_used_leaves_nothing(tmp_path: Path):
    async with open_ledger(tmp_path / "home" / "ledger.db"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_what_was_done_is_there_in_the_next_process_and_events_go_on_counting(tmp_path: Path):
    path = tmp_path / "ledger.db"

    def step(tx: Transaction) -> None:
        tx.emit(Event(kind="session.changed", at=CREATED_AT, session="s"))

    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        await ledger.write(step)
    heard: list[Event] = []
    async with open_ledger(path, on_event=heard.append) as ledger:
        assert await ledger.read(lambda tx: tx.get_run("r1")) == make_run("r1")
        await ledger.write(step)
    assert [event.seq for event in heard] == [2]
    assert not (tmp_path / "ledger.db-wal").exists()


async def test_closing_finishes_the_steps_that_were_given_before(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    await ledger.read(lambda tx: tx.find_runs())
    steps = [
        asyncio.create_task(ledger.write(lambda tx, name=name: tx.add_run(make_run(name))))
        for name in ("r1", "r2", "r3")
    ]
    await asyncio.sleep(0)
    await ledger.close()
    await asyncio.gather(*steps)
    assert asked(tmp_path / "ledger.db", "SELECT count(*) FROM runs") == [(3,)]


async def test_closing_while_the_file_is_being_opened_refuses_what_waits(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    step = asyncio.create_task(ledger.write(lambda tx: tx.add_run(make_run("r1"))))
    await asyncio.sleep(0)
    await ledger.close()
    with pytest.raises(Failed, match="the ledger is closed"):
        await step


class Stop(BaseException):
    """What no step should catch: as an interrupt from the keyboard is."""


async def test_an_interrupt_inside_a_step_undoes_its_batch_tells_all_and_the_ledger_goes_on(tmp_path: Path):
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def stop(tx: Transaction) -> None:
        tx.add_run(make_run("stopped"))
        raise Stop

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
    assert [type(context["exception"]) for context in seen] == [Stop]
    asyncio.get_running_loop().set_exception_handler(None)


async def test_many_steps_at_once_share_few_commits(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r0")))
        before = (tmp_path / "ledger.db-wal").stat().st_size
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        alone = (tmp_path / "ledger.db-wal").stat().st_size - before
        await asyncio.gather(
            *(ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}"))) for n in range(2, 202))
        )
        together = (tmp_path / "ledger.db-wal").stat().st_size - before - alone
    assert together < 50 * alone


async def test_a_look_does_not_wait_for_a_writer_and_sees_what_was_committed(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("DELETE FROM runs")
            assert await ledger.read(lambda tx: tx.get_run("r1")) == make_run("r1")
            other.execute("ROLLBACK")


async def test_a_writer_elsewhere_is_waited_for_while_the_loop_goes_on(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            steps = [
                asyncio.create_task(ledger.write(lambda tx, n=n: tx.add_run(make_run(n))))
                for n in ("r2", "r3")
            ]
            await asyncio.sleep(0.2)
            assert not any(step.done() for step in steps)
            assert await ledger.read(lambda tx: len(tx.find_runs())) == 1
            other.execute("COMMIT")
        await asyncio.gather(*steps)
        assert await ledger.read(lambda tx: len(tx.find_runs())) == 3


async def test_opening_waits_for_another_process_too(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with open_ledger(path) as ledger:
            step = asyncio.create_task(ledger.write(lambda tx: tx.add_run(make_run("r1"))))
            await asyncio.sleep(0.2)
            assert not step.done()
            other.execute("COMMIT")
            await step


async def test_two_ledgers_can_make_the_same_new_file_and_write_in_turns(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as one, open_ledger(path) as two:
        await asyncio.gather(
            *(
                ledger.write(lambda tx, name=name: tx.add_run(make_run(name)))
                for name, ledger in [(f"r{n}", (one, two)[n % 2]) for n in range(40)]
            )
        )
        assert await one.read(lambda tx: len(tx.find_runs())) == 40
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


async def test_another_process_that_never_lets_go_is_named_as_the_cause_and_the_ledger_goes_on(
    tmp_path: Path,
):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, busy_timeout_s=0.05) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r1")))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
                await ledger.write(lambda tx: tx.add_run(make_run("r2")))
            other.execute("COMMIT")
        await ledger.write(lambda tx: tx.add_run(make_run("r2")))


async def test_patience_is_ten_seconds_and_ends_at_the_opening_too(tmp_path: Path):
    """Shows: P27."""
    assert database.BUSY_TIMEOUT_S == 10
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with open_ledger(path, busy_timeout_s=0.05) as ledger:
            with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
                await ledger.read(lambda tx: tx.find_runs())
            other.execute("COMMIT")
            assert await ledger.read(lambda tx: tx.find_runs()) == []


def test_a_database_error_says_what_to_do(tmp_path: Path):
    """Every code of the database has one meaning."""
    path = tmp_path / "ledger.db"
    table: list[tuple[int | None, type[RetinueError], str]] = [
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
    for code, kind, words in table:
        error = sqlite3.OperationalError("told by the database")
        if code is not None:
            error.sqlite_errorcode = code
        meant = database.translate_sqlite_error(error, path)
        assert type(meant) is kind
        assert words in str(meant)
        assert str(path) in str(meant)


FULL = """
    import asyncio, resource, sys
    from datetime import UTC, datetime
    from pathlib import Path
    from retinue.domain.run import RunRequest, Run
    from retinue.errors import DiskError
    from retinue.ledger.ledger import SqliteLedger

    def a_run(name, text=""):
        return Run(id=name, request=RunRequest(key=name, agent="main", task=None), session_id="s", slug="s", session_key="s/main",
                   agent="main", transcript_path="", text=text, created_at=datetime(2026, 1, 1, tzinfo=UTC))

    async def main():
        ledger = SqliteLedger(Path(sys.argv[1]))
        await ledger.write(lambda tx: tx.add_run(a_run("first")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        outcomes = await asyncio.gather(
            ledger.write(lambda tx: tx.add_run(a_run("beside"))),
            ledger.write(lambda tx: tx.add_run(a_run("large", "x" * int(sys.argv[2])))),
            return_exceptions=True,
        )
        print([type(outcome).__name__ for outcome in outcomes], str(outcomes[1]).startswith(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await ledger.write(lambda tx: tx.add_run(a_run("after")))
        print([run.id for run in await ledger.read(lambda tx: tx.find_runs())])
        await ledger.close()

    asyncio.run(main())
"""


@pytest.mark.parametrize("size", [1_000_000, 30_000_000], ids=["at the commit", "in the step"])
def test_a_full_disk_undoes_the_whole_batch_says_so_and_goes_on_when_there_is_room(tmp_path: Path, size: int):
    """The second size is more than the database keeps in memory, so that it meets the limit inside the step."""
    path = tmp_path / "ledger.db"
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(path), str(size)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.stdout.splitlines() == ["['DiskError', 'DiskError'] True", "['first', 'after']"], ran.stderr
    assert asked(path, "PRAGMA integrity_check") == [("ok",)]


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def below_a_file(path: Path) -> Path:
    path.write_text("")
    return path / "ledger.db"


def a_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def nowhere(path: Path) -> Path:
    return Path("/proc") / path.name / "ledger.db"


@pytest.mark.parametrize("place", [a_folder, below_a_file, a_pipe, nowhere])
async def test_a_place_where_no_file_can_be_is_one_sentence(tmp_path: Path, place: Callable[[Path], Path]):
    path = place(tmp_path / "ledger.db")
    async with open_ledger(path) as ledger:
        for _ in range(2):
            with pytest.raises(DiskError) as caught:
                await ledger.write(lambda tx: tx.find_runs())
            assert str(caught.value).startswith(f"{path}: ")


async def test_a_ledger_that_could_not_be_opened_is_opened_when_the_cause_is_gone(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.mkdir()
    async with open_ledger(path) as ledger:
        with pytest.raises(DiskError):
            await ledger.read(lambda tx: tx.find_runs())
        path.rmdir()
        assert await ledger.read(lambda tx: tx.find_runs()) == []


async def test_other_processes_that_come_and_go_take_nothing_from_a_ledger_in_use(tmp_path: Path):
    """Opening the file by hand beside a live connection would drop this process's locks on it."""
    path = tmp_path / "ledger.db"
    visit = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('select count(*) from runs').fetchall(); c.close()"
    ledger = SqliteLedger(path)
    try:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        for _ in range(2):
            visitor = await asyncio.create_subprocess_exec(sys.executable, "-c", visit)
            assert await visitor.wait() == 0
        await ledger.write(lambda tx: tx.add_run(make_run("second")))
        held = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        assert [each for each in held if each == f"{path}-wal"]
    finally:
        await ledger.close()
    with closing(sqlite3.connect(path)) as after:
        assert after.execute("select count(*) from runs").fetchone() == (2,)


async def test_a_ledger_knows_whether_anybody_has_written_since(tmp_path: Path):
    """Whoever waits asks this instead of reading all that waits, again and again."""
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
