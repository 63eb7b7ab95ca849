"""Prune old rows of the ledger in small batches, and give the free space back to the file system."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from retinue.domain.delivery import DeliveryState
from retinue.domain.limits import RetentionSettings
from retinue.domain.run import CONTINUABLE_STATUSES
from retinue.ledger.database import BUSY_TIMEOUT_S, open_database, translate_sqlite_error
from retinue.ledger.journal_mode import WAL
from retinue.ledger.run_rows import to_microseconds
from retinue.ledger.tombstones import replace_with_tombstones

T = TypeVar("T")

UNREAD_S = 10.0
"""Runs that ended this recently are not pruned by size, because the process that waited for one may not have read it."""
RUNS_PER_BATCH = 50
EVENTS_PER_BATCH = 500
_MIN_FREE_BYTES = 1 << 20
_FREE_SHARE = 4
"""The file is rewritten if more than a quarter of it, and at least a megabyte, is free."""
_PRUNED_THROUGH = "events_pruned_through"
_IN_TREE = "(root=:root AND root<>id OR id=:root)"
_RESUMABLE = ", ".join(f"'{each}'" for each in sorted(CONTINUABLE_STATUSES))
_SELECT_OLDEST_TREES = (
    "SELECT created_at, id, root FROM runs WHERE (created_at, id) > (?, ?) AND created_at < ?"
    " ORDER BY created_at, id LIMIT ?"
)
_SELECT_TREE = f"SELECT id FROM runs WHERE {_IN_TREE}"  # noqa: S608  (constant text)
_IS_TREE_NEEDED = (
    f"SELECT EXISTS (SELECT 1 FROM runs WHERE {_IN_TREE} AND (ended_at IS NULL OR ended_at >= :ended_before"  # noqa: S608  (the same)
    f" OR status IN ({_RESUMABLE}) AND ended_at >= :resumable_since))"
    f" OR EXISTS (SELECT 1 FROM deliveries WHERE run IN ({_SELECT_TREE})"
    f" AND (state='{DeliveryState.PENDING}' OR uncleared=1))"
    f" OR EXISTS (SELECT 1 FROM deliveries WHERE asker IN ({_SELECT_TREE}) AND state='{DeliveryState.PENDING}')"
    f" OR EXISTS (SELECT 1 FROM interjections WHERE open=1 AND run IN ({_SELECT_TREE}))"
)
"""Whether a tree has a run that is live, younger than the age, resumable or not delivered."""
_SELECT_EVENTS = (
    "SELECT events.seq, runs.root FROM events LEFT JOIN runs ON runs.id=events.run"
    " WHERE events.seq > ? AND events.seq < (SELECT max(seq) FROM events) AND events.at < ? ORDER BY events.seq LIMIT ?"
)
"""The newest event stays, because the number of the next one is one higher."""


class PruneResult(Struct, frozen=True, kw_only=True):
    """What pruning removed from the ledger."""

    runs: int = 0
    events: int = 0
    freed_bytes: int = 0

    def describe(self) -> str:
        freed = f"; the ledger is {self.freed_bytes / 1e6:.1f} MB smaller" if self.freed_bytes else ""
        return f"{self.runs} ended runs and {self.events} events were pruned{freed}"


class LedgerPruner:
    """Prunes one ledger.

    Each batch is one short transaction on a connection of its own, so that a crash leaves the ledger as it was
    before or after a batch, and other work waits for a few milliseconds at most. Call the methods in a thread.
    """

    def __init__(self, path: Path, settings: RetentionSettings, *, resume_window_s: float) -> None:
        self._path = path
        self._settings = settings
        self._resume_window = timedelta(seconds=resume_window_s)
        self._run_cursor: tuple[int, str] = (0, "")
        self._event_cursor = 0

    def prune(
        self,
        now: datetime,
        *,
        pause: Callable[[], object] = lambda: None,
        is_cancelled: Callable[[], bool] = bool,
    ) -> PruneResult:
        """Prune everything that is due, and shrink the file if much of it is free.

        Args:
            now: The current time.
            pause: Called after each batch, for example to let other work proceed.
            is_cancelled: Called before each batch; True stops the pruning.

        Raises:
            DiskError: The ledger cannot be written.
        """
        if not self._path.is_file():
            return PruneResult()
        try:
            with closing(self._connect()) as connection:
                return self._prune_all(connection, now, pause, is_cancelled)
        except sqlite3.Error as error:
            raise translate_sqlite_error(error, self._path) from error

    def _prune_all(
        self,
        connection: sqlite3.Connection,
        now: datetime,
        pause: Callable[[], object],
        is_cancelled: Callable[[], bool],
    ) -> PruneResult:
        runs = events = 0
        for by_size in (False, True):
            self._run_cursor, self._event_cursor = (0, ""), 0
            while not is_cancelled() and (batch := self._prune_batch(connection, now, by_size=by_size)):
                runs, events = runs + batch[0], events + batch[1]
                pause()
        freed = 0 if is_cancelled() else _shrink(connection, self._path)
        return PruneResult(runs=runs, events=events, freed_bytes=freed)

    def _connect(self) -> sqlite3.Connection:
        connection = open_database(self._path)
        connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}").close()
        return connection

    def _prune_batch(
        self, connection: sqlite3.Connection, now: datetime, *, by_size: bool
    ) -> tuple[int, int] | None:
        """Prune one batch and return how many runs and events; None if nothing is left to look at."""
        if by_size and used_bytes(connection) <= self._settings.ledger_bytes:
            return None
        runs_before, events_before = (
            (now - timedelta(seconds=UNREAD_S),) * 2
            if by_size
            else (_age_limit(now, days) for days in self._settings.days)
        )
        return _in_transaction(
            connection,
            lambda: self._prune_rows(connection, now, runs_before=runs_before, events_before=events_before),
        )

    def _prune_rows(
        self,
        connection: sqlite3.Connection,
        now: datetime,
        *,
        runs_before: datetime | None,
        events_before: datetime | None,
    ) -> tuple[int, int] | None:
        trees = _oldest_trees(connection, self._run_cursor, runs_before) if runs_before else []
        events = _oldest_events(connection, self._event_cursor, events_before) if events_before else []
        if not trees and not events:
            return None
        needed = _NeededTrees(connection, resumable_since=now - self._resume_window)
        pruned_runs: set[str] = set()
        for created_at, run_id, root in trees:
            self._run_cursor = (created_at, run_id)
            if runs_before and run_id not in pruned_runs and not needed.check(root, runs_before):
                pruned_runs |= {each for (each,) in connection.execute(_SELECT_TREE, {"root": root})}
                if len(pruned_runs) >= RUNS_PER_BATCH:
                    break
        pruned_events = [seq for seq, root in events if root is None or not needed.check(root, now)]
        if events:
            self._event_cursor = events[-1][0]
        replace_with_tombstones(connection, pruned_runs)
        _delete_events(connection, pruned_events)
        return len(pruned_runs), len(pruned_events)


class _NeededTrees:
    """Remembers within one transaction which trees must be kept."""

    def __init__(self, connection: sqlite3.Connection, *, resumable_since: datetime) -> None:
        self._connection = connection
        self._resumable_since = to_microseconds(resumable_since)
        self._known: dict[tuple[str, datetime], bool] = {}

    def check(self, root: str, ended_before: datetime) -> bool:
        key = (root, ended_before)
        if key not in self._known:
            values = {
                "root": root,
                "ended_before": to_microseconds(ended_before),
                "resumable_since": self._resumable_since,
            }
            self._known[key] = bool(self._connection.execute(_IS_TREE_NEEDED, values).fetchone()[0])
        return self._known[key]


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages in use."""
    page_size, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_size", "page_count", "freelist_count")
    )
    return page_size * (pages - free)


