"""Remove purged sessions from the ledger, so that no byte of their rows is left in the file."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

import msgspec

from retinue.domain.event import Event
from retinue.domain.purge import PurgeTarget
from retinue.errors import Conflict, SessionLocked
from retinue.ledger.database import BUSY_TIMEOUT_S, open_database, translate_sqlite_error
from retinue.ledger.retention import rewrite_file
from retinue.ledger.tombstones import replace_with_tombstones
from retinue.ledger.transaction import SqliteTransaction

PURGED_CHANGE = "purged"
"""`data.change` of the event `session.changed` after a purge."""

_LISTED = "(SELECT value FROM json_each(?))"
_PURGES: Mapping[str, str] = {
    "events": f"DELETE FROM events WHERE (run IN {_LISTED} OR session IN {_LISTED}) AND seq < (SELECT max(seq) FROM events)",  # noqa: S608  (constant text)
    "deliveries": f"DELETE FROM deliveries WHERE run IN {_LISTED} OR session IN {_LISTED}",  # noqa: S608  (the same)
    "interjections": f"DELETE FROM interjections WHERE run IN {_LISTED} OR session IN {_LISTED}",  # noqa: S608  (the same)
}
"""Statements by table, for the ids of the purged runs and sessions. The newest event is that of the purge."""
_PURGE_WATCHES = f"DELETE FROM watches WHERE session IN {_LISTED} OR watcher IN {_LISTED}"  # noqa: S608  (the same)

PURGED_TABLES = frozenset({*_PURGES, "runs", "deeds", "approvals", "watches"})
"""Tables from which a purge removes rows; `replace_with_tombstones` handles those that belong to runs."""
KEPT_TABLES: Mapping[str, str] = {
    "pruned_runs": "ids, status, times and hashes only",
    "daily_usage": "sums by day, agent and model",
    "retention": "one number",
}
"""Tables without any text of a person or a model, and what they hold."""


def purge_ledger(
    path: Path, target: PurgeTarget, now: datetime, *, timeout_s: float = BUSY_TIMEOUT_S
) -> frozenset[str]:
    """Purge the sessions' rows and rewrite the file; return the ids of their runs. Call it in a thread.

    After a crash, repeat the call to finish the purge.

    Raises:
        Conflict: A run of the sessions is live; nothing was changed.
        SessionLocked: Another process reads the ledger, so the removed rows are still in the file.
    """
    if not path.is_file():
        return frozenset()
    try:
        with closing(open_database(path)) as connection:
            connection.execute(f"PRAGMA busy_timeout={int(timeout_s * 1000)}").close()
            run_ids = _purge_rows(connection, path, target, now)
            if not rewrite_file(connection, timeout_s=timeout_s):
                raise SessionLocked(
                    f"{path}: another process is reading the ledger, so what was removed is still in the file. "
                    "End that process, then repeat the purge."
                )
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path) from error
    return run_ids


def _purge_rows(
    connection: sqlite3.Connection, path: Path, target: PurgeTarget, now: datetime
) -> frozenset[str]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        run_ids = _select_ended_runs(connection, target)
        replace_with_tombstones(connection, run_ids)
        event = Event(kind="session.changed", at=now, session=target.session, data={"change": PURGED_CHANGE})
        SqliteTransaction(connection, path).emit(event)
        runs, sessions, removed = (
            msgspec.json.encode(sorted(each)).decode()
            for each in (run_ids, target.session_ids, target.removed_ids)
        )
        for statement in _PURGES.values():
            connection.execute(statement, (runs, sessions))
        connection.execute(_PURGE_WATCHES, (sessions, removed))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return run_ids


def _select_ended_runs(connection: sqlite3.Connection, target: PurgeTarget) -> frozenset[str]:
    """Return the runs of the sessions, also of children whose folders were removed earlier."""
    in_folder = " OR ".join("instr(path, ?) > 0" for _ in target.folders) or "0"
    sql = f"SELECT id, ended_at FROM runs WHERE session_id IN {_LISTED} OR {in_folder}"  # noqa: S608  (the same)
    ids = msgspec.json.encode(sorted(target.session_ids)).decode()
    rows = connection.execute(sql, (ids, *(f"/{each}/" for each in target.folders))).fetchall()
    if live := [run_id for run_id, ended_at in rows if ended_at is None]:
        raise Conflict(f"Run {live[0]} has not ended. Cancel it first with `retinue runs cancel {live[0]}`.")
    return frozenset(run_id for run_id, _ in rows)
