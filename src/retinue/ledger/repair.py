"""Check the ledger's file for damage, and rename a damaged one."""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from retinue.errors import DiskError, SessionLocked, Unreadable
from retinue.ledger.database import (
    BUSY_TIMEOUT_S,
    check_readable,
    database_uri,
    is_damage_error,
    latest_schema_version,
    translate_sqlite_error,
)
from retinue.ledger.transaction import SqliteTransaction

DAMAGED_SUFFIX = "damaged-"
"""Suffix, before the time, of the file name of a ledger that was renamed."""

_COMPANION_SUFFIXES = ("-wal", "-shm", "-journal")
_LOCK_START = 0x40000000
_LOCK_LENGTH = 512
"""SQLite's own lock bytes: every process that has the file open holds some of them."""


def find_damage(path: Path) -> str | None:
    """Read every page and row and describe what is damaged; None if the file is sound or missing.

    Raises:
        DiskError: The disk failed to read the file, so that it is unknown whether it is damaged.
    """
    return _check_database(path, lambda connection: _page_damage(connection) or _row_damage(connection, path))


def find_page_damage(path: Path) -> str | None:
    """Describe damaged pages without decoding the rows (fast); None if there are none.

    Raises:
        DiskError: The disk failed to read the file.
    """
    return _check_database(path, lambda connection: _page_damage(connection, "quick_check"))


def rename_damaged_ledger(path: Path, *, now: datetime) -> Path:
    """Rename the damaged file and its companions and return the new path.

    The next use starts an empty ledger. Nothing in this process may have the file open.

    Raises:
        SessionLocked: another process has it open and would keep writing to the old file.
        DiskError: the file cannot be renamed.
    """
    target = path.with_name(f"{path.name}.{DAMAGED_SUFFIX}{now:%Y%m%dT%H%M%S%fZ}")
    try:
        with _hold_exclusive_lock(path):
            # Move the log first: left behind, it would be replayed into the new file.
            for suffix in _COMPANION_SUFFIXES:
                companion = path.with_name(path.name + suffix)
                if companion.exists():
                    companion.rename(target.with_name(target.name + suffix))
            path.rename(target)
    except OSError as error:
        raise DiskError(f"{path}: the damaged ledger cannot be renamed: {error.strerror}") from error
    return target


def damaged_copies(path: Path) -> list[Path]:
    """Return the damaged ledgers that were renamed here, oldest first."""
    return [each for each in damaged_files(path) if not each.name.endswith(_COMPANION_SUFFIXES)]


def damaged_files(path: Path) -> list[Path]:
    """Return the files of all damaged ledgers, with their logs."""
    return sorted(path.parent.glob(f"{path.name}.{DAMAGED_SUFFIX}*"))


def _check_database(path: Path, check: Callable[[sqlite3.Connection], str | None]) -> str | None:
    if not path.is_file():
        return None
    if _check_once(path, check) is None:
        return None
    # A read that failed looks like damage. An intact file must not be replaced because of that.
    check_readable(path)
    return _check_once(path, check)


def _check_once(path: Path, check: Callable[[sqlite3.Connection], str | None]) -> str | None:
    try:
        with closing(_connect(path)) as connection:
            return check(connection)
    except sqlite3.Error as error:
        if is_damage_error(error):
            return str(error)
        raise translate_sqlite_error(error, path) from error


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(database_uri(path), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)


@contextmanager
def _hold_exclusive_lock(path: Path) -> Generator[None]:
    """Hold SQLite's lock bytes; a process that opens the file meanwhile waits."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_LENGTH, _LOCK_START)
    except BlockingIOError as error:
        os.close(descriptor)
        raise SessionLocked(
            f"{path}: another process has the damaged ledger open. End it, then run `retinue doctor --repair`."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _page_damage(connection: sqlite3.Connection, check: str = "integrity_check") -> str | None:
    report = str(connection.execute(f"PRAGMA {check}(1)").fetchone()[0])
    return None if report == "ok" else " ".join(report.split())


def _row_damage(connection: sqlite3.Connection, path: Path) -> str | None:
    if connection.execute("PRAGMA user_version").fetchone()[0] != latest_schema_version():
        return None  # the next opening migrates it, or reports that it is of a newer version
    tx = SqliteTransaction(connection, path)
    try:
        for run in tx.find_runs():
            tx.find_side_effects(run.id)
        tx.find_events(limit=2**62)
        tx.find_deliveries()
        tx.find_approvals()
        tx.find_watches()
        tx.find_interjections()
    except Unreadable as error:
        return error.problem
    return None
