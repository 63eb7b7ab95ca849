"""A ledger transaction in SQLite: fixed statements, values only as parameters."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, Unpack

from msgspec.structs import replace

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.delivery import Delivery
from retinue.domain.event import Event
from retinue.domain.run import Run, Status
from retinue.domain.side_effect import SideEffect
from retinue.domain.watch import Interjection, Watch
from retinue.interfaces import DeliveryFilters, InterjectionFilters, RunFilters, WatchFilters
from retinue.ledger import (
    approvals,
    deliveries,
    retention,
    run_queries,
    run_rows,
    side_effects,
    tombstones,
    watches,
)
from retinue.ledger.database import damaged_file_error

T = TypeVar("T")
CountFilter = tuple[Status | None, str | None, str | None]
"""Filters of a count: status, root and requester; None matches any."""

_INSERT_EVENT = f"INSERT INTO events ({', '.join(run_rows.EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(run_rows.EVENT_COLUMNS))})"  # noqa: S608  (the same)
_SELECT_EVENTS = f"SELECT seq, {', '.join(run_rows.EVENT_COLUMNS)} FROM events WHERE seq > ?"  # noqa: S608  (the same)


@dataclass(slots=True)
class TransactionCache:
    """Cache of runs and counts within one transaction.

    A thousand sibling runs may read the same parent and the same counts, and no other process writes
    meanwhile.
    """

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    counts: dict[CountFilter, int] = field(default_factory=dict[CountFilter, int])

    def add_run(self, run: Run) -> None:
        for (status, root, requester), count in self.counts.items():
            if (
                (status is None or run.status is status)
                and (root is None or run.root_id == root)
                and (requester is None or run.request.requester == requester)
            ):
                self.counts[status, root, requester] = count + 1

    def invalidate_run(self, run_id: str) -> None:
        self.runs.pop(run_id, None)
        self.counts.clear()

    def clear(self) -> None:
        self.runs.clear()
        self.counts.clear()


class SqliteTransaction:
    """The transaction of one step, in a savepoint of its own.

    Emitted events are published only when the step's commit is on disk.
    """

    __slots__ = ("_cache", "_connection", "_path", "emitted_events")

    def __init__(
        self, connection: sqlite3.Connection, path: Path, cache: TransactionCache | None = None
    ) -> None:
        self._connection = connection
        self._path = path
        self._cache = cache or TransactionCache()
        self.emitted_events: list[Event] = []

    def get_run(self, run_id: str, *, with_children: bool = False) -> Run | None:
        if not with_children and (cached := self._cache.runs.get(run_id)) is not None:
            return cached
        row = run_queries.select_run(self._connection, run_id)
        if row is None:
            return tombstones.select_tombstone(self._connection, run_id)
        if with_children:
            return self._decode_run(row, run_queries.select_child_ids(self._connection, row.id))
        run = self._cache.runs[run_id] = self._decode_run(row, ())
        return run

    def get_run_by_key(self, request_key: str) -> Run | None:
        row = run_queries.select_run_by_key(self._connection, request_key)
        if row is None:
            return tombstones.select_tombstone_by_key(self._connection, request_key)
        return self._decode_run(row, ())

    def add_run(self, run: Run) -> None:
        """Insert a run; the request key and the run id must be unique.

        Children are derived: the runs that name this run as parent.
        """
        run_queries.insert_run(self._connection, run)
        self._cache.add_run(run)

    def update_run(self, run: Run) -> None:
        """Update a run; `child_ids` is ignored, because children are the runs that name it as parent."""
        self._cache.invalidate_run(run.id)
        run_queries.update_run(self._connection, run)

    def find_runs(self, *, with_children: bool = False, **filters: Unpack[RunFilters]) -> list[Run]:
        """Return matching runs, newest first by created_at, then by id."""
        rows_found = run_queries.select_runs(self._connection, **filters)
        if not with_children:
            return [self._decode_run(row, ()) for row in rows_found]
        children = run_queries.select_children_by_parent(self._connection, [row.id for row in rows_found])
        return [self._decode_run(row, children.get(row.id, ())) for row in rows_found]

    def has_live_children(
        self, run_id: str, *, awaited: bool | None = None, with_running_clock: bool = False
    ) -> bool:
        return run_queries.has_live_children(
            self._connection, run_id, awaited=awaited, with_running_clock=with_running_clock
        )

    def has_undelivered_work(self, run_id: str, session: str) -> bool:
        return run_queries.has_undelivered_work(self._connection, run_id, session)

    def find_owner_ids(self, status: Sequence[Status]) -> set[str]:
        return run_queries.select_owners(self._connection, status)

    def find_pruned_run_ids(self) -> set[str]:
        return tombstones.select_tombstone_ids(self._connection)

    def count_runs(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int:
        counts, key = self._cache.counts, (status, root, requester)
        if (cached := counts.get(key)) is None:
            cached = counts[key] = run_queries.count_runs(
                self._connection, status, root=root, requester=requester
            )
        return cached

    def get_delivery(self, delivery_id: str) -> Delivery | None:
        return self._read_checked(lambda: deliveries.select_delivery(self._connection, delivery_id))

    def add_delivery(self, delivery: Delivery) -> None:
        deliveries.insert_delivery(self._connection, delivery)

    def update_delivery(self, delivery: Delivery) -> None:
        deliveries.update_delivery(self._connection, delivery)

    def find_deliveries(self, **filters: Unpack[DeliveryFilters]) -> list[Delivery]:
        return self._read_checked(lambda: deliveries.select_deliveries(self._connection, **filters))

    def _read_checked(self, select: Callable[[], T]) -> T:
        try:
            return select()
        except run_rows.ROW_ERRORS as error:
            raise damaged_file_error(self._path, "a delivery, side effect or watch", error) from error

    def get_approval(self, approval_id: str) -> Approval | None:
        matches = [each for each in self.find_approvals(prefix=approval_id) if each.id == approval_id]
        return matches[0] if matches else None

    def add_approval(self, approval: Approval) -> None:
        approvals.insert_approval(self._connection, approval)

    def update_approval(self, approval: Approval) -> None:
        approvals.update_approval(self._connection, approval)

    def find_approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[ApprovalState] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        try:
            return approvals.select_approvals(
                self._connection, run=run, call=call, state=state, prefix=prefix
            )
        except run_rows.ROW_ERRORS as error:
            raise damaged_file_error(self._path, "an approval", error) from error

    def get_side_effect(self, call_id: str) -> SideEffect | None:
        return self._read_checked(lambda: side_effects.select_side_effect(self._connection, call_id))

    def save_side_effect(self, side_effect: SideEffect) -> None:
        side_effects.upsert_side_effect(self._connection, side_effect)

    def find_side_effects(self, run_id: str) -> list[SideEffect]:
        return self._read_checked(lambda: side_effects.select_run_side_effects(self._connection, run_id))

    def save_watch(self, watch: Watch) -> None:
        watches.upsert_watch(self._connection, watch)

    def find_watches(self, **filters: Unpack[WatchFilters]) -> list[Watch]:
        return self._read_checked(lambda: watches.select_watches(self._connection, **filters))

    def save_interjection(self, interjection: Interjection) -> None:
        watches.upsert_interjection(self._connection, interjection)

    def find_interjections(self, **filters: Unpack[InterjectionFilters]) -> list[Interjection]:
        return self._read_checked(lambda: watches.select_interjections(self._connection, **filters))

    def emit(self, event: Event) -> None:
        seq = run_rows.execute_statement(self._connection, _INSERT_EVENT, run_rows.event_row(event)).lastrowid
        self.emitted_events.append(replace(event, seq=seq))

    def find_events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]:
        where, values = ("", ()) if session is None else (" AND session=?", (session,))
        sql = f"{_SELECT_EVENTS}{where} ORDER BY seq LIMIT ?"
        cursor = run_rows.execute_statement(self._connection, sql, (after, *values, max(0, limit)))
        try:
            return [
                run_rows.event_from_row(seq, run_rows.EventRow._make(columns))
                for seq, *columns in cursor.fetchall()
            ]
        except run_rows.ROW_ERRORS as error:
            raise damaged_file_error(self._path, "an event", error) from error

    def events_pruned_through(self) -> int:
        return retention.select_pruned_through(self._connection)

    def last_seq(self) -> int:
        return self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]

    def _decode_run(self, row: run_rows.RunRow, children: Sequence[str]) -> Run:
        try:
            return run_rows.run_from_row(row, children)
        except run_rows.ROW_ERRORS as error:
            raise damaged_file_error(self._path, f"run {row.id}", error) from error


class ReadOnlyTransaction(SqliteTransaction):
    """A transaction for reading only."""

    __slots__ = ()

    def roll_back(self) -> None:
        """End the transaction, so that the next read sees what has been committed since."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def add_run(self, run: Run) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to add run {run.id}")

    def update_run(self, run: Run) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to change run {run.id}")

    def add_approval(self, approval: Approval) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to add approval {approval.id}")

    def update_approval(self, approval: Approval) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to change approval {approval.id}")

    def add_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to add delivery {delivery.id}")

    def update_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to change delivery {delivery.id}")

    def save_side_effect(self, side_effect: SideEffect) -> None:
        raise TypeError(
            f"a read transaction cannot write; use Ledger.write to change the side effect of {side_effect.call}"
        )

    def save_watch(self, watch: Watch) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to change the watch {watch.id}")

    def save_interjection(self, interjection: Interjection) -> None:
        raise TypeError(
            f"a read transaction cannot write; use Ledger.write to change the interjection {interjection.id}"
        )

    def emit(self, event: Event) -> None:
        raise TypeError(f"a read transaction cannot write; use Ledger.write to emit {event.kind}")
