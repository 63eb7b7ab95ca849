"""A ledger on a file for the length of a block, and runs to put into one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retinue.domain.run import Ask, Run
from retinue.ledger.ledger import SqliteLedger

AT = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)


@asynccontextmanager
async def open_ledger(path: Path, **how: Any) -> AsyncGenerator[SqliteLedger]:
    ledger = SqliteLedger(path, **how)
    try:
        yield ledger
    finally:
        await ledger.close()


def a_run(name: str, **facts: Any) -> Run:
    """A queued run with every fact it must have; `facts` replace what matters to a test."""
    ask = facts.pop("ask", Ask(key=f"key of {name}", agent="main", task="look around"))
    run = Run(
        id=name,
        ask=ask,
        session_id="s",
        slug="main-1",
        key="main-1/main",
        agent="main",
        path="session.md",
        created_at=AT,
    )
    return replace(run, **facts)
