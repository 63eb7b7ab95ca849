"""Drives runs in this process: claims them in order as slots are free, and owns their tasks."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from retinue.errors import Cancelled

POLL_SECONDS = 0.25
"""How often another process's slot or end is looked for. Our own are known at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the engine is told to do, by the one place that chooses. It knows no rule of its own."""

    claim: Callable[[str], Awaitable[str]]
    """taken, full, busy or gone."""
    work: Callable[[str], Awaitable[None]]
    broken: Callable[[str, BaseException], Awaitable[None]]
    ended: Callable[[str], Awaitable[bool]]
    """Whether a run has ended, whoever worked it."""
    unwanted: Callable[[], Awaitable[list[str]]]
    """Runs of ours that somebody elsewhere wants stopped."""


class LocalEngine:
    """Implements ports.Engine with asyncio tasks."""

    def __init__(self) -> None:
        self._orders: Orders | None = None
        self._queue: deque[str] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._done: dict[str, asyncio.Event] = {}
        self._poke = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    def start(self, orders: Orders) -> None:
        self._orders = orders

    def submit(self, run_id: str) -> None:
        self._queue.append(run_id)
        self._done.setdefault(run_id, asyncio.Event())
        self._poke.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._pumped(), name="retinue-engine")

    async def wait(self, run_id: str) -> None:
        done = self._done.get(run_id)
        if done is not None:
            await done.wait()
            return
        while not await self._told().ended(run_id):  # noqa: ASYNC110  (another process ends it: nothing to wait on)
            await asyncio.sleep(POLL_SECONDS)

    def cancel(self, run_id: str) -> bool:
        task = self._tasks.get(run_id)
        if task is None:
            return False
        self._cancelled.add(run_id)
        task.cancel()
        return True

    def cancelled(self, run_id: str) -> bool:
        return run_id in self._cancelled

    async def close(self) -> None:
        """Leaves running work where it is on disk: the next start goes on from there."""
        tasks = list(self._tasks.values())
        if self._pump is not None:
            tasks.append(self._pump)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pumped(self) -> None:
        """Ends when there is nothing left to start and nothing running: an idle process costs nothing."""
        while self._queue or self._tasks:
            self._poke.clear()
            await self._claimed()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poke.wait()
            except TimeoutError:
                await self._heeded()

    async def _claimed(self) -> None:
        """First come, first served; a run whose session is busy lets others pass."""
        waiting: list[str] = []
        while self._queue:
            run_id = self._queue.popleft()
            verdict = await self._told().claim(run_id)
            if verdict == "taken":
                self._tasks[run_id] = asyncio.create_task(self._driven(run_id), name=f"run-{run_id}")
            elif verdict == "gone":
                self._finished(run_id)
            else:
                waiting.append(run_id)
                if verdict == "full":
                    break
        self._queue.extendleft(reversed(waiting))

    async def _heeded(self) -> None:
        if self._tasks:
            for run_id in await self._told().unwanted():
                self.cancel(run_id)

    async def _driven(self, run_id: str) -> None:
        """The only place that catches everything: one run's crash is that run's end and no other's."""
        orders = self._told()
        try:
            await orders.work(run_id)
        except asyncio.CancelledError:
            if run_id not in self._cancelled:
                raise
            await orders.broken(run_id, Cancelled("cancelled"))
        except Exception as error:  # noqa: BLE001  (a bug in one run must not end the others)
            await orders.broken(run_id, error)
        finally:
            self._finished(run_id)

    def _finished(self, run_id: str) -> None:
        self._tasks.pop(run_id, None)
        self._cancelled.discard(run_id)
        if done := self._done.pop(run_id, None):
            done.set()
        self._poke.set()

    def _told(self) -> Orders:
        if self._orders is None:
            raise RuntimeError("the engine was not started")
        return self._orders
