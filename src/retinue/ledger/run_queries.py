"""Runs in the ledger: each statement by which they are kept and found, made once for each shape of a question."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from operator import itemgetter

import msgspec

from retinue.domain.approval import State
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import Reason, Run, Status
from retinue.errors import Failed, NotFound
from retinue.ledger import run_rows
from retinue.ledger.run_rows import Row, asked

# What a run is found by stays as it was at its birth, but for its status: a change that leaves these alone leaves
# their indexes alone too.
_BORN = ("id", "ask", "session_id", "root", "created_at", "task")
_MOVED = tuple(name for name in run_rows.FACTS if name not in _BORN)
_moved = itemgetter(*(run_rows.FACTS.index(name) for name in _MOVED + _BORN))

_ALL = run_rows.FACTS + run_rows.ASKED
_ADD = f"INSERT INTO runs ({', '.join(_ALL)}) VALUES ({', '.join('?' * len(_ALL))})"  # noqa: S608  (names of our own columns)
_MOVE = (
    f"UPDATE runs SET {', '.join(f'{name}=?' for name in _MOVED)} "  # noqa: S608  (the same)
    f"WHERE {' AND '.join(f'{name} IS ?' for name in _BORN)}"
)
_SET = f"UPDATE runs SET {', '.join(f'{name}=?' for name in _ALL)} WHERE id=?"  # noqa: S608  (the same)
_READ = f"SELECT {', '.join(run_rows.FACTS)} FROM runs"  # noqa: S608  (the same)
_ONE = f"{_READ} WHERE id=?"
_BY_KEY = f"{_READ} WHERE ask_key=?"
_CHILD = "SELECT id FROM runs WHERE parent_run=? ORDER BY created_at, id"
_CHILDREN = "SELECT parent_run, id FROM runs WHERE parent_run IN (SELECT value FROM json_each(?)) ORDER BY created_at, id"
_LIVING = "ended_at IS NULL"
"""Of every run that is live, and of no other."""
_WORKING = f"SELECT 1 FROM runs INDEXED BY runs_live_of_parent WHERE parent_run=? AND {_LIVING} LIMIT 1"  # noqa: S608  (the same)
_AWAITED = _WORKING.replace("parent_run=?", "parent_run=? AND awaited=?")
_HOLDS = (
    f"SELECT EXISTS ({_WORKING}) OR EXISTS (SELECT 1 FROM deliveries WHERE session=? AND state='{Delivered.PENDING}')"  # noqa: S608  (the same)
    f" OR EXISTS (SELECT 1 FROM approvals INDEXED BY approvals_by_run WHERE run=? AND state='{State.PENDING}')"
)
_NEWEST = " ORDER BY created_at DESC, id DESC"
_OF_ROOT = "(root=? AND root<>id OR id=? AND root=id)"
"""The index of trees has only those that are not the root of one."""


def add(connection: sqlite3.Connection, run: Run) -> None:
    try:
        asked(connection, _ADD, run_rows.facts_row(run) + run_rows.asked_row(run.ask))
    except sqlite3.IntegrityError as error:
        raise Failed(f"run {run.id} or its key {run.ask.key} is already in the ledger") from error


def put(connection: sqlite3.Connection, run: Run) -> None:
    facts = run_rows.facts_row(run)
    if asked(connection, _MOVE, _moved(facts)).rowcount:
        return
    try:
        found = asked(connection, _SET, (*facts, *run_rows.asked_row(run.ask), run.id)).rowcount
    except sqlite3.IntegrityError as error:
        raise Failed(f"the key {run.ask.key} of run {run.id} is another run's") from error
    if not found:
        raise NotFound(f"there is no run {run.id}")


def one(connection: sqlite3.Connection, run_id: str) -> Row | None:
    return asked(connection, _ONE, (run_id,)).fetchone()


def by_key(connection: sqlite3.Connection, ask_key: str) -> Row | None:
    return asked(connection, _BY_KEY, (ask_key,)).fetchone()


def children(connection: sqlite3.Connection, run_id: str) -> list[str]:
    return [row[0] for row in connection.execute(_CHILD, (run_id,)).fetchall()]


def families(connection: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """The children of each of them, in one query."""
    found: dict[str, list[str]] = {}
    if run_ids:
        for parent, child in connection.execute(_CHILDREN, (msgspec.json.encode(run_ids).decode(),)):
            found.setdefault(parent, []).append(child)
    return found


def find(  # noqa: PLR0913  (one filter each)
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
    begun: bool | None = None,
    due: datetime | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Newest first by created_at; equal times newest id first."""
    if limit is not None and limit <= 0:
        return []
    given = (
        session,
        root,
        parent_run,
        True if top_only else None,
        prefix,
        None if prefix is None else f"{prefix}\U0010ffff",
        None if reason is None else reason.value,
        None if due is None else run_rows.micros(due),
    )
    wished = tuple([each is not None for each in given])
    sql, at = _finding(None if status is None else ",".join(status), wished, awaited, begun)
    cursor = asked(connection, sql, [given[each] for each in at])
    if limit is None:
        return cursor.fetchall()
    found = cursor.fetchmany(limit)
    cursor.close()
    return found


