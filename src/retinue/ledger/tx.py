"""One step's view of the SQLite ledger: fixed statements, values only as parameters."""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.domain.announcement import Delivery
from retinue.domain.approval import Approval, State
from retinue.domain.change import replace
from retinue.domain.deed import Deed
from retinue.domain.event import Event
from retinue.domain.run import Reason, Run, Status
from retinue.domain.watch import Interjection, Watch
from retinue.errors import Failed, NotFound
from retinue.ledger import approvals, deeds, deliveries, rows, watches
from retinue.ledger.file import damaged

T = TypeVar("T")

_ADD = (
    f"INSERT INTO runs ({', '.join(rows.FACTS + rows.ASKED)}) "  # noqa: S608  (names of our own columns)
    f"VALUES ({', '.join('?' * len(rows.FACTS + rows.ASKED))})"
)
_SET = f"UPDATE runs SET {', '.join(f'{name}=?' for name in rows.FACTS[1:] + rows.ASKED)} WHERE id=?"  # noqa: S608  (the same)
_READ = f"SELECT ask, {', '.join(rows.FACTS)} FROM runs"  # noqa: S608  (the same)
_EMIT = f"INSERT INTO events ({', '.join(rows.EVENT)}) VALUES ({', '.join('?' * len(rows.EVENT))})"  # noqa: S608  (the same)
_HEAR = f"SELECT seq, {', '.join(rows.EVENT)} FROM events WHERE seq > ?"  # noqa: S608  (the same)
_LIVING = "ended_at IS NULL"
"""Of every run that is live, and of no other."""
_NEWEST = " ORDER BY created_at DESC, id DESC LIMIT ?"
_CHILD = "SELECT id FROM runs WHERE parent_run=? ORDER BY created_at, id"
_CHILDREN = "SELECT parent_run, id FROM runs WHERE parent_run IN (SELECT value FROM json_each(?)) ORDER BY created_at, id"


