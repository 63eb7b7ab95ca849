"""Queries and changes a ledger file with SQL, and fills one with runs."""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from retinue.testing.ledgers import make_run, open_ledger


def query_ledger(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def change_ledger(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


@contextmanager
def lock_ledger(
    path: Path, lock: Literal["IMMEDIATE", "EXCLUSIVE"] = "IMMEDIATE"
) -> Generator[sqlite3.Connection]:
    """Begin a transaction that locks a ledger, as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"BEGIN {lock}")
        yield connection


async def write_runs(path: Path, count: int) -> None:
    """Create a ledger with the runs r0, r1, …"""
    async with open_ledger(path) as ledger:
        await ledger.read(lambda tx: tx.find_runs())
        await asyncio.gather(
            *(
                ledger.write(lambda tx, n=n: tx.add_run(make_run(f"r{n}", text="x" * 300)))
                for n in range(count)
            )
        )
