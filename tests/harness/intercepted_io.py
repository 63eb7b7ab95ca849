"""Ledgers and session stores with a hook before each access that can fail, delay or record it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from runtime_fixture import RuntimeProcess

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.transcript import Entry
from retinue.interfaces import Conversation, Ledger, SessionStore, Transaction

T = TypeVar("T")


async def do_nothing() -> None:
    pass


class InterceptedLedger:
    """A ledger that awaits functions of the test before each read, and before and after each write.

    If `steps_of` names a function, only the writes of the steps that it defines are intercepted.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        before_write: Callable[[], Awaitable[None]] = do_nothing,
        after_write: Callable[[], Awaitable[None]] = do_nothing,
        before_read: Callable[[], Awaitable[None]] = do_nothing,
        steps_of: str = "",
    ) -> None:
        self._ledger = ledger
        self._before_write = before_write
        self._after_write = after_write
        self._before_read = before_read
        self._steps_of = steps_of

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        if not step.__qualname__.startswith(self._steps_of):
            return await self._ledger.write(step, on_commit)
        await self._before_write()
        value = await self._ledger.write(step, on_commit)
        await self._after_write()
        return value

    async def read(self, step: Callable[[Transaction], T]) -> T:
        await self._before_read()
        return await self._ledger.read(step)


async def run_until_ledger_write(
    process: RuntimeProcess, function: str, *, is_committed: bool, agent: str = "general"
) -> Run:
    """Create a run and return it when it hangs at a write of this function, as if the process died there.

    It hangs after the commit of the write if `is_committed` is true, and before the write otherwise.
    """
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    process.replace_parts(
        ledger=InterceptedLedger(
            process.context.ledger,
            before_write=do_nothing if is_committed else hang,
            after_write=hang if is_committed else do_nothing,
            steps_of=f"{function}.",
        )
    )
    run = await process.submit("Go.", agent=agent)
    await asyncio.wait_for(reached.wait(), 20)
    return run


class InterceptedStore:
    """A session store that calls a function of the test before entries are appended to a conversation."""

    def __init__(self, store: SessionStore, before_append: Callable[[tuple[Entry, ...], bool], None]) -> None:
        self._store = store
        self._before_append = before_append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncGenerator[Conversation]:
        async with self._store.open(session) as conversation:
            original_append = conversation.append

            async def append(*entries: Entry, sync: bool = True) -> None:
                self._before_append(entries, sync)
                await original_append(*entries, sync=sync)

            conversation.append = append
            yield conversation
