"""The SQLite ledger in memory, for tests and experiments: no file, no threads and no group commit."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from retinue.domain.event import Event
from retinue.errors import Failed
from retinue.interfaces import Transaction
from retinue.ledger.database import open_memory_database
from retinue.ledger.transaction import ReadOnlyTransaction, SqliteTransaction

T = TypeVar("T")

_PATH = Path(":memory:")


class MemoryLedger:
    """A ledger on one connection to a database in memory.

    Transactions run one at a time; one that raises leaves no changes. Event loops and processes of a test may
    share it.
    """

    def __init__(self, *, on_event: Callable[[Event], None] | None = None) -> None:
        self._on_event = on_event
        self._connection = open_memory_database()
        self._closed = False

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        """Run the step and commit it.

        Yields to the event loop once, as every durable step does, so that tests see the interleavings that
        production has.
        """
        self._check_open()
        tx = SqliteTransaction(self._connection, _PATH)
        self._connection.execute("BEGIN")
        try:
            value = step(tx)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        loop = asyncio.get_running_loop()
        if self._on_event is not None:
            for event in tx.emitted_events:
                loop.call_soon(self._on_event, event)
        if on_commit is not None:
            loop.call_soon(on_commit, value)
        await asyncio.sleep(0)
        return value

    async def read(self, step: Callable[[Transaction], T]) -> T:
        self._check_open()
        return step(ReadOnlyTransaction(self._connection, _PATH))

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Failed("the ledger is closed")
