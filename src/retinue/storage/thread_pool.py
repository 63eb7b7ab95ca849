"""The few threads that wait for the disk, so that the loop never does."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from retinue.errors import Failed
from retinue.storage.file_io import sync_path

T = TypeVar("T")
_COUNT = 8
"""Syncs that wait at the same time share the disk's commits."""
_CLOSED = "The store is closed"

Job = tuple[asyncio.Future[Any], Callable[[], Any]]


class Threads:
    """Work done together is told together: many results wake the loop once."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        self._folders: dict[str, _Folder] = {}
        self._closed = False
        self._busy = 0
        """Jobs given to the threads and not yet settled."""
        self.settled: set[str] = set()
        """Folders of new sessions that this process has put on disk."""
        self.conversations = 0
        """How many are open or being opened; whoever closes one counts it out, on the loop."""

    def do(self, work: Callable[[], T], *, long: bool = False, quick: bool = False) -> asyncio.Future[T]:
        """What has begun is finished even when nobody waits for it any more. While at most one conversation is
        open there is nobody to hold up, and the work is done at once, unless it is `long`: a thread would cost more
        than the disk. What is `quick`, because it waits neither for the disk nor for anybody, is always done at once."""
        loop = asyncio.get_running_loop()
        if (quick and not self._closed) or (self.free and not long):
            return _at_once(work, loop.create_future())
        if self._closed:
            raise Failed(_CLOSED)
        if loop is not self._loop:
            self._loop, self._done, self._told, self._busy = loop, deque(), False, 0
        if len(self._threads) < _COUNT:
            self._start()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1
        self._jobs.put((future, work))
        return future

    @property
    def free(self) -> bool:
        """Whether there is nobody to hold up."""
        return self.conversations <= 1 and not self._busy and not self._closed

    async def through(self, work: Callable[[], T], *, long: bool = False, quick: bool = False) -> T:
        """As `do`, for what changes a file: a cancellation passes on when the work is done, so that whoever cleans up
        finds all of it or nothing."""
        if (quick and not self._closed) or (self.free and not long):
            return work()
        return await self.over(self.do(work, long=long))

    async def over(self, future: asyncio.Future[T]) -> T:
        """What comes of it; a cancellation passes on when it is done."""
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: done.exception())  # nobody is left to be told
            if not future.done():
                await asyncio.wait([future])
            raise

    def told(self, work: Callable[[], object], then: Callable[[BaseException | None], None]) -> None:
        """As `do`, for whoever goes on by being called: with what went wrong, or None."""
        try:
            future = self.do(work)
        except Failed as closed:
            then(closed)
            return
        future.add_done_callback(lambda done: then(done.exception()))

    async def have(self, work: Callable[[], T], drop: Callable[[T], object], *, quick: bool = False) -> T:
        """As `through`, for a conversation, which must be given back: when nobody waits any more, `drop` gets it."""
        self.conversations += 1
        if (quick and not self._closed) or self.free:
            try:
                return work()
            except BaseException:
                self.conversations -= 1
                raise
        future = self.do(work)
        future.add_done_callback(self._not_opened)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: None if done.exception() else drop(done.result()))
            if not future.done():
                await asyncio.wait([future])
            raise

    def _not_opened(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            self.conversations -= 1

    def sync_folder(self, path: str) -> None:
        """On disk: which names the folder holds. Threads that ask for one folder at once share a sync."""
        folder = self._folders.setdefault(path, _Folder())
        with folder.counting:
            folder.asked += 1
            mine = folder.asked
        with folder.syncing:
            if folder.synced >= mine:
                return
            covered = folder.asked
            sync_path(path)
            folder.synced = covered

    def known_folder(self, path: str) -> bool:
        """Whether this process has synced that folder before, so that its own name is on disk."""
        return path in self._folders and self._folders[path].synced > 0

    def close(self) -> None:
        """Waits for what is being written; work not yet begun is never begun."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"retinue-store-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            result, error = None, None
            try:
                result = None if future.cancelled() else self._begun(work)
            except BaseException as caught:  # noqa: BLE001 - it is raised again, in the task that waits
                error = caught
            self._tell(future, result, error)

    def _begun(self, work: Callable[[], Any]) -> Any:
        """Whoever waits for work that is never begun must not take it for done."""
        if self._closed:
            raise Failed(_CLOSED)
        return work()

    def _tell(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        loop, done = self._loop, self._done
        if loop is None or future.get_loop() is not loop or loop.is_closed():
            return
        done.append((future, result, error))
        if not self._told:
            self._told = True
            loop.call_soon_threadsafe(self._settle, done)

    def _settle(self, done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
        self._told = False
        while done:
            future, result, error = done.popleft()
            self._busy -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _at_once(work: Callable[[], T], future: asyncio.Future[T]) -> asyncio.Future[T]:
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001  (it is raised again, in the task that waits)
        future.set_exception(error)
    return future


@dataclass(slots=True)
class _Folder:
    counting: threading.Lock = field(default_factory=threading.Lock)
    syncing: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    synced: int = 0
