"""Drives runs in this process: claims them in order as slots are free, and owns their tasks."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from retinue.domain.session import Born
from retinue.domain.value import value
from retinue.errors import Cancelled, RetinueError
from retinue.worker.gc_tuning import Sweeps

POLL_SECONDS = 0.25
"""How often another process's slot, end or wish is looked for. Our own are known at once."""
SELDOM = 8
"""Every so many looks all is looked for, though nobody has written anything: some things only time brings."""


async def _nobody(_ended: Collection[str]) -> bool:
    return False


async def _nothing() -> None:
    """Nobody waits for a clock."""


def _always() -> bool:
    return True


@value
class Orders:
    """What the engine is told to do, by the one place that chooses. It knows no rule of its own."""

    claim: Callable[[str], Awaitable[str]]
    """taken, full (nobody gets a slot now), busy or crowded (others may), or gone."""
    work: Callable[[str, Born | None], Awaitable[bool]]
    """True: it waits for a person, and nothing of it can go on."""
    broken: Callable[[str, BaseException], Awaitable[None]]
    ended: Callable[[str], Awaitable[bool]]
    """Whether a run has ended, whoever worked it, or waits for what nobody will bring unasked."""
    unwanted: Callable[[], Awaitable[list[str]]]
    """Runs of ours that somebody elsewhere wants stopped."""
    interrupted: Callable[[], Awaitable[None]]
    """Tells runs of ours that somebody, perhaps elsewhere, wants to hear what they have come to, and no more."""
    woken: Callable[[], Awaitable[list[str]]]
    """Runs of ours that waited and may go on; asked for while one waits."""
    release: Callable[[], Awaitable[None]]
    """Frees what dead processes hold; asked for while something waits in the queue."""
    watched: Callable[[Collection[str]], Awaitable[bool]] = _nobody
    """Tells watchers what goes on; asked for while something does, and when something has ended, with what has. True:
    there is more to tell them soon."""
    due: Callable[[], Awaitable[None]] = _nothing
    """Lets those go on whose clock has run out."""
    changed: Callable[[], bool] = _always
    """Whether anybody has written anything since this was asked last: where not, there is nothing to look for."""