def at_work_for(connection: sqlite3.Connection, run_id: str, *, awaited: bool | None) -> bool:
    """Without looking at more than one: a thousand siblings ask it when they end."""
    sql = _WORKING if awaited is None else _AWAITED
    given = (run_id,) if awaited is None else (run_id, int(awaited))
    return asked(connection, sql, given).fetchone() is not None


def holds(connection: sqlite3.Connection, run_id: str, session: str) -> bool:
    """One question instead of three: every run asks it when it ends, and as a rule nothing does."""
    return bool(asked(connection, _HOLDS, (run_id, session, run_id)).fetchone()[0])


def owners(connection: sqlite3.Connection, status: Sequence[Status]) -> set[str]:
    return {row[0] for row in connection.execute(_owning(",".join(status))).fetchall()}


def count(
    connection: sqlite3.Connection, status: Status | None, *, root: str | None, requester: str | None
) -> int:
    given = (root, requester)
    sql, at = _counting(None if status is None else status.value, root is not None, requester is not None)
    return asked(connection, sql, [given[each] for each in at]).fetchone()[0]


Shape = tuple[str, tuple[int, ...]]
"""A statement, and which of the values that may be given stand in it, in its order."""

_TERMS = (
    "session_id=?",
    "root=?",
    "parent_run=?",
    "parent_run IS NULL",
    "id >= ?",
    "id < ?",
    "reason=?",
    "wake_at <= ?",
)
_SESSION, _ROOT, _PARENT, _TOP, *_, _DUE = range(len(_TERMS))
_OF_PARENT = "runs_live_of_parent"


@cache
def _finding(status: str | None, wished: tuple[bool, ...], awaited: bool | None, begun: bool | None) -> Shape:
    """What is live is looked for status by status: a list of them would be a table of its own, made for each question."""
    at = [number for number, wish in enumerate(wished) if wish]
    wishes = [_TERMS[number] for number in at]
    wishes += [] if begun is None else [f"(started_at IS NOT NULL)={int(begun)}"]
    values = tuple(number for number in at if number != _TOP)
    awaiting = [] if awaited is None else [f"awaited={int(awaited)}"]
    if _live(status):
        index = _index(wished)
        read = f"{_READ} INDEXED BY {index} WHERE "
        # Where the index has both apart, each has its order only for itself.
        both = [["awaited=0"], ["awaited=1"]] if index == _OF_PARENT and not awaiting else [awaiting]
        arms = [[*wishes, *one, f"status={each}", _LIVING] for one in both for each in _listed(status)]
        sql = " UNION ALL ".join(read + " AND ".join(arm) for arm in arms)
        return sql + _NEWEST, values * len(arms)
    wishes += awaiting
    wishes += [] if status is None else [f"status IN ({', '.join(_listed(status))})"]
    if wished[_ROOT]:
        wishes[at.index(_ROOT)] = _OF_ROOT
        found = values.index(_ROOT)
        values = (*values[:found], _ROOT, *values[found:])
    where = f" WHERE {' AND '.join(wishes)}" if wishes else ""
    return _READ + where + _NEWEST, values


def _index(wished: tuple[bool, ...]) -> str:
    """What the planner would not choose by itself: it cannot know that few are live, of however many."""
    if wished[_DUE]:
        return "runs_by_wake"
    return _OF_PARENT if wished[_PARENT] and not wished[_SESSION] else "runs_live"


@cache
def _owning(status: str) -> str:
    where = f"status IN ({', '.join(_listed(status))})"
    if _live(status):
        return f"SELECT DISTINCT owner FROM runs INDEXED BY runs_live WHERE {where} AND {_LIVING}"  # noqa: S608  (our own words)
    return f"SELECT DISTINCT owner FROM runs WHERE {where}"  # noqa: S608  (the same)


@cache
def _counting(status: str | None, root: bool, requester: bool) -> Shape:
    live = _live(status)
    wishes = [f"status={each}" for each in _listed(status)] + ([_LIVING] if live else [])
    wishes += ["requester=?"] if requester else []
    values = (1,) if requester else ()
    if root and not live:
        # Those below are counted in the index of trees alone, the root itself is found by its id.
        below, itself = (" AND ".join([*wishes, term]) for term in _OF_ROOT.strip("()").split(" OR "))
        both = f"(SELECT count(*) FROM runs WHERE {below}) + (SELECT count(*) FROM runs WHERE {itself})"  # noqa: S608  (our own words)
        return f"SELECT {both}", (*values, 0, *values, 0)
    wishes += ["root=?"] if root else []
    values += (0,) if root else ()
    return f"SELECT count(*) FROM runs WHERE {' AND '.join(wishes) or '1'}", values  # noqa: S608  (the same)


def _live(status: str | None) -> bool:
    return bool(status) and all(Status(each).live for each in str(status).split(","))


def _listed(status: str | None) -> list[str]:
    """As statements have them: only a status gets there, whatever was asked for."""
    return [f"'{Status(each).value}'" for each in (status or "").split(",") if each]
