"""The table that other programs read: the seed's columns, words and units."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from retinue.domain.run import Reason, RunRequest, Status
from retinue.interfaces import Transaction
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger

SEEDS_COLUMNS = [
    ("id", "TEXT"),
    ("session_key", "TEXT"),
    ("requester_key", "TEXT"),
    ("task", "TEXT"),
    ("label", "TEXT"),
    ("model", "TEXT"),
    ("status", "TEXT"),
    ("result", "TEXT"),
    ("error", "TEXT"),
    ("started_at", "INTEGER"),
    ("finished_at", "INTEGER"),
    ("duration_ms", "INTEGER"),
]


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def told(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


async def made(path: Path, count: int = 200) -> None:
    async with open_ledger(path) as ledger:
        await ledger.read(lambda tx: tx.find_runs())
        await asyncio.gather(
            *(
                ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}", text="x" * 300)))
                for n in range(count)
            )
        )


async def test_the_seeds_table_is_a_view_with_its_columns_in_its_order(tmp_path: Path):
    """Shows: E022."""
    path = tmp_path / "ledger.db"
    await made(path, 1)
    columns = asked(path, "SELECT name FROM pragma_table_info('subagent_runs')")
    assert [name for (name,) in columns] == [name for name, _ in SEEDS_COLUMNS]
    kinds = asked(
        path, f"SELECT {', '.join(f'typeof({name})' for name, _ in SEEDS_COLUMNS)} FROM subagent_runs"
    )
    assert kinds == [
        ("text", "text", "text", "text", "null", "null", "text", "null", "null", "integer", "null", "null")
    ]


STATUSES = [
    (Status.QUEUED, "running"),
    (Status.RUNNING, "running"),
    (Status.WAITING, "running"),
    (Status.DONE, "completed"),
    (Status.FAILED, "failed"),
    (Status.CANCELLED, "failed"),
    (Status.LOST, "failed"),
    (Status.TIMED_OUT, "timeout"),
]


async def test_the_view_speaks_the_seeds_four_statuses(tmp_path: Path):
    """Shows: E023."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        for status, _ in STATUSES:
            await ledger.write(lambda tx, status=status: tx.add_run(make_run(status.value, status=status)))
    assert {status for status, _ in STATUSES} == set(Status)
    assert dict(asked(path, "SELECT id, status FROM subagent_runs")) == dict(STATUSES)


async def test_the_view_tells_each_run_in_the_seeds_terms(tmp_path: Path):
    """Shows: E022, E009."""
    path = tmp_path / "ledger.db"
    ask = RunRequest(
        key="k1",
        agent="main",
        task="Research",
        requester="agent:main:main",
        label="research",
        model="m:small",
    )
    done = make_run(
        "done", request=ask, session_key="agent:main:subagent:1", status=Status.DONE, text="XFS is from 1993."
    )
    done = replace(
        done,
        started_at=CREATED_AT + timedelta(seconds=1),
        ended_at=CREATED_AT + timedelta(seconds=3, microseconds=500),
    )
    bare = RunRequest(key="k2", agent="main", task=None)
    async with open_ledger(path) as ledger:

        def step(tx: Transaction) -> None:
            tx.add_run(done)
            tx.add_run(make_run("live", request=bare, status=Status.RUNNING, text="half", model="m:large"))
            tx.add_run(
                make_run(
                    "cut",
                    status=Status.CANCELLED,
                    reason=Reason.USER_CANCEL,
                    text="half",
                    ended_at=CREATED_AT,
                )
            )

        await ledger.write(step)
        kept = await ledger.read(lambda tx: tx.get_run("done"))
    at = 1794768127123
    rows = {row[0]: row[1:] for row in asked(path, "SELECT * FROM subagent_runs")}
    assert kept is not None
    assert rows["done"] == (
        "agent:main:subagent:1", "agent:main:main", "Research", "research", "m:small",
        "completed", "XFS is from 1993.", None, at + 1000, at + 3000, kept.duration_ms,
    )  # fmt: skip
    assert rows["live"] == (
        "main-1/main", "person", "", None, "m:large", "running", None, None, at, None, None
    )  # fmt: skip
    assert rows["cut"] == (
        "main-1/main", "person", "look around", None, None, "failed", "half", "user_cancel", at, at, None
    )  # fmt: skip
