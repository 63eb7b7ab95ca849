"""The journal mode of the ledger: no write-ahead log on file systems without shared memory."""

import asyncio
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_file import query_ledger

from retinue.errors import SessionLocked
from retinue.ledger.journal_mode import DELETE, WAL, detect_filesystem_type, journal_mode_for
from retinue.testing.ledgers import make_run, open_ledger

MOUNTS = r"""
22 27 0:21 / /proc rw,nosuid shared:12 - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 27 0:33 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
41 40 0:34 / /home/me/a\040b rw - fuse.sshfs me@there:/ rw
42 27 0:35 / /mnt rw - ext4 /dev/sdb rw
43 27 0:36 / /mnt rw - cifs //server/share rw
44 27 0:37 /x /tmp rw - tmpfs tmpfs rw
"""


def report_filesystem(kind: str) -> Callable[[Path], str]:
    """Return a detector that always reports this kind of file system."""
    return lambda _: kind


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/homeless", "ext4"),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/home/me/a b/c", "fuse.sshfs"),
        ("/mnt/data", "cifs"),
    ],
)
def test_the_file_system_of_a_folder_is_the_nearest_mount_above_it(mounts: Path, folder: str, kind: str):
    """Shows: P17."""
    assert detect_filesystem_type(Path(folder), mounts) == kind


def test_an_unknown_file_system_uses_the_write_ahead_log(tmp_path: Path):
    assert detect_filesystem_type(tmp_path, tmp_path / "missing") == ""
    assert journal_mode_for("") == WAL


def test_the_mount_list_of_this_machine_is_read(tmp_path: Path):
    expected = subprocess.run(
        ["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert detect_filesystem_type(Path("/proc")) == expected == "proc"
    assert detect_filesystem_type(tmp_path)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "fuse", "fuse.sshfs", "virtiofs"]
)
def test_network_and_fuse_file_systems_use_no_write_ahead_log(kind: str):
    """Shows: P17."""
    assert journal_mode_for(kind) == DELETE


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs"])
def test_local_file_systems_use_the_write_ahead_log(kind: str):
    assert journal_mode_for(kind) == WAL


def stored_journal_mode(path: Path) -> str:
    [(mode,)] = query_ledger(path, "PRAGMA journal_mode")
    return mode


async def test_a_ledger_on_a_network_file_system_works_without_a_write_ahead_log(tmp_path: Path):
    """Shows: P17."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=report_filesystem("nfs4")) as ledger:
        await asyncio.gather(
            *(ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}"))) for n in range(50))
        )
        assert len(await ledger.read(lambda tx: tx.find_runs())) == 50
        assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.db"]
    assert stored_journal_mode(path) == "delete"


async def test_a_ledger_that_moves_to_another_file_system_changes_its_journal_mode(tmp_path: Path):
    path = tmp_path / "ledger.db"
    for kind, mode in (("ext4", "wal"), ("nfs4", "delete"), ("ext4", "wal")):
        async with open_ledger(path, detect_filesystem=report_filesystem(kind)) as ledger:
            await ledger.write(lambda tx: tx.count_runs())
        assert stored_journal_mode(path) == mode


READER_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM runs").fetchall()
print("reading", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


async def start_reader(path: Path) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER_PROGRAM, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"reading\n"
    return process


async def test_a_commit_without_write_ahead_log_waits_for_readers(tmp_path: Path):
    """Shows: P17, P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=report_filesystem("nfs4")) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        reader = await start_reader(path)
        commit = asyncio.ensure_future(ledger.write(lambda tx: tx.add_run(make_run("second"))))
        done, _ = await asyncio.wait([commit], timeout=0.3)
        assert not done
        await reader.communicate(b"\n")
        await commit
        assert {run.id for run in await ledger.read(lambda tx: tx.find_runs())} == {"first", "second"}


async def test_a_commit_blocked_by_a_reader_fails_and_the_ledger_stays_usable(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=report_filesystem("nfs4"), busy_timeout_s=0.3) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        reader = await start_reader(path)
        with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
            await ledger.write(lambda tx: tx.add_run(make_run("second")))
        await reader.communicate(b"\n")
        await ledger.write(lambda tx: tx.add_run(make_run("third")))
        assert {run.id for run in await ledger.read(lambda tx: tx.find_runs())} == {"first", "third"}
