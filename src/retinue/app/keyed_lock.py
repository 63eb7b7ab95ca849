"""An asyncio lock per key."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class KeyedLock:
    """Serialise work on one key within this process, first come first served.

    Keys are session ids, or `agent NAME` for new sessions. Between processes, the session's file lock and the
    ledger's transactions decide.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncGenerator[None]:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            yield