class SqliteTx:
    """Alone in its savepoint. What it emits is handed on only when the step's commit is on disk."""

    __slots__ = ("_connection", "_path", "emitted")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self.emitted: list[Event] = []

    def run(self, run_id: str, *, family: bool = False) -> Run | None:
        return self._one(_READ + " WHERE id=?", run_id, family=family)

    def run_by_key(self, ask_key: str) -> Run | None:
        return self._one(_READ + " WHERE ask_key=?", ask_key)

    def add_run(self, run: Run) -> None:
        """The ask's key and the run's id are both unique; the children are whoever names this run as parent."""
        try:
            self._connection.execute(_ADD, rows.facts_row(run) + rows.asked_row(run.ask))
        except sqlite3.IntegrityError as error:
            raise Failed(f"run {run.id} or its key {run.ask.key} is already in the ledger") from error

    def set_run(self, run: Run) -> None:
        """The children stay whoever names this run as parent, whatever the value says."""
        facts = rows.facts_row(run)
        try:
            found = self._connection.execute(_SET, (*facts[1:], *rows.asked_row(run.ask), facts[0])).rowcount
        except sqlite3.IntegrityError as error:
            raise Failed(f"the key {run.ask.key} of run {run.id} is another run's") from error
        if not found:
            raise NotFound(f"there is no run {run.id}")

    def runs(  # noqa: PLR0913  (one filter each)
        self,
        *,
        status: Sequence[Status] | None = None,
        session: str | None = None,
        root: str | None = None,
        parent_run: str | None = None,
        top_only: bool = False,
        prefix: str | None = None,
        reason: Reason | None = None,
        awaited: bool | None = None,
        begun: bool | None = None,
        due: datetime | None = None,
        family: bool = False,
        limit: int | None = None,
    ) -> list[Run]:
        """Newest first by created_at; equal times newest id first."""
        wishes: list[tuple[str, tuple[str | int, ...]]] = [
            (sql, values)
            for sql, values in (
                (
                    "status IN (SELECT value FROM json_each(?))",
                    None if status is None else (_listed(status),),
                ),
                ("session_id=?", _given(session)),
                ("root=?", _given(root)),
                ("parent_run=?", _given(parent_run)),
                ("parent_run IS NULL", () if top_only else None),
                ("id >= ? AND id < ?", None if prefix is None else (prefix, prefix + "\U0010ffff")),
                ("reason=?", _given(reason)),
                ("awaited=?", _given(awaited)),
                ("(started_at IS NOT NULL)=?", _given(begun)),
                ("wake_at <= ?", None if due is None else (rows.micros(due),)),
                (_LIVING, () if _live(status) else None),
            )
            if values is not None
        ]
        where = " WHERE " + " AND ".join(sql for sql, _ in wishes) if wishes else ""
        given = (value for _, some in wishes for value in some)
        values = [rows.whole(value) if isinstance(value, str) else value for value in given]
        bound = -1 if limit is None else max(0, limit)
        read = _READ + (_index(session, parent_run) if _live(status) and due is None else "")
        found = self._connection.execute(read + where + _NEWEST, (*values, bound)).fetchall()
        return self._with_children(found) if family else [self._read(row, ()) for row in found]

    def owners(self, status: Sequence[Status]) -> set[str]:
        found = self._connection.execute(
            "SELECT DISTINCT owner FROM runs WHERE status IN (SELECT value FROM json_each(?))",
            (_listed(status),),
        )
        return {str(row[0]) for row in found.fetchall()}

    def count(
        self, status: Status | None = None, *, root: str | None = None, requester: str | None = None
    ) -> int:
        given = (("status", status), ("root", root), ("requester", requester))
        wishes = [(name, rows.whole(str(value))) for name, value in given if value is not None]
        where = " AND ".join(f"{name}=?" for name, _ in wishes) or "1"
        where += f" AND {_LIVING}" if status is not None and not status.final else ""
        values = [value for _, value in wishes]
        return self._connection.execute(f"SELECT count(*) FROM runs WHERE {where}", values).fetchone()[0]  # noqa: S608  (our own words)

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
        except rows.DAMAGE as error:
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
        except rows.DAMAGE as error:
            raise damaged(self._path, "an approval", error) from error

    def deed(self, call: str) -> Deed | None:
        return self._whole(lambda: deeds.one(self._connection, call))

    def set_deed(self, deed: Deed) -> None:
        deeds.put(self._connection, deed)

    def deeds(self, run: str) -> list[Deed]:
        return self._whole(lambda: deeds.of(self._connection, run))

    def set_watch(self, watch: Watch) -> None:
        watches.put_watch(self._connection, watch)

    def watches(self, **wishes: Any) -> list[Watch]:
        return self._whole(lambda: watches.watches(self._connection, **wishes))

    def set_interjection(self, said: Interjection) -> None:
        watches.put_interjection(self._connection, said)

    def interjections(self, **wishes: Any) -> list[Interjection]:
        return self._whole(lambda: watches.interjections(self._connection, **wishes))

    def emit(self, event: Event) -> None:
        seq = self._connection.execute(_EMIT, rows.event_row(event)).lastrowid
        self.emitted.append(replace(event, seq=seq))

    def events(self, *, after: int = 0, session: str | None = None, limit: int = 1000) -> list[Event]:
        where, values = ("", ()) if session is None else (" AND session=?", (rows.whole(session),))
        found = self._connection.execute(
            f"{_HEAR}{where} ORDER BY seq LIMIT ?", (after, *values, max(0, limit))
        )
        try:
            return [rows.event_from(row[0], row[1:]) for row in found.fetchall()]
        except rows.DAMAGE as error:
            raise damaged(self._path, "an event", error) from error

    def last_seq(self) -> int:
        return self._connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]

    def _one(self, sql: str, value: str, *, family: bool = False) -> Run | None:
        found = self._connection.execute(sql, (rows.whole(value),)).fetchone()
        if found is None:
            return None
        if not family:
            return self._read(found, ())
        children = self._connection.execute(_CHILD, (found[1],)).fetchall()
        return self._read(found, [row[0] for row in children])

    def _with_children(self, found: Sequence[Sequence[Any]]) -> list[Run]:
        """One more query for all of them together."""
        children: dict[str, list[str]] = {}
        if found:
            for parent, child in self._connection.execute(_CHILDREN, (_listed([row[1] for row in found]),)):
                children.setdefault(parent, []).append(child)
        return [self._read(row, children.get(row[1], ())) for row in found]

    def _read(self, row: Sequence[Any], children: Sequence[str]) -> Run:
        try:
            return rows.run_from(row[0], row[1:], children)
        except rows.DAMAGE as error:
            raise damaged(self._path, f"run {row[1]}", error) from error


class LookingTx(SqliteTx):
    """The same view, for reading only."""

    __slots__ = ()

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


def _live(status: Sequence[Status] | None) -> bool:
    return bool(status) and not any(each.final for each in status)


def _index(session: str | None, parent_run: str | None) -> str:
    """What the planner would not choose by itself: it cannot know that few are live, of however many."""
    if session is not None:
        return " INDEXED BY runs_live_of_session"
    return " INDEXED BY runs_live_of_parent" if parent_run is not None else " INDEXED BY runs_live"


def _given(value: str | bool | None) -> tuple[str | int] | None:
    if value is None:
        return None
    return (int(value) if isinstance(value, bool) else str(value),)


def _listed(values: Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()
