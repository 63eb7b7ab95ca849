"""Turns: of two things that are done to one session at the same time, one comes first and the other sees it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """For this process. Between processes the session's lock and the ledger's steps decide."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, session_id: str) -> AsyncGenerator[None]:
        """Alone with this session, in the order of asking."""
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        async with lock:
            yield