def rewrite_file(connection: sqlite3.Connection, *, timeout_s: float = BUSY_TIMEOUT_S) -> bool:
    """Rewrite the whole file and empty the write-ahead log, so that no byte of a deleted row is left.

    Other processes can still read, but wait to write: 3 to 6 ms for each megabyte of rows.

    Returns:
        False if another process has been reading for so long that the old pages are still there.
    """
    connection.execute("VACUUM")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != WAL:
        return True
    deadline = time.monotonic() + timeout_s
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def select_pruned_through(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM retention WHERE name=?", (_PRUNED_THROUGH,)).fetchone()
    return 0 if row is None else row[0]


def _shrink(connection: sqlite3.Connection, path: Path) -> int:
    """Rewrite the file if much of it is free, and return by how many bytes it became smaller."""
    page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    free = page_size * connection.execute("PRAGMA freelist_count").fetchone()[0]
    if free < _MIN_FREE_BYTES or free * _FREE_SHARE < used_bytes(connection) + free:
        return 0
    before = os.path.getsize(path)  # noqa: PTH202  (one stat)
    rewrite_file(connection)
    return max(0, before - os.path.getsize(path))  # noqa: PTH202  (the same)


def _age_limit(now: datetime, days: float) -> datetime | None:
    """Return the time before which rows are old; None if their age does not matter."""
    return now - timedelta(days=days) if days else None


def _oldest_trees(
    connection: sqlite3.Connection, cursor: tuple[int, str], before: datetime
) -> list[tuple[int, str, str]]:
    values = (*cursor, to_microseconds(before), RUNS_PER_BATCH)
    return connection.execute(_SELECT_OLDEST_TREES, values).fetchall()


def _oldest_events(
    connection: sqlite3.Connection, after: int, before: datetime
) -> list[tuple[int, str | None]]:
    return connection.execute(_SELECT_EVENTS, (after, to_microseconds(before), EVENTS_PER_BATCH)).fetchall()


def _delete_events(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Delete events and record the highest number: a client that received only older ones has missed some."""
    deleted = list(numbers)
    if not deleted:
        return
    connection.execute(
        "DELETE FROM events WHERE seq IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(deleted).decode(),),
    )
    connection.execute(
        "INSERT INTO retention (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value=max(value, excluded.value)",
        (_PRUNED_THROUGH, max(deleted)),
    )


def _in_transaction(connection: sqlite3.Connection, step: Callable[[], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        value = step()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return value
