"""One step's view of the SQLite ledger: fixed statements, values only as parameters."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from retinue.domain.approval import Approval, State
from retinue.domain.change import replace
from retinue.domain.delivery import Delivery
from retinue.domain.event import Event
from retinue.domain.run import Run, Status
from retinue.domain.side_effect import Deed
from retinue.domain.watch import Interjection, Watch
from retinue.ledger import approvals, deliveries, run_queries, run_rows, side_effects, watches
from retinue.ledger.database import damaged

T = TypeVar("T")
Count = tuple[Status | None, str | None, str | None]
"""What was counted: status, root and requester, None for any."""

_EMIT = f"INSERT INTO events ({', '.join(run_rows.EVENT)}) VALUES ({', '.join('?' * len(run_rows.EVENT))})"  # noqa: S608  (the same)
_HEAR = f"SELECT seq, {', '.join(run_rows.EVENT)} FROM events WHERE seq > ?"  # noqa: S608  (the same)


@dataclass(slots=True)
class Known:
    """What was found in a transaction, as long as it is so: a thousand siblings ask for one parent, and how many are
    running, and nobody else writes meanwhile."""

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    counts: dict[Count, int] = field(default_factory=dict[Count, int])

    def born(self, run: Run) -> None:
        for (status, root, requester), count in self.counts.items():
            if (
                (status is None or run.status is status)
                and (root is None or run.root == root)
                and (requester is None or run.ask.requester == requester)
            ):
                self.counts[status, root, requester] = count + 1

    def moved(self, run_id: str) -> None:
        self.runs.pop(run_id, None)
        self.counts.clear()

    def forget(self) -> None:
        self.runs.clear()
        self.counts.clear()


class SqliteTx:
    """Alone in its savepoint. What it emits is handed on only when the step's commit is on disk."""

    __slots__ = ("_connection", "_known", "_path", "emitted")

    def __init__(self, connection: sqlite3.Connection, path: Path, known: Known | None = None) -> None:
        self._connection = connection
        self._path = path
        self._known = known or Known()
        self.emitted: list[Event] = []

    def run(self, run_id: str, *, family: bool = False) -> Run | None:
        if not family and (known := self._known.runs.get(run_id)) is not None:
            return known
        found = run_queries.one(self._connection, run_id)
        if found is None:
            return None
        if family:
            return self._read(found, run_queries.children(self._connection, found[0]))
        read = self._known.runs[run_id] = self._read(found, ())
        return read

    def run_by_key(self, ask_key: str) -> Run | None:
        found = run_queries.by_key(self._connection, ask_key)
        return None if found is None else self._read(found, ())

    def add_run(self, run: Run) -> None:
        """The ask's key and the run's id are both unique; the children are whoever names this run as parent."""
        run_queries.add(self._connection, run)
        self._known.born(run)

    def set_run(self, run: Run) -> None:
        """The children stay whoever names this run as parent, whatever the value says."""
        self._known.moved(run.id)
        run_queries.put(self._connection, run)

    def runs(self, *, family: bool = False, **wishes: Any) -> list[Run]:
        """Newest first by created_at; equal times newest id first."""
        found = run_queries.find(self._connection, **wishes)
        if not family:
            return [self._read(row, ()) for row in found]
        children = run_queries.families(self._connection, [row[0] for row in found])
        return [self._read(row, children.get(row[0], ())) for row in found]

    def at_work_for(self, run_id: str, *, awaited: bool | None = None) -> bool:
        return run_queries.at_work_for(self._connection, run_id, awaited=awaited)

    def holds(self, run_id: str, session: str) -> bool:
        return run_queries.holds(self._connection, run_id, session)

    def owners(self, status: Sequence[Status]) -> set[str]:
        return run_queries.owners(self._connection, status)

    def count(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int:
        counts, key = self._known.counts, (status, root, requester)
        if (known := counts.get(key)) is None:
            known = counts[key] = run_queries.count(self._connection, status, root=root, requester=requester)
        return known

    def delivery(self, delivery_id: str) -> Delivery | None:
        return self._whole(lambda: deliveries.one(self._connection, delivery_id))

    def add_delivery(self, delivery: Delivery) -> None:
        deliveries.add(self._connection, delivery)

    def set_delivery(self, delivery: Delivery) -> None:
        deliveries.put(self._connection, delivery)

    def deliveries(self, **wishes: Any) -> list[Delivery]:
        return self._whole(lambda: deliveries.find(self._connection, **wishes))

    def _whole(self, look: Callable[[], T]) -> T:
        try:
            return look()
        except run_rows.DAMAGE as error:
            raise damaged(self._path, "a delivery, a deed or a watch", error) from error

    def approval(self, approval_id: str) -> Approval | None:
        found = [each for each in self.approvals(prefix=approval_id) if each.id == approval_id]
        return found[0] if found else None

    def add_approval(self, approval: Approval) -> None:
        approvals.add(self._connection, approval)

    def set_approval(self, approval: Approval) -> None:
        approvals.put(self._connection, approval)

    def approvals(
        self,
        *,
        run: str | None = None,
        call: str | None = None,
        state: Sequence[State] | None = None,
        prefix: str | None = None,
    ) -> list[Approval]:
        try:
            return approvals.find(self._connection, run=run, call=call, state=state, prefix=prefix)
        except run_rows.DAMAGE as error:
            raise damaged(self._path, "an approval", error) from error

    def deed(self, call: str) -> Deed | None:
        return self._whole(lambda: side_effects.one(self._connection, call))

    def set_deed(self, deed: Deed) -> None:
        side_effects.put(self._connection, deed)

    def deeds(self, run: str) -> list[Deed]:
        return self._whole(lambda: side_effects.of(self._connection, run))

    def set_watch(self, watch: Watch) -> None:
        watches.put_watch(self._connection, watch)

    def watches(self, **wishes: Any) -> list[Watch]:
        return self._whole(lambda: watches.watches(self._connection, **wishes))

    def set_interjection(self, said: Interjection) -> None:
        watches.put_interjection(self._connection, said)

    def interjections(self, **wishes: Any) -> list[Interjection]:
        return self._whole(lambda: watches.interjections(self._connection, **wishes))

    def emit(self, event: Event) -> None:
        seq = run_rows.asked(self._connection, _EMIT, run_rows.event_row(event)).lastrowid
        self.emitted.append(replace(event, seq=seq))

    def events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]:
        where, values = ("", ()) if session is None else (" AND session=?", (session,))
        sql = f"{_HEAR}{where} ORDER BY seq LIMIT ?"
        found = run_rows.asked(self._connection, sql, (after, *values, max(0, limit)))
        try:
            return [run_rows.event_from(row[0], row[1:]) for row in found.fetchall()]
        except run_rows.DAMAGE as error:
            raise damaged(self._path, "an event", error) from error

    def last_seq(self) -> int:
        return self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]

    def _read(self, row: Sequence[Any], children: Sequence[str]) -> Run:
        try:
            return run_rows.run_from(row, children)
        except run_rows.DAMAGE as error:
            raise damaged(self._path, f"run {row[0]}", error) from error


class LookingTx(SqliteTx):
    """The same view, for reading only."""

    __slots__ = ()

    def end(self) -> None:
        """Whoever looks next sees what was committed meanwhile."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def add_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to add run {run.id}")

    def set_run(self, run: Run) -> None:
        raise TypeError(f"a look only reads: use do to change run {run.id}")

    def add_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to add approval {approval.id}")

    def set_approval(self, approval: Approval) -> None:
        raise TypeError(f"a look only reads: use do to change approval {approval.id}")

    def add_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to add delivery {delivery.id}")

    def set_delivery(self, delivery: Delivery) -> None:
        raise TypeError(f"a look only reads: use do to change delivery {delivery.id}")

    def set_deed(self, deed: Deed) -> None:
        raise TypeError(f"a look only reads: use do to change the deed of {deed.call}")

    def set_watch(self, watch: Watch) -> None:
        raise TypeError(f"a look only reads: use do to change the watch {watch.id}")

    def set_interjection(self, said: Interjection) -> None:
        raise TypeError(f"a look only reads: use do to change the interjection {said.id}")

    def emit(self, event: Event) -> None:
        raise TypeError(f"a look only reads: use do to emit {event.kind}")
