"""What kind of disk the ledger is on decides how it is kept: no shared memory where others stand behind the files."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

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


def on(kind: str) -> Callable[[Path], str]:
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
def test_a_folder_is_on_the_disk_that_is_mounted_nearest_above_it(mounts: Path, folder: str, kind: str):
    """Shows: P17."""
    assert detect_filesystem_type(Path(folder), mounts) == kind


def test_where_the_kernel_has_no_list_nothing_is_known_and_the_log_is_used(tmp_path: Path):
    assert detect_filesystem_type(tmp_path, tmp_path / "missing") == ""
    assert journal_mode_for("") == WAL


def test_the_real_list_is_understood(tmp_path: Path):
    asked = subprocess.run(
        ["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert detect_filesystem_type(Path("/proc")) == asked == "proc"
    assert detect_filesystem_type(tmp_path)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "fuse", "fuse.sshfs", "virtiofs"]
)
def test_files_that_others_stand_behind_are_kept_without_shared_memory(kind: str):
    """Shows: P17."""
    assert journal_mode_for(kind) == DELETE


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs"])
def test_a_disk_of_this_machine_has_the_log(kind: str):
    assert journal_mode_for(kind) == WAL


def mode_of(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


async def test_a_ledger_on_a_network_disk_works_without_a_log_beside_it(tmp_path: Path):
    """Shows: P17."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=on("nfs4")) as ledger:
        await asyncio.gather(
            *(ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}"))) for n in range(50))
        )
        assert len(await ledger.read(lambda tx: tx.find_runs())) == 50
        assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.db"]
    assert mode_of(path) == "delete"


async def test_a_ledger_that_moves_to_another_kind_of_disk_is_kept_as_that_needs(tmp_path: Path):
    path = tmp_path / "ledger.db"
    for kind, mode in (("ext4", "wal"), ("nfs4", "delete"), ("ext4", "wal")):
        async with open_ledger(path, detect_filesystem=on(kind)) as ledger:
            await ledger.write(lambda tx: tx.count_runs())
        assert mode_of(path) == mode


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM runs").fetchall()
print("reading", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


async def reading(path: Path) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"reading\n"
    return process


async def test_a_commit_without_a_log_waits_for_those_who_read(tmp_path: Path):
    """Shows: P17, P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=on("nfs4")) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        reader = await reading(path)
        waiting = asyncio.ensure_future(ledger.write(lambda tx: tx.add_run(make_run("second"))))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await reader.communicate(b"\n")
        await waiting
        assert {run.id for run in await ledger.read(lambda tx: tx.find_runs())} == {"first", "second"}


async def test_a_reader_that_never_ends_is_the_cause_and_the_ledger_goes_on(tmp_path: Path):
    """Shows: P27."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path, detect_filesystem=on("nfs4"), busy_timeout_s=0.3) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("first")))
        reader = await reading(path)
        with pytest.raises(SessionLocked, match="the ledger is locked by another process"):
            await ledger.write(lambda tx: tx.add_run(make_run("second")))
        await reader.communicate(b"\n")
        await ledger.write(lambda tx: tx.add_run(make_run("third")))
        assert {run.id for run in await ledger.read(lambda tx: tx.find_runs())} == {"first", "third"}
