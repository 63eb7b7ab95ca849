"""A ledger on a file for the length of a block, and runs to store in one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from retinue.domain.run import Run, RunRequest
from retinue.ledger.ledger import SqliteLedger

CREATED_AT = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)


@asynccontextmanager
async def open_ledger(path: Path, **options: Any) -> AsyncGenerator[SqliteLedger]:
    ledger = SqliteLedger(path, **options)
    try:
        yield ledger
    finally:
        await ledger.close()


def make_run(name: str, **fields: Any) -> Run:
    """Return a queued run with every required field; `fields` override the ones a test is about."""
    request = fields.pop("ask", RunRequest(key=f"key of {name}", agent="main", task="look around"))
    run = Run(
        id=name,
        request=request,
        session_id="s",
        slug="main-1",
        session_key="main-1/main",
        agent="main",
        transcript_path="session.md",
        created_at=CREATED_AT,
    )
    return replace(run, **fields)
