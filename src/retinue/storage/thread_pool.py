"""A thread pool for disk work, so that the event loop never waits for the disk."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from retinue.errors import Failed
from retinue.storage.file_io import fsync_path

T = TypeVar("T")
_MAX_THREADS = 8
_MAX_DURABLE_SESSIONS = 2048
"""Fsyncs that wait at the same time share the disk's journal commits."""
_CLOSED_MESSAGE = "The session store is closed."

Job = tuple[asyncio.Future[Any], Callable[[], Any]]


class DiskThreadPool:
    """A thread pool that posts many results to the event loop with one wake-up."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._completed: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._wakeup_scheduled = False
        self._folders: dict[str, _FolderSync] = {}
        self._closed = False
        self._pending_jobs = 0
        """Jobs submitted to the threads and not yet resolved."""
        self.durable_sessions: set[str] = set()
        """Folders of new sessions that this process has made durable."""
        self.open_conversations = 0
        """Number of conversations open or being opened. Closing one decrements it on the event loop."""

    def mark_durable(self, *folders: str) -> None:
        """Record new sessions as durable; one that is forgotten is only synced once more."""
        if len(self.durable_sessions) >= _MAX_DURABLE_SESSIONS:
            self.durable_sessions.clear()
        self.durable_sessions.update(folders)

    def submit(
        self, func: Callable[[], T], *, force_thread: bool = False, force_inline: bool = False
    ) -> asyncio.Future[T]:
        """Run a job in a thread, or inline when no other conversation would be delayed.

        A started job finishes even if its future is cancelled. While at most one conversation is open the job
        runs inline, because a thread would cost more than the disk; `force_thread` prevents that. With
        `force_inline` the job always runs inline, because it waits neither for the disk nor for a lock.
        """
        loop = asyncio.get_running_loop()
        if (force_inline and not self._closed) or (self.can_run_inline and not force_thread):
            return _run_inline(func, loop.create_future())
        if self._closed:
            raise Failed(_CLOSED_MESSAGE)
        if loop is not self._loop:
            self._loop, self._completed, self._wakeup_scheduled, self._pending_jobs = loop, deque(), False, 0
        if len(self._threads) < _MAX_THREADS:
            self._start_thread()
        future: asyncio.Future[T] = loop.create_future()
        self._pending_jobs += 1
        self._jobs.put((future, func))
        return future

    @property
    def can_run_inline(self) -> bool:
        """True while no other work would be delayed by running inline."""
        return self.open_conversations <= 1 and not self._pending_jobs and not self._closed

    async def run(
        self, func: Callable[[], T], *, force_thread: bool = False, force_inline: bool = False
    ) -> T:
        """Run a job that changes a file, as `submit` does, and await its completion.

        Cancellation is delivered only after the job is done, so that clean-up finds all of the change or
        none.
        """
        if (force_inline and not self._closed) or (self.can_run_inline and not force_thread):
            return func()
        return await self.await_completion(self.submit(func, force_thread=force_thread))

    async def await_completion(self, future: asyncio.Future[T]) -> T:
        """Await a future; delay cancellation until the future is done."""
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(
                lambda done: done.exception()
            )  # retrieve the exception, because no caller is left to receive it
            if not future.done():
                await asyncio.wait([future])
            raise

    def submit_with_callback(
        self, func: Callable[[], object], on_done: Callable[[BaseException | None], None]
    ) -> None:
        """Submit a job and call `on_done` with its exception, or with None on success."""
        try:
            future = self.submit(func)
        except Failed as closed_error:
            on_done(closed_error)
            return
        future.add_done_callback(lambda done: on_done(done.exception()))

    async def open_conversation(
        self, func: Callable[[], T], on_abandoned: Callable[[T], object], *, force_inline: bool = False
    ) -> T:
        """Run a job that opens a conversation, and count the conversation as open.

        If the caller is cancelled meanwhile, the opened conversation is passed to `on_abandoned` to be
        released.
        """
        self.open_conversations += 1
        if (force_inline and not self._closed) or self.can_run_inline:
            try:
                return func()
            except BaseException:
                self.open_conversations -= 1
                raise
        future = self.submit(func)
        future.add_done_callback(self._uncount_failed_open)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: None if done.exception() else on_abandoned(done.result()))
            if not future.done():
                await asyncio.wait([future])
            raise

    def _uncount_failed_open(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            self.open_conversations -= 1

    def sync_folder(self, path: str) -> None:
        """Fsync a folder's directory entries; concurrent requests for one folder share one fsync."""
        folder = self._folders.setdefault(path, _FolderSync())
        with folder.count_lock:
            folder.requested += 1
            ticket = folder.requested
        with folder.sync_lock:
            if folder.covered >= ticket:
                return
            covered_requests = folder.requested
            fsync_path(path)
            folder.covered = covered_requests

    def has_synced_folder(self, path: str) -> bool:
        """Return True if this process has synced the folder before, so that its own name is durable."""
        return path in self._folders and self._folders[path].covered > 0

    def close(self) -> None:
        """Wait for running jobs and stop the threads; jobs not yet started never run."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._run_worker, name=f"retinue-store-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _run_worker(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, func = job
            result, error = None, None
            try:
                result = None if future.cancelled() else self._run_unless_closed(func)
            except BaseException as caught:  # noqa: BLE001  (raised again in the task that waits)
                error = caught
            self._post_result(future, result, error)

    def _run_unless_closed(self, func: Callable[[], Any]) -> Any:
        """Run a job, or raise Failed if the pool is closed, so that the caller does not treat it as executed."""
        if self._closed:
            raise Failed(_CLOSED_MESSAGE)
        return func()

    def _post_result(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        loop, completed = self._loop, self._completed
        if loop is None or future.get_loop() is not loop or loop.is_closed():
            return
        completed.append((future, result, error))
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            loop.call_soon_threadsafe(self._resolve_futures, completed)

    def _resolve_futures(
        self, completed: deque[tuple[asyncio.Future[Any], Any, BaseException | None]]
    ) -> None:
        self._wakeup_scheduled = False
        while completed:
            future, result, error = completed.popleft()
            self._pending_jobs -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _run_inline(func: Callable[[], T], future: asyncio.Future[T]) -> asyncio.Future[T]:
    try:
        future.set_result(func())
    except Exception as error:  # noqa: BLE001  (raised again in the task that waits)
        future.set_exception(error)
    return future


@dataclass(slots=True)
class _FolderSync:
    count_lock: threading.Lock = field(default_factory=threading.Lock)
    sync_lock: threading.Lock = field(default_factory=threading.Lock)
    requested: int = 0
    covered: int = 0
