"""What remains of a pruned or purged run: a tombstone without any text, and the day's sums."""

import hashlib
import sqlite3
from collections.abc import Iterable

import msgspec

from retinue.domain.run import Reason, Run, RunRequest, Status
from retinue.ledger.run_rows import from_microseconds, replace_surrogates

_RUN_TABLES = (("deeds", "run"), ("approvals", "run"), ("interjections", "run"), ("deliveries", "run"))
"""Tables whose rows belong to one run, with the column that names it."""
_LISTED = "(SELECT value FROM json_each(?))"
_INSERT_TOMBSTONES = (
    "INSERT OR REPLACE INTO pruned_runs (id, key_hash, session_id, agent, status, reason, result_hash, created_at,"  # noqa: S608  (constant text)
    " started_at, ended_at) SELECT id, key_hash(ask_key), session_id, agent, status, reason, text_hash(text),"
    f" created_at, started_at, ended_at FROM runs WHERE id IN {_LISTED}"
)
_DAILY_SUMS = {
    "runs": "count(*)",
    "turns": "sum(turns)",
    "tool_calls": "sum(tool_calls)",
    "input_tokens": "sum(input_tokens)",
    "output_tokens": "sum(output_tokens)",
    "cached_tokens": "sum(cached_tokens)",
    "cache_write_tokens": "sum(cache_write_tokens)",
    **{
        f"long_{name}_tokens": f"coalesce(sum(nullif(long_prompt, '') ->> '$.{name}'), 0)"
        for name in ("input", "output", "cached", "cache_write")
    },
}
"""Column of daily_usage → its value for a group of runs."""
_ADD_DAILY_USAGE = (
    f"INSERT INTO daily_usage (day, agent, model, {', '.join(_DAILY_SUMS)})"  # noqa: S608  (the same)
    f" SELECT date(ended_at / 1000000, 'unixepoch'), agent, model, {', '.join(_DAILY_SUMS.values())}"
    f" FROM runs WHERE id IN {_LISTED} GROUP BY 1, 2, 3"
    " ON CONFLICT (day, agent, model) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _DAILY_SUMS)
)
_SELECT = "SELECT id, session_id, agent, status, reason, result_hash, created_at, started_at, ended_at FROM pruned_runs"


def hash_request_key(key: str) -> bytes:
    return hashlib.sha256(replace_surrogates(key).encode()).digest()


def hash_text(text: str) -> str:
    """Return the hash of a run's result; empty for an empty text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def replace_with_tombstones(connection: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """Replace the rows of ended runs by tombstones and sums, in the caller's transaction."""
    connection.create_function("key_hash", 1, hash_request_key, deterministic=True)
    connection.create_function("text_hash", 1, hash_text, deterministic=True)
    listed = (msgspec.json.encode(list(run_ids)).decode(),)
    connection.execute(_INSERT_TOMBSTONES, listed)
    connection.execute(_ADD_DAILY_USAGE, listed)
    for table, column in _RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE {column} IN {_LISTED}", listed)  # noqa: S608  (the same)
    connection.execute(f"DELETE FROM deliveries WHERE asker IN {_LISTED}", listed)  # noqa: S608  (the same)
    connection.execute(f"DELETE FROM runs WHERE id IN {_LISTED}", listed)  # noqa: S608  (the same)


def select_tombstone(connection: sqlite3.Connection, run_id: str) -> Run | None:
    return _tombstone(connection.execute(f"{_SELECT} WHERE id=?", (replace_surrogates(run_id),)))


def select_tombstone_by_key(connection: sqlite3.Connection, key: str) -> Run | None:
    return _tombstone(connection.execute(f"{_SELECT} WHERE key_hash=?", (hash_request_key(key),)))


def select_tombstone_ids(connection: sqlite3.Connection) -> set[str]:
    return {run_id for (run_id,) in connection.execute("SELECT id FROM pruned_runs")}


def _tombstone(cursor: sqlite3.Cursor) -> Run | None:
    row = cursor.fetchone()
    if row is None:
        return None
    run_id, session_id, agent, status, reason, result_hash, created_at, started_at, ended_at = row
    return Run(
        id=run_id,
        request=RunRequest(key="", agent=agent, task=""),
        session_id=session_id,
        slug=session_id,
        session_key=session_id,
        agent=agent,
        transcript_path="",
        status=Status(status),
        reason=None if reason is None else Reason(reason),
        root_id=run_id,
        created_at=from_microseconds(created_at),
        started_at=None if started_at is None else from_microseconds(started_at),
        ended_at=from_microseconds(ended_at),
        is_pruned=True,
        result_hash=result_hash,
    )
