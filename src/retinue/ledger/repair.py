"""Repair: whether the ledger's file is sound, and how a damaged one is set aside."""

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from retinue.errors import NoRoom, Unreadable
from retinue.ledger.file import PATIENCE_SECONDS, meaning
from retinue.ledger.tx import SqliteTx

_BESIDE = ("-wal", "-shm")


def damage(path: Path) -> str | None:
    """What is wrong with the file, None when nothing is: every page and every row is read. No file is sound."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            return _page_damage(connection) or _row_damage(connection, path)
    except sqlite3.Error as error:
        meant = meaning(error, path)
        if isinstance(meant, Unreadable):
            return str(error)
        raise meant from error


def set_aside(path: Path, *, at: datetime) -> Path:
    """Renames the file and what belongs to it, and answers where it is now; the next use starts an empty ledger.
    Only for a time when no process works runs: one that has the file open would go on writing to the old one."""
    place = path.with_name(f"{path.name}.damaged-{at:%Y%m%dT%H%M%S%fZ}")
    try:
        # The log goes first: left behind, it would be replayed into the new file.
        for ending in _BESIDE:
            beside = path.with_name(path.name + ending)
            if beside.exists():
                beside.rename(place.with_name(place.name + ending))
        path.rename(place)
    except OSError as error:
        raise NoRoom(f"{path}: the damaged ledger cannot be set aside: {error.strerror}") from error
    return place


def _page_damage(connection: sqlite3.Connection) -> str | None:
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if found == "ok" else " ".join(found.split())


def _row_damage(connection: sqlite3.Connection, path: Path) -> str | None:
    if not connection.execute("PRAGMA user_version").fetchone()[0]:
        return None
    tx = SqliteTx(connection, path)
    try:
        tx.runs()
        tx.events(limit=2**62)
    except Unreadable as error:
        return error.problem
    return None
