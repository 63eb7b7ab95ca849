"""SQL statements that store and search runs, each built once per combination of filters."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from operator import itemgetter

import msgspec

from retinue.domain.approval import ApprovalState
from retinue.domain.delivery import DeliveryState
from retinue.domain.run import Reason, Run, Status
from retinue.errors import Failed, NotFound
from retinue.ledger import run_rows
from retinue.ledger.run_rows import INDEPENDENT, RunRow, execute_statement

# Except for the status, indexed columns never change after a run was created. An update that does not set them does not
# touch their indexes.
_FIXED_COLUMNS = ("id", "ask", "session_id", "root", "created_at", "task")
_CHANGING_COLUMNS = tuple(name for name in run_rows.RUN_COLUMNS if name not in _FIXED_COLUMNS)
_update_values = itemgetter(
    *(run_rows.RUN_COLUMNS.index(name) for name in _CHANGING_COLUMNS + _FIXED_COLUMNS)
)

_ALL_COLUMNS = run_rows.RUN_COLUMNS + run_rows.REQUEST_COLUMNS
_INSERT = f"INSERT INTO runs ({', '.join(_ALL_COLUMNS)}) VALUES ({', '.join('?' * len(_ALL_COLUMNS))})"  # noqa: S608  (constant column names)
_UPDATE_CHANGING = (
    f"UPDATE runs SET {', '.join(f'{name}=?' for name in _CHANGING_COLUMNS)} "  # noqa: S608  (the same)
    f"WHERE {' AND '.join(f'{name} IS ?' for name in _FIXED_COLUMNS)}"
)
_UPDATE_ALL = f"UPDATE runs SET {', '.join(f'{name}=?' for name in _ALL_COLUMNS)} WHERE id=?"  # noqa: S608  (the same)
_SELECT = f"SELECT {', '.join(run_rows.RUN_COLUMNS)} FROM runs"  # noqa: S608  (the same)
_SELECT_BY_ID = f"{_SELECT} WHERE id=?"
_SELECT_BY_KEY = f"{_SELECT} WHERE ask_key=?"
_SELECT_CHILDREN = "SELECT id FROM runs WHERE parent_run=? ORDER BY created_at, id"
_SELECT_CHILDREN_OF_MANY = "SELECT parent_run, id FROM runs WHERE parent_run IN (SELECT value FROM json_each(?)) ORDER BY created_at, id"
_IS_LIVE = "ended_at IS NULL"
"""True of every live run and of no other."""
_HAS_LIVE_CHILD = f"SELECT 1 FROM runs INDEXED BY runs_live_of_parent WHERE parent_run=? AND awaited>=0 AND {_IS_LIVE} LIMIT 1"  # noqa: S608  (the same)
_HAS_RUNNING_CLOCK = f"{_IS_LIVE} AND (status = 'queued' OR deadline_at IS NOT NULL)"
_HAS_AWAITED_CHILD = _HAS_LIVE_CHILD.replace("awaited>=0", "awaited=?")
_HAS_UNDELIVERED_WORK = (
    f"SELECT EXISTS ({_HAS_LIVE_CHILD}) OR EXISTS (SELECT 1 FROM deliveries WHERE session=? AND state='{DeliveryState.PENDING}')"  # noqa: S608  (the same)
    f" OR EXISTS (SELECT 1 FROM approvals INDEXED BY approvals_by_run WHERE run=? AND state='{ApprovalState.PENDING}')"
)
_NEWEST_FIRST = " ORDER BY created_at DESC, id DESC"
_IN_TREE = "(root=? AND root<>id OR id=? AND root=id)"
"""The index of trees leaves out runs that are their own root."""


def insert_run(connection: sqlite3.Connection, run: Run) -> None:
    try:
        execute_statement(connection, _INSERT, run_rows.run_row(run) + run_rows.request_row(run.request))
    except sqlite3.IntegrityError as error:
        raise Failed(f"Run {run.id} or its key {run.request.key} is already in the ledger.") from error


def update_run(connection: sqlite3.Connection, run: Run) -> None:
    row = run_rows.run_row(run)
    if execute_statement(connection, _UPDATE_CHANGING, _update_values(row)).rowcount:
        return
    try:
        updated = execute_statement(
            connection, _UPDATE_ALL, (*row, *run_rows.request_row(run.request), run.id)
        ).rowcount
    except sqlite3.IntegrityError as error:
        raise Failed(f"The key {run.request.key} of run {run.id} belongs to another run.") from error
    if not updated:
        raise NotFound(f"Run {run.id} not found.")


def select_run(connection: sqlite3.Connection, run_id: str) -> RunRow | None:
    row = execute_statement(connection, _SELECT_BY_ID, (run_id,)).fetchone()
    return None if row is None else RunRow._make(row)


def select_run_by_key(connection: sqlite3.Connection, request_key: str) -> RunRow | None:
    row = execute_statement(connection, _SELECT_BY_KEY, (request_key,)).fetchone()
    return None if row is None else RunRow._make(row)


def select_child_ids(connection: sqlite3.Connection, run_id: str) -> list[str]:
    return [child_id for (child_id,) in connection.execute(_SELECT_CHILDREN, (run_id,)).fetchall()]


def select_children_by_parent(connection: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the child ids of each run, in one query."""
    children: dict[str, list[str]] = {}
    if run_ids:
        for parent, child in connection.execute(
            _SELECT_CHILDREN_OF_MANY, (msgspec.json.encode(run_ids).decode(),)
        ):
            children.setdefault(parent, []).append(child)
    return children


