"""The worker: claims queued runs in order as slots are free, and runs each in an asyncio task."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from msgspec import Struct

from retinue.domain.run import ClaimResult
from retinue.domain.session import CreatedRun
from retinue.errors import Cancelled, RetinueError

POLL_INTERVAL_S = 0.25
"""Interval of checks for free slots, ended runs and requests of other processes."""
FULL_CHECK_TICKS = 8
"""After this many ticks everything is checked, even without changes, because of time limits."""


async def _no_watchers(_ended_runs: Collection[str]) -> bool:
    return False


async def _no_overdue_runs() -> None:
    """Default without timeouts."""


async def _no_announcements() -> None:
    """Default without announcements."""


def _always_changed() -> bool:
    return True


class SchedulerCallbacks(Struct, frozen=True, kw_only=True):
    """Callbacks with which the worker claims, executes and ends runs."""

    claim_run: Callable[[str], Awaitable[ClaimResult]]
    execute_run: Callable[[str, CreatedRun | None], Awaitable[bool]]
    """Execute a run; True if it is suspended until someone else acts."""
    fail_run: Callable[[str, BaseException], Awaitable[None]]
    has_ended: Callable[[str], Awaitable[bool]]
    """Return True if a run has ended in any process, or waits for something that only a person can provide."""
    find_cancel_requests: Callable[[], Awaitable[list[str]]]
    """Return runs of this process that someone asked to cancel."""
    deliver_interrupts: Callable[[], Awaitable[None]]
    """Deliver requests, also from other processes, to stop and report the result so far."""
    find_resumable_runs: Callable[[], Awaitable[list[str]]]
    """Return suspended runs of this process that may continue; called while any is suspended."""
    requeue_runs_of_dead_processes: Callable[[], Awaitable[None]]
    """Requeue the runs of dead processes; called while runs are queued."""
    notify_watchers: Callable[[Collection[str]], Awaitable[bool]] = _no_watchers
    """Notify watchers of activity and of the runs that ended; True if there is more to notify of soon."""
    write_announcements: Callable[[], Awaitable[None]] = _no_announcements
    """Write results to the transcripts of idle sessions; called after runs have ended."""
    wake_overdue_runs: Callable[[], Awaitable[None]] = _no_overdue_runs
    """Resume runs whose wake time has come."""
    record_alive: Callable[[], None] = lambda: None
    """Record that this process is alive; called often while it has runs."""
    has_changes: Callable[[], bool] = _always_changed
    """Return True if anything was written since the previous call; otherwise there is nothing to check."""


class LocalWorker:
    """The Worker protocol on asyncio tasks. An idle worker uses no CPU time."""

    def __init__(self) -> None:
        self._callbacks: SchedulerCallbacks | None = None
        self._queue: deque[str] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._suspended: set[str] = set()
        self._resubmit: set[str] = set()
        self._concurrency_keys: dict[str, str] = {}
        """Runs with the same key share a concurrency limit: once it refuses one, the others are not tried."""
        self._state_changed = asyncio.Event()
        self._cancelled: set[str] = set()
        self._done_events: dict[str, asyncio.Event] = {}
        self._unsaved_errors: dict[str, BaseException] = {}
        """Errors of ended runs whose end could not be saved."""
        self._unsaved_ends: dict[str, Exception] = {}
        """Why these runs ended: saving that is tried again, as the disk may work again later."""
        self._saving_ends = False
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._claiming = False
        self._ended: set[str] = set()
        """Runs that ended and whose watchers were not notified yet."""
        self._watchers_pending = False
        """True if a watcher is to be notified."""
        self._notifying_watchers = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._closed = False
        self._draining = False

    def start(self, callbacks: SchedulerCallbacks) -> None:
        self._callbacks = callbacks

    def submit(
        self,
        run_id: str,
        *,
        claimed: CreatedRun | bool = False,
        at_front: bool = False,
        concurrency_key: str = "",
    ) -> None:
        self._done_events.setdefault(run_id, asyncio.Event())
        self._unsaved_errors.pop(run_id, None)
        self._unsaved_ends.pop(run_id, None)
        self._suspended.discard(run_id)
        if concurrency_key:
            self._concurrency_keys[run_id] = concurrency_key
        if run_id in self._tasks:
            self._resubmit.add(run_id)  # it was woken while it was being suspended
        elif run_id in self._queue:
            return
        elif claimed:
            self._start_task(run_id, None if claimed is True else claimed)
        else:
            (self._queue.appendleft if at_front else self._queue.append)(run_id)
            self._schedule_claim()
        self._schedule_tick()

    async def wait(self, run_id: str) -> None:
        if (done := self._done_events.get(run_id)) is not None:
            await done.wait()
        elif run_id not in self._unsaved_errors:
            while not await self._started_callbacks().has_ended(run_id):
                await self.wait_for_change()
        if error := self._unsaved_errors.get(run_id):
            raise error

    def cancel(self, run_id: str) -> bool:
        self._suspended.discard(run_id)
        if run_id in self._queue:
            self._queue.remove(run_id)
            self._finish_task(run_id)
            return True
        task = self._tasks.get(run_id)
        if task is None:
            return False
        # A second cancellation would hit the run while it is closing its transcript.
        if run_id not in self._cancelled:
            self._cancelled.add(run_id)
            # A task cancelled before its first step never enters its clean-up code, so let it start first.
            asyncio.get_running_loop().call_soon(task.cancel)
        return True

    def check_requests(self) -> None:
        if not self._closed:
            self._check_requests()

    def is_cancelled(self, run_id: str) -> bool:
        return run_id in self._cancelled

    async def close(self) -> None:
        """Stop without ending the runs: the next start resumes them from disk."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks.values(), *self._background_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, timeout_s: float) -> None:
        """Claim nothing more, and wait for current runs and claims up to the timeout."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._claiming:
                    await asyncio.wait(self._background_tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._tasks:
                    await asyncio.wait(self._tasks.values())

    def _start_task(self, run_id: str, created: CreatedRun | None = None) -> None:
        if self._closed:
            return  # created during shutdown: the next start resumes it
        self._tasks[run_id] = asyncio.create_task(self._run_task(run_id, created), name=f"run-{run_id}")

    async def _run_task(self, run_id: str, created: CreatedRun | None) -> None:
        """Execute one run; an exception in it ends only this run."""
        callbacks = self._started_callbacks()
        try:
            if await callbacks.execute_run(run_id, created):
                self._suspended.add(run_id)
                self._schedule_tick()
        except asyncio.CancelledError:
            if run_id not in self._cancelled:
                raise
            await self._fail_run(run_id, Cancelled("cancelled"))
        except Exception as error:  # noqa: BLE001  (a bug in one run must not end the others)
            await self._fail_run(run_id, error)
        finally:
            self._finish_task(run_id)

    async def _fail_run(self, run_id: str, error: Exception) -> None:
        """Save the failure of a run, shielded from cancellation, which must not prevent saving it.

        If even that fails, callers waiting for the run get the error.
        """
        self._unsaved_ends.pop(run_id, None)
        task = asyncio.ensure_future(self._started_callbacks().fail_run(run_id, error))
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        save_error = None if task.cancelled() else task.exception()
        if save_error is None:
            self._unsaved_errors.pop(run_id, None)
        else:
            self._unsaved_errors[run_id] = save_error
            if isinstance(save_error, RetinueError):
                self._unsaved_ends[run_id] = error
                self._schedule_tick()

    async def _save_ends(self) -> None:
        """Try again to save the ends of runs, until the first one fails."""
        try:
            for run_id, error in [*self._unsaved_ends.items()]:
                await self._fail_run(run_id, error)
                if run_id in self._unsaved_ends:
                    break
        finally:
            self._saving_ends = False

    async def wait_for_change(self) -> None:
        """Wait until a run ends or is suspended in this process, or for one poll interval."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._state_changed.wait(), POLL_INTERVAL_S)

    def notify(self) -> None:
        """Wake all tasks in `wait_for_change`."""
        self._state_changed.set()
        self._state_changed = asyncio.Event()

    def _finish_task(self, run_id: str) -> None:
        self._tasks.pop(run_id, None)
        self.notify()
        self._ended.add(run_id)
        self._schedule_tick()
        if run_id in self._resubmit:
            self._resubmit.discard(run_id)
            self._cancelled.discard(run_id)
            self.submit(run_id, at_front=True)
            return
        self._concurrency_keys.pop(run_id, None)
        self._cancelled.discard(run_id)
        if done := self._done_events.pop(run_id, None):
            done.set()
        if self._queue:
            self._schedule_claim()

    def _schedule_claim(self) -> None:
        if not (self._claiming or self._closed or self._draining):
            self._claiming = True
            self._run_in_background(self._claim_queued())

    async def _claim_queued(self) -> None:
        """Claim queued runs, first come first served; a run whose session is busy lets others pass."""
        skipped: list[str] = []
        keys_at_limit: set[str] = set()
        try:
            while self._queue and not self._draining:
                run_id = self._queue.popleft()
                key = self._concurrency_keys.get(run_id, "")
                result = (
                    ClaimResult.REQUESTER_LIMIT if key in keys_at_limit else await self._try_claim(run_id)
                )
                if result is ClaimResult.REQUESTER_LIMIT and key:
                    keys_at_limit.add(key)
                if result is ClaimResult.CLAIMED:
                    self._start_task(run_id)
                elif result is ClaimResult.NOT_QUEUED:
                    if run_id not in self._tasks:  # otherwise it was submitted twice and is running
                        self._finish_task(run_id)
                else:
                    skipped.append(run_id)
                if result is ClaimResult.NO_FREE_SLOT:
                    break
        finally:
            self._queue.extendleft(reversed(skipped))
            self._claiming = False
            # A claim may outlast a tick, which then saw an empty queue and scheduled no further tick.
            if self._queue:
                self._schedule_tick()

    async def _try_claim(self, run_id: str) -> ClaimResult:
        """Try to claim a run; if the ledger cannot be written, it is tried again later."""
        try:
            return await self._started_callbacks().claim_run(run_id)
        except RetinueError:
            return ClaimResult.NO_FREE_SLOT
        except Exception as error:  # noqa: BLE001  (see above)
            await self._fail_run(run_id, error)
            return ClaimResult.NOT_QUEUED

    def _schedule_tick(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticks += 1
        if self._tasks or self._suspended:
            self._started_callbacks().record_alive()
        if self._queue:
            self._run_in_background(self._requeue_runs_of_dead_processes())
        if self._started_callbacks().has_changes() or self._ticks % FULL_CHECK_TICKS == 0:
            self._check_requests()
        elif self._suspended or self._tasks:
            self._run_in_background(self._started_callbacks().wake_overdue_runs())
        if (self._watchers_pending or self._ended or self._tasks) and not self._notifying_watchers:
            self._notifying_watchers = True
            self._run_in_background(self._notify_watchers())
        if self._unsaved_ends and not self._saving_ends and self._ticks % FULL_CHECK_TICKS == 0:
            self._saving_ends = True
            self._run_in_background(self._save_ends())
        if self._queue or self._tasks or self._suspended or self._unsaved_ends:
            self._schedule_tick()

    def _check_requests(self) -> None:
        """Check for requests of other processes to runs of this one."""
        if self._tasks:
            self._run_in_background(self._cancel_requested())
        if self._tasks or self._suspended:
            self._run_in_background(self._deliver_interrupts())
            self._run_in_background(self._resume_runs())

    async def _requeue_runs_of_dead_processes(self) -> None:
        with suppress(RetinueError):
            await self._started_callbacks().requeue_runs_of_dead_processes()
        self._schedule_claim()

    async def _resume_runs(self) -> None:
        with suppress(RetinueError):
            for run_id in await self._started_callbacks().find_resumable_runs():
                if run_id not in self._tasks:
                    self.submit(run_id, at_front=True)

    async def _cancel_requested(self) -> None:
        with suppress(RetinueError):
            for run_id in await self._started_callbacks().find_cancel_requests():
                self.cancel(run_id)

    async def _notify_watchers(self) -> None:
        ended, self._ended = self._ended, set[str]()
        try:
            with suppress(RetinueError):
                if ended:
                    await self._started_callbacks().write_announcements()
                self._watchers_pending = await self._started_callbacks().notify_watchers(ended)
        finally:
            self._notifying_watchers = False
        if self._watchers_pending or self._ended:
            self._schedule_tick()

    async def _deliver_interrupts(self) -> None:
        with suppress(RetinueError):
            await self._started_callbacks().deliver_interrupts()

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _started_callbacks(self) -> SchedulerCallbacks:
        if self._callbacks is None:
            raise RuntimeError("the worker was not started")
        return self._callbacks
