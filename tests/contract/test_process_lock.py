"""Process locks: an owner is alive exactly as long as the kernel holds its lock."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from retinue.errors import DiskError
from retinue.worker.process_lock import ProcessLock, remove_dead_owners

OWNER_PROGRAM = """
    import subprocess, sys
    from pathlib import Path
    from retinue.worker.process_lock import ProcessLock

    owner = ProcessLock(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"])
    print(owner.id, flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process(home: Path, *, with_child: bool = False) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a process that holds a lock. Yield the process and its owner id."""
    arguments = ["with a child"] if with_child else []
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER_PROGRAM), str(home), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(1 + len(arguments))]
        try:
            yield process, next(line for line in lines if line != "up")
        finally:
            process.kill()


def test_an_owner_is_alive_until_it_is_closed(tmp_path: Path):
    with ProcessLock(tmp_path) as owner:
        assert ProcessLock.is_alive(tmp_path, owner.id)
        assert owner.path == tmp_path / "owners" / owner.id
    assert not ProcessLock.is_alive(tmp_path, owner.id)
    assert not owner.path.exists()
    owner.close()


def test_a_closed_owner_is_dead_even_if_its_file_cannot_be_removed(tmp_path: Path):
    owner = ProcessLock(tmp_path)
    owner.path.unlink()
    owner.path.mkdir()
    owner.close()
    assert not ProcessLock.is_alive(tmp_path, owner.id)
    assert owner.path.exists()


def test_two_owners_of_one_process_are_independent(tmp_path: Path):
    with ProcessLock(tmp_path) as first, ProcessLock(tmp_path) as second:
        assert first.id != second.id
        first.close()
        assert (ProcessLock.is_alive(tmp_path, first.id), ProcessLock.is_alive(tmp_path, second.id)) == (
            False,
            True,
        )


def test_sigkill_frees_the_lock_at_once(tmp_path: Path):
    with other_process(tmp_path) as (process, owner_id):
        assert ProcessLock.is_alive(tmp_path, owner_id)
        assert f"process {process.pid} on " in ProcessLock.describe_owner(tmp_path, owner_id)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not ProcessLock.is_alive(tmp_path, owner_id)
        assert (tmp_path / "owners" / owner_id).exists()
        assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == [owner_id]
        assert not (tmp_path / "owners" / owner_id).exists()


def test_a_stopped_process_is_alive(tmp_path: Path):
    with other_process(tmp_path) as (process, owner_id):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert ProcessLock.is_alive(tmp_path, owner_id)
        assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == []


def test_the_file_of_a_dead_process_tells_for_a_month_when_it_died(tmp_path: Path):
    before = datetime.now(UTC)
    with other_process(tmp_path) as (process, owner_id):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert remove_dead_owners(tmp_path) == []
    died_at = ProcessLock.last_alive_at(tmp_path, owner_id)
    assert died_at is not None
    assert abs(died_at - before) < timedelta(minutes=1)
    long_ago = (before - timedelta(days=31)).timestamp()
    os.utime(tmp_path / "owners" / owner_id, (long_ago, long_ago))
    assert remove_dead_owners(tmp_path) == [owner_id]
    assert ProcessLock.last_alive_at(tmp_path, owner_id) is None


def test_a_live_process_records_that_it_is_alive(tmp_path: Path):
    with ProcessLock(tmp_path) as owner:
        os.utime(owner.path, (1, 1))
        owner.record_alive()
        alive_at = ProcessLock.last_alive_at(tmp_path, owner.id)
        assert alive_at is not None
        assert alive_at > datetime.now(UTC) - timedelta(minutes=1)


def test_a_child_process_does_not_keep_its_owner_alive(tmp_path: Path):
    with other_process(tmp_path, with_child=True) as (process, owner_id):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not ProcessLock.is_alive(tmp_path, owner_id)


def test_removing_dead_owners_leaves_live_owners_and_other_files(tmp_path: Path):
    dead = str(uuid.uuid4())
    with ProcessLock(tmp_path) as owner:
        for name in (dead, "notes.txt", dead.upper() + "x"):
            (tmp_path / "owners" / name).write_text("")
        assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == [dead]
        assert ProcessLock.is_alive(tmp_path, owner.id)
        remaining = {path.name for path in (tmp_path / "owners").iterdir()}
        assert remaining == {owner.id, "notes.txt", dead.upper() + "x"}


def test_an_unlocked_owner_file_is_dead_even_if_it_names_a_running_process(tmp_path: Path):
    """Shows: P20."""
    left_behind = str(uuid.uuid4())
    with ProcessLock(tmp_path) as owner:
        owner_text = owner.path.read_text()
        assert f"process {os.getpid()} on " in owner_text
        assert " (boot " in owner_text
        (tmp_path / "owners" / left_behind).write_text(owner_text)
        assert not ProcessLock.is_alive(tmp_path, left_behind)
        assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == [left_behind]


def test_a_home_without_owners_has_no_dead_owners(tmp_path: Path):
    assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == []


@pytest.mark.parametrize(
    "name", ["", "..", "../ledger.db", "x" * 300, "a\x00b", "{" + str(uuid.UUID(int=1)) + "}"]
)
def test_an_invalid_owner_id_is_not_alive_and_has_no_description(tmp_path: Path, name: str):
    with ProcessLock(tmp_path):
        assert not ProcessLock.is_alive(tmp_path, name)
        assert ProcessLock.describe_owner(tmp_path, name) == ""


def test_no_owner_is_alive_in_a_missing_home(tmp_path: Path):
    unknown_id = str(uuid.uuid4())
    assert not ProcessLock.is_alive(tmp_path / "none", unknown_id)
    assert ProcessLock.describe_owner(tmp_path / "none", unknown_id) == ""


def test_the_owner_file_and_its_folders_are_private_to_the_user(tmp_path: Path):
    with ProcessLock(tmp_path / "new" / "home") as owner:
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (owner.path, *owner.path.parents[:3])]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_home_that_is_a_file_is_refused_with_one_message(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="Cannot create a lock file"):
        ProcessLock(tmp_path / "file")


def test_a_new_owner_is_never_removed_by_concurrent_sweeps(tmp_path: Path):
    stop = threading.Event()
    owner_ids: list[str] = []

    def sweep() -> None:
        while not stop.is_set():
            remove_dead_owners(tmp_path, older_than=timedelta(0))
            for owner_id in owner_ids[-3:]:
                ProcessLock.is_alive(tmp_path, owner_id)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(100):
            with ProcessLock(tmp_path) as owner:
                owner_ids.append(owner.id)
                assert owner.path.exists()
                assert ProcessLock.is_alive(tmp_path, owner.id)
    finally:
        stop.set()
        for sweeper in sweepers:
            sweeper.join()
    assert remove_dead_owners(tmp_path) == []


def test_a_process_whose_file_was_deleted_is_alive_until_it_dies(tmp_path: Path):
    with other_process(tmp_path) as (process, owner_id):
        (tmp_path / "owners" / owner_id).unlink()
        assert ProcessLock.is_alive(tmp_path, owner_id)
        (tmp_path / "owners" / owner_id).write_text("not locked")
        assert ProcessLock.is_alive(tmp_path, owner_id)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not ProcessLock.is_alive(tmp_path, owner_id)


@pytest.mark.parametrize("damage", ["deleted", "replaced", "folder deleted"])
def test_a_live_process_restores_its_file(tmp_path: Path, damage: str):
    with ProcessLock(tmp_path) as owner:
        text = owner.path.read_text()
        owner.path.unlink()
        if damage == "replaced":
            owner.path.write_text("")
        elif damage == "folder deleted":
            owner.path.parent.rmdir()
        owner.record_alive()
        assert owner.path.read_text() == text
        assert stat.S_IMODE(owner.path.stat().st_mode) == 0o600
        assert remove_dead_owners(tmp_path, older_than=timedelta(0)) == []
        assert ProcessLock.is_alive(tmp_path, owner.id)
        assert [path.name for path in owner.path.parent.iterdir()] == [owner.id]
    assert not ProcessLock.is_alive(tmp_path, owner.id)
    assert not owner.path.exists()
