"""A disk on which writes fail, and a session store and a ledger on that disk."""

import asyncio

from intercepted_io import InterceptedLedger, InterceptedStore

from retinue.domain.session import NewSession, Session
from retinue.errors import RetinueError
from retinue.interfaces import Ledger, SessionStore


class FailingDisk:
    """Takes a number of writes and then fails: every further write until `make_room`, or the next one only."""

    def __init__(self, writes_left: int, error: RetinueError, *, only_once: bool = False) -> None:
        self.writes_left = writes_left
        self.error = error
        self.only_once = only_once
        self.failures = 0

    def write(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0 and not (self.only_once and self.failures):
            self.failures += 1
            raise self.error

    def make_room(self) -> None:
        self.writes_left = 1_000_000

    async def wait_for_failures(self, count: int = 3) -> None:
        while self.failures < count:  # noqa: ASYNC110  (a counter cannot notify)
            await asyncio.sleep(0.001)


class FailingStore(InterceptedStore):
    """A session store that creates and writes sessions on a failing disk."""

    def __init__(self, store: SessionStore, disk: FailingDisk) -> None:
        super().__init__(store, lambda _entries, _sync: disk.write())
        self._disk = disk

    async def create(self, new: NewSession) -> Session:
        self._disk.write()
        return await self._store.create(new)


def failing_ledger(ledger: Ledger, disk: FailingDisk) -> InterceptedLedger:
    """Return the ledger on a failing disk, where reads never fail."""

    async def write() -> None:
        disk.write()

    return InterceptedLedger(ledger, before_write=write)
