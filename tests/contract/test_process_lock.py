"""Owners: a process is alive exactly as long as the kernel holds its lock."""

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
from pathlib import Path

import pytest

from retinue.errors import DiskError
from retinue.worker.process_lock import ProcessLock, remove_dead_owners

CHILD = """
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
def another_process(home: Path, *words: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(home), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip() for _ in range(1 + len(words))]
        try:
            yield process, next(word for word in said if word != "up")
        finally:
            process.kill()


def test_an_owner_is_alive_until_it_is_closed(tmp_path: Path):
    with ProcessLock(tmp_path) as owner:
        assert ProcessLock.is_alive(tmp_path, owner.id)
        assert owner.path == tmp_path / "owners" / owner.id
    assert not ProcessLock.is_alive(tmp_path, owner.id)
    assert not owner.path.exists()
    owner.close()


def test_an_owner_whose_file_cannot_be_removed_is_dead_all_the_same(tmp_path: Path):
    """The disk may refuse anything, and what was done before is not undone by that."""
    owner = ProcessLock(tmp_path)
    owner.path.unlink()
    owner.path.mkdir()
    owner.close()
    assert not ProcessLock.is_alive(tmp_path, owner.id)
    assert owner.path.exists()


def test_two_owners_of_one_process_are_two(tmp_path: Path):
    with ProcessLock(tmp_path) as one, ProcessLock(tmp_path) as two:
        assert one.id != two.id
        one.close()
        assert (ProcessLock.is_alive(tmp_path, one.id), ProcessLock.is_alive(tmp_path, two.id)) == (
            False,
            True,
        )


def test_sigkill_frees_at_once_and_nothing_need_be_cleaned_up_first(tmp_path: Path):
    with another_process(tmp_path) as (process, owner_id):
        assert ProcessLock.is_alive(tmp_path, owner_id)
        assert f"process {process.pid} on " in ProcessLock.describe_owner(tmp_path, owner_id)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not ProcessLock.is_alive(tmp_path, owner_id)
        assert (tmp_path / "owners" / owner_id).exists()
        assert remove_dead_owners(tmp_path) == [owner_id]
        assert not (tmp_path / "owners" / owner_id).exists()


def test_a_stopped_process_is_alive(tmp_path: Path):
    with another_process(tmp_path) as (process, owner_id):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert ProcessLock.is_alive(tmp_path, owner_id)
        assert remove_dead_owners(tmp_path) == []


def test_a_program_started_by_an_owner_does_not_keep_it_alive(tmp_path: Path):
    with another_process(tmp_path, "with a child") as (process, owner_id):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not ProcessLock.is_alive(tmp_path, owner_id)


def test_a_sweep_leaves_the_living_and_everything_that_is_not_an_owner(tmp_path: Path):
    dead = str(uuid.uuid4())
    with ProcessLock(tmp_path) as owner:
        for name in (dead, "notes.txt", dead.upper() + "x"):
            (tmp_path / "owners" / name).write_text("")
        assert remove_dead_owners(tmp_path) == [dead]
        assert ProcessLock.is_alive(tmp_path, owner.id)
        left = {path.name for path in (tmp_path / "owners").iterdir()}
        assert left == {owner.id, "notes.txt", dead.upper() + "x"}


def test_a_file_that_names_a_living_process_is_dead_when_nobody_holds_it(tmp_path: Path):
    """Shows: P20."""
    left_behind = str(uuid.uuid4())
    with ProcessLock(tmp_path) as owner:
        words = owner.path.read_text()
        assert f"process {os.getpid()} on " in words
        assert " (boot " in words
        (tmp_path / "owners" / left_behind).write_text(words)
        assert not ProcessLock.is_alive(tmp_path, left_behind)
        assert remove_dead_owners(tmp_path) == [left_behind]


def test_a_sweep_of_a_home_without_owners_finds_nobody(tmp_path: Path):
    assert remove_dead_owners(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["", "..", "../ledger.db", "x" * 300, "a\x00b", "{" + str(uuid.UUID(int=1)) + "}"]
)
def test_a_name_that_cannot_be_an_owners_is_nobody(tmp_path: Path, name: str):
    with ProcessLock(tmp_path):
        assert not ProcessLock.is_alive(tmp_path, name)
        assert ProcessLock.describe_owner(tmp_path, name) == ""


def test_nobody_is_alive_in_a_home_that_is_not_there(tmp_path: Path):
    nobody = str(uuid.uuid4())
    assert not ProcessLock.is_alive(tmp_path / "none", nobody)
    assert ProcessLock.describe_owner(tmp_path / "none", nobody) == ""


def test_the_folders_and_the_file_are_for_this_user_alone(tmp_path: Path):
    with ProcessLock(tmp_path / "new" / "home") as owner:
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (owner.path, *owner.path.parents[:3])]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_place_that_cannot_hold_owners_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="owners cannot be kept here"):
        ProcessLock(tmp_path / "file")


def test_owners_that_come_while_others_sweep_and_probe_are_never_swept(tmp_path: Path):
    stop = threading.Event()
    known: list[str] = []

    def sweeping() -> None:
        while not stop.is_set():
            remove_dead_owners(tmp_path)
            for owner_id in known[-3:]:
                ProcessLock.is_alive(tmp_path, owner_id)

    sweepers = [threading.Thread(target=sweeping) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(100):
            with ProcessLock(tmp_path) as owner:
                known.append(owner.id)
                assert owner.path.exists()
                assert ProcessLock.is_alive(tmp_path, owner.id)
    finally:
        stop.set()
        for sweeper in sweepers:
            sweeper.join()
    assert remove_dead_owners(tmp_path) == []