def select_runs(  # noqa: PLR0913  (one filter each)
    connection: sqlite3.Connection,
    *,
    status: Sequence[Status] | None = None,
    session: str | None = None,
    root: str | None = None,
    parent_run: str | None = None,
    top_only: bool = False,
    prefix: str | None = None,
    reason: Reason | None = None,
    awaited: bool | None = None,
    started: bool | None = None,
    due_by: datetime | None = None,
    with_independent: bool = False,
    limit: int | None = None,
) -> list[RunRow]:
    """Return matching rows, newest first by created_at, then by id."""
    if limit is not None and limit <= 0:
        return []
    values = (
        session,
        root,
        parent_run,
        True if top_only else None,
        prefix,
        None if prefix is None else f"{prefix}\U0010ffff",
        None if reason is None else reason.value,
        None if due_by is None else run_rows.to_microseconds(due_by),
    )
    is_given = tuple([each is not None for each in values])
    sql, positions = _select_statement(
        None if status is None else ",".join(status),
        is_given,
        awaited,
        started,
        with_independent=with_independent,
    )
    cursor = execute_statement(connection, sql, [values[each] for each in positions])
    if limit is None:
        return [RunRow._make(row) for row in cursor.fetchall()]
    rows_found = [RunRow._make(row) for row in cursor.fetchmany(limit)]
    cursor.close()
    return rows_found


def has_live_children(
    connection: sqlite3.Connection, run_id: str, *, awaited: bool | None, with_running_clock: bool
) -> bool:
    """Return whether the run has a live child.

    Usually reads one row only, because a thousand siblings may call this when they end.
    """
    sql = _HAS_LIVE_CHILD if awaited is None else _HAS_AWAITED_CHILD
    if with_running_clock:
        sql = sql.replace(_IS_LIVE, _HAS_RUNNING_CLOCK)
    values = (run_id,) if awaited is None else (run_id, int(awaited))
    return execute_statement(connection, sql, values).fetchone() is not None


def has_undelivered_work(connection: sqlite3.Connection, run_id: str, session: str) -> bool:
    """Check live children, unread deliveries and open approvals in one query.

    Called at every end of a run; usually False.
    """
    return bool(execute_statement(connection, _HAS_UNDELIVERED_WORK, (run_id, session, run_id)).fetchone()[0])


def select_owners(connection: sqlite3.Connection, status: Sequence[Status]) -> set[str]:
    return {owner for (owner,) in connection.execute(_owners_statement(",".join(status))).fetchall()}


def count_runs(
    connection: sqlite3.Connection, status: Status | None, *, root: str | None, requester: str | None
) -> int:
    values = (root, requester)
    sql, positions = _count_statement(
        None if status is None else status.value, root is not None, requester is not None
    )
    return execute_statement(connection, sql, [values[each] for each in positions]).fetchone()[0]


Statement = tuple[str, tuple[int, ...]]
"""A statement, and the positions of the given values in the order of its placeholders."""

