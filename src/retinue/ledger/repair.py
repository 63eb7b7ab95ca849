"""Repair: whether the ledger's file is sound, and how a damaged one is set aside."""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from retinue.errors import Held, NoRoom, Unreadable
from retinue.ledger.database import PATIENCE_SECONDS, meaning, newest, place
from retinue.ledger.transaction import SqliteTx

DAMAGED = "damaged-"
"""What the name of a ledger that was set aside goes on with."""

_BESIDE = ("-wal", "-shm", "-journal")
_LOCKED_FROM = 0x40000000
_LOCKED_BYTES = 512
"""Where SQLite's own locks are: whoever has the file open holds some of these bytes."""


def damage(path: Path) -> str | None:
    """What is wrong with the file, None when nothing is: every page and every row is read. No file is sound."""
    return _found(path, lambda connection: _page_damage(connection) or _row_damage(connection, path))


def quick_damage(path: Path) -> str | None:
    """The same, found in a moment: every page is looked at, but not what the rows say."""
    return _found(path, lambda connection: _page_damage(connection, "quick_check"))


def set_aside(path: Path, *, at: datetime) -> Path:
    """Renames the file and what belongs to it, and answers where it is now; the next use starts an empty ledger. Held
    while another process has it open: that one would go on writing to the old one. Nothing in this process may have it
    open either."""
    place = path.with_name(f"{path.name}.{DAMAGED}{at:%Y%m%dT%H%M%S%fZ}")
    try:
        with _alone(path):
            # The log goes first: left behind, it would be replayed into the new file.
            for ending in _BESIDE:
                beside = path.with_name(path.name + ending)
                if beside.exists():
                    beside.rename(place.with_name(place.name + ending))
            path.rename(place)
    except OSError as error:
        raise NoRoom(f"{path}: the damaged ledger cannot be set aside: {error.strerror}") from error
    return place


def kept_aside(path: Path) -> list[Path]:
    """Damaged ledgers that were set aside here, the oldest first."""
    named = sorted(path.parent.glob(f"{path.name}.{DAMAGED}*"))
    return [each for each in named if not each.name.endswith(_BESIDE)]


def _found(path: Path, look: Callable[[sqlite3.Connection], str | None]) -> str | None:
    if not path.is_file():
        return None
    try:
        with closing(_opened(path)) as connection:
            return look(connection)
    except sqlite3.Error as error:
        meant = meaning(error, path)
        if isinstance(meant, Unreadable):
            return str(error)
        raise meant from error


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(place(path), uri=True, timeout=PATIENCE_SECONDS, isolation_level=None)


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Whoever opens it meanwhile waits."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Held(
            f"{path}: another process has the damaged ledger open; end it, and run: retinue doctor --repair"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _page_damage(connection: sqlite3.Connection, check: str = "integrity_check") -> str | None:
    found = str(connection.execute(f"PRAGMA {check}(1)").fetchone()[0])
    return None if found == "ok" else " ".join(found.split())


def _row_damage(connection: sqlite3.Connection, path: Path) -> str | None:
    if connection.execute("PRAGMA user_version").fetchone()[0] != newest():
        return None  # its next opening brings it up to date, or says that it is another Retinue's
    tx = SqliteTx(connection, path)
    try:
        for run in tx.runs():
            tx.deeds(run.id)
        tx.events(limit=2**62)
        tx.deliveries()
        tx.approvals()
        tx.watches()
        tx.interjections()
    except Unreadable as error:
        return error.problem
    return None
