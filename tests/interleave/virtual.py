"""Virtual time and no threads, so that the same seed gives the same interleaving."""

import asyncio
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any, TypeVar

from retinue.domain.clock import Clock
from retinue.ledger.writer_thread import Job, OnDone, WriterThread
from retinue.storage.thread_pool import DiskThreadPool
from retinue.worker.clock import format_ulid, format_uuid7

T = TypeVar("T")
START = datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC)
_START_MS = int(START.timestamp() * 1000)


class Stalled(Exception):
    """No task is ready and no timer is due, but the loop has not ended."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when no task is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.now


class _SkippingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise Stalled
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def virtual_clock(random: Random, *, coarse: bool) -> Clock:
    """Return one clock for all processes, with unique ids that increase with time.

    A coarse clock returns the same time for calls at the same moment, as real clocks do.
    """
    ticks, entries, uuids = count(), count(1), count(1)

    def now() -> datetime:
        moved = 0 if coarse else next(ticks)
        return START + timedelta(seconds=asyncio.get_running_loop().time(), microseconds=moved)

    def current_ms() -> int:
        return _START_MS + int(asyncio.get_running_loop().time() * 1000)

    return Clock(
        now=now,
        new_entry_id=lambda: format_ulid(current_ms() << 80 | next(entries)),
        new_uuid=lambda: format_uuid7(current_ms() << 74 | next(uuids)),
        uniform=random.uniform,
    )


class InlineThreadPool(DiskThreadPool):
    """A thread pool of the store that executes its work at once, without a thread."""

    def submit(
        self, func: Callable[[], T], *, force_thread: bool = False, force_inline: bool = False
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(func())
        except Exception as error:  # noqa: BLE001  (it is raised again in the task that waits)
            future.set_exception(error)
        return future


class InlineWriterThread(WriterThread):
    """Commits to the ledger at once, and reports the result in the next iteration of the event loop."""

    def submit(self, job: Job, on_done: OnDone) -> None:
        value, error = None, None
        try:
            value = job()
        except Exception as caught:  # noqa: BLE001  (it is passed to the callback)
            error = caught
        asyncio.get_running_loop().call_soon(on_done, value, error)