_CONDITIONS = (
    "session_id=?",
    "root=?",
    "parent_run=?",
    "parent_run IS NULL",
    "id >= ?",
    "id < ?",
    "reason=?",
    "wake_at <= ?",
)
_SESSION, _ROOT, _PARENT, _TOP_ONLY, *_, _DUE = range(len(_CONDITIONS))
_PARENT_INDEX = "runs_live_of_parent"


@cache
def _select_statement(
    status: str | None,
    is_given: tuple[bool, ...],
    awaited: bool | None,
    started: bool | None,
    *,
    with_independent: bool,
) -> Statement:
    """Build the statement.

    Live runs are selected status by status: for a list, SQLite would build a temporary table per query.
    """
    filter_positions = [number for number, given in enumerate(is_given) if given]
    conditions = [_CONDITIONS[number] for number in filter_positions]
    conditions += [] if started is None else [f"(started_at IS NOT NULL)={int(started)}"]
    positions = tuple(number for number in filter_positions if number != _TOP_ONLY)
    awaited_conditions = [] if awaited is None else [f"awaited={int(awaited)}"]
    if _is_live_filter(status):
        index = _index_for(is_given)
        select = f"{_SELECT} INDEXED BY {index} WHERE "
        # The index separates awaited from other runs and is ordered only within each group.
        awaited_variants = (
            [["awaited=0"], ["awaited=1"], *([[f"awaited={INDEPENDENT}"]] if with_independent else [])]
            if index == _PARENT_INDEX and not awaited_conditions
            else [awaited_conditions]
        )
        subqueries = [
            [*conditions, *variant, f"status={each}", _IS_LIVE]
            for variant in awaited_variants
            for each in _status_literals(status)
        ]
        sql = " UNION ALL ".join(select + " AND ".join(subquery) for subquery in subqueries)
        return sql + _NEWEST_FIRST, positions * len(subqueries)
    conditions += awaited_conditions
    conditions += [] if status is None else [f"status IN ({', '.join(_status_literals(status))})"]
    if is_given[_ROOT]:
        conditions[filter_positions.index(_ROOT)] = _IN_TREE
        root_position = positions.index(_ROOT)
        positions = (*positions[:root_position], _ROOT, *positions[root_position:])
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return _SELECT + where + _NEWEST_FIRST, positions


def _index_for(is_given: tuple[bool, ...]) -> str:
    """Return the index to use; the query planner does not detect that few of all runs are live."""
    if is_given[_DUE]:
        return "runs_by_wake"
    return _PARENT_INDEX if is_given[_PARENT] and not is_given[_SESSION] else "runs_live"


@cache
def _owners_statement(status: str) -> str:
    where = f"status IN ({', '.join(_status_literals(status))})"
    if _is_live_filter(status):
        return f"SELECT DISTINCT owner FROM runs INDEXED BY runs_live WHERE {where} AND {_IS_LIVE}"  # noqa: S608  (constant text only)
    return f"SELECT DISTINCT owner FROM runs WHERE {where}"  # noqa: S608  (the same)


@cache
def _count_statement(status: str | None, root: bool, requester: bool) -> Statement:
    live = _is_live_filter(status)
    conditions = [f"status={each}" for each in _status_literals(status)] + ([_IS_LIVE] if live else [])
    conditions += ["requester=?"] if requester else []
    positions = (1,) if requester else ()
    if root and not live:
        # Descendants are counted in the index of trees alone; the root itself is found by its id.
        descendants, root_run = (
            " AND ".join([*conditions, condition]) for condition in _IN_TREE.strip("()").split(" OR ")
        )
        total = (
            f"(SELECT count(*) FROM runs WHERE {descendants}) + (SELECT count(*) FROM runs WHERE {root_run})"  # noqa: S608  (constant text only)
        )
        return f"SELECT {total}", (*positions, 0, *positions, 0)
    conditions += ["root=?"] if root else []
    positions += (0,) if root else ()
    return f"SELECT count(*) FROM runs WHERE {' AND '.join(conditions) or '1'}", positions  # noqa: S608  (the same)


def _is_live_filter(status: str | None) -> bool:
    return bool(status) and all(Status(each).is_live for each in str(status).split(","))


def _status_literals(status: str | None) -> list[str]:
    """Return the statuses as SQL literals; anything that is not a Status raises."""
    return [f"'{Status(each).value}'" for each in (status or "").split(",") if each]