class LocalEngine:
    """Implements ports.Engine with asyncio tasks. While nothing is queued or running it costs nothing."""

    def __init__(self) -> None:
        self._orders: Orders | None = None
        self._queue: deque[str] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: set[str] = set()
        self._again: set[str] = set()
        self._lanes: dict[str, str] = {}
        """Runs that stand behind one another: where one is told that it is crowded, the others need not ask."""
        self._change = asyncio.Event()
        self._cancelled: set[str] = set()
        self._done: dict[str, asyncio.Event] = {}
        self._unwritten: dict[str, BaseException] = {}
        """Runs that ended and whose end could not be written down, and why."""
        self._chores: set[asyncio.Task[None]] = set()
        self._claiming = False
        self._over: set[str] = set()
        """Runs that have ended, and those who watch were not told yet."""
        self._watchers = False
        """Whether somebody who watches is to hear something."""
        self._telling = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweeps = Sweeps()
        self._ticks = 0
        self._closed = False
        self._draining = False

    def start(self, orders: Orders) -> None:
        self._orders = orders

    def submit(self, run_id: str, *, taken: Born | bool = False, ahead: bool = False, lane: str = "") -> None:
        self._done.setdefault(run_id, asyncio.Event())
        self._unwritten.pop(run_id, None)
        self._parked.discard(run_id)
        if lane:
            self._lanes[run_id] = lane
        if run_id in self._tasks:
            self._again.add(run_id)  # it was roused in the moment its work was put aside
        elif run_id in self._queue:
            return
        elif taken:
            self._drive(run_id, None if taken is True else taken)
        else:
            (self._queue.appendleft if ahead else self._queue.append)(run_id)
            self._claim_soon()
        self._watch()

    async def wait(self, run_id: str) -> None:
        if (done := self._done.get(run_id)) is not None:
            await done.wait()
        elif run_id not in self._unwritten:
            while not await self._told().ended(run_id):
                await self.change()
        if error := self._unwritten.get(run_id):
            raise error

    def cancel(self, run_id: str) -> bool:
        self._parked.discard(run_id)
        if run_id in self._queue:
            self._queue.remove(run_id)
            self._finished(run_id)
            return True
        task = self._tasks.get(run_id)
        if task is None:
            return False
        # A second cancellation would strike the work in the midst of putting its file in order.
        if run_id not in self._cancelled:
            self._cancelled.add(run_id)
            # A task that is cancelled before its first step never enters its own clean-up: it begins first.
            asyncio.get_running_loop().call_soon(task.cancel)
        return True

    def heed(self) -> None:
        if not self._closed:
            self._look_round()

    def cancelled(self, run_id: str) -> bool:
        return run_id in self._cancelled

    async def close(self) -> None:
        """Leaves running work where it is on disk: the next start goes on from there."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks.values(), *self._chores]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sweeps.as_before()

    async def drain(self, seconds: float) -> None:
        """Claims nothing more; what runs, or is just being claimed, may end by itself for so long."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._claiming:
                    await asyncio.wait(self._chores, return_when=asyncio.FIRST_COMPLETED)
                if self._tasks:
                    await asyncio.wait(self._tasks.values())

    def _drive(self, run_id: str, born: Born | None = None) -> None:
        if self._closed:
            return  # born in the last moment: the next start takes it up
        self._sweeps.fewer()
        self._tasks[run_id] = asyncio.create_task(self._driven(run_id, born), name=f"run-{run_id}")

    async def _driven(self, run_id: str, born: Born | None) -> None:
        """The only place that catches everything: one run's crash is that run's end and no other's."""
        orders = self._told()
        try:
            if await orders.work(run_id, born):
                self._parked.add(run_id)
                self._watch()
        except asyncio.CancelledError:
            if run_id not in self._cancelled:
                raise
            await self._broken(run_id, Cancelled("cancelled"))
        except Exception as error:  # noqa: BLE001  (a bug in one run must not end the others)
            await self._broken(run_id, error)
        finally:
            self._finished(run_id)

    async def _broken(self, run_id: str, error: Exception) -> None:
        """Where even the end cannot be written down, whoever waits for the run is told why. Who wants it stopped while it
        ends gets what they want: that must not keep the end from being written."""
        ending = asyncio.ensure_future(self._told().broken(run_id, error))
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        if not ending.cancelled() and (worse := ending.exception()) is not None:
            self._unwritten[run_id] = worse

    async def change(self) -> None:
        """Until some run has ended or been put aside here, or a moment has passed: elsewhere one may have."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._change.wait(), POLL_SECONDS)

    def stir(self) -> None:
        """Something has changed elsewhere: whoever waits looks now."""
        self._change.set()
        self._change = asyncio.Event()

    def _finished(self, run_id: str) -> None:
        self._tasks.pop(run_id, None)
        self.stir()
        self._over.add(run_id)
        self._watch()
        if run_id in self._again:
            self._again.discard(run_id)
            self._cancelled.discard(run_id)
            self.submit(run_id, ahead=True)
            return
        self._lanes.pop(run_id, None)
        self._cancelled.discard(run_id)
        if done := self._done.pop(run_id, None):
            done.set()
        if self._queue:
            self._claim_soon()

    def _claim_soon(self) -> None:
        if not (self._claiming or self._closed or self._draining):
            self._claiming = True
            self._chore(self._claimed())

    async def _claimed(self) -> None:
        """First come, first served; a run whose session is busy lets others pass."""
        waiting: list[str] = []
        crowded: set[str] = set()
        try:
            while self._queue and not self._draining:
                run_id = self._queue.popleft()
                lane = self._lanes.get(run_id, "")
                verdict = "crowded" if lane in crowded else await self._claim(run_id)
                if verdict == "crowded" and lane:
                    crowded.add(lane)
                if verdict == "taken":
                    self._drive(run_id)
                elif verdict == "gone":
                    if run_id not in self._tasks:  # else it was submitted twice, and is at work
                        self._finished(run_id)
                else:
                    waiting.append(run_id)
                if verdict == "full":
                    break
        finally:
            self._queue.extendleft(reversed(waiting))
            self._claiming = False
            # A claim may outlast a tick, which then saw an empty queue and no reason to come back.
            if self._queue:
                self._watch()

    async def _claim(self, run_id: str) -> str:
        """A ledger that cannot be written to is asked again later."""
        try:
            return await self._told().claim(run_id)
        except RetinueError:
            return "full"
        except Exception as error:  # noqa: BLE001  (see above)
            await self._broken(run_id, error)
            return "gone"

    def _watch(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticks += 1
        if self._queue:
            self._chore(self._freed())
        if self._told().changed() or self._ticks % SELDOM == 0:
            self._look_round()
        elif self._parked or self._tasks:
            self._chore(self._told().due())
        if (self._watchers or self._over or self._tasks) and not self._telling:
            self._telling = True
            self._chore(self._watched())
        if not self._tasks:
            self._sweeps.as_before()
        if self._queue or self._tasks or self._parked:
            self._watch()

    def _look_round(self) -> None:
        """For what others want of the runs here."""
        if self._tasks:
            self._chore(self._heeded())
        if self._tasks or self._parked:
            self._chore(self._interrupted())
            self._chore(self._resumed())

    async def _freed(self) -> None:
        with suppress(RetinueError):
            await self._told().release()
        self._claim_soon()

    async def _resumed(self) -> None:
        with suppress(RetinueError):
            for run_id in await self._told().woken():
                if run_id in self._parked:
                    self.submit(run_id, ahead=True)

    async def _heeded(self) -> None:
        with suppress(RetinueError):
            for run_id in await self._told().unwanted():
                self.cancel(run_id)

    async def _watched(self) -> None:
        over, self._over = self._over, set[str]()
        try:
            with suppress(RetinueError):
                self._watchers = await self._told().watched(over)
        finally:
            self._telling = False
        if self._watchers or self._over:
            self._watch()

    async def _interrupted(self) -> None:
        with suppress(RetinueError):
            await self._told().interrupted()

    def _chore(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _told(self) -> Orders:
        if self._orders is None:
            raise RuntimeError("the engine was not started")
        return self._orders
