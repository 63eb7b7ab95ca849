"""A thread for operations that may block, so that the event loop is not blocked."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = Callable[[], Any]
OnDone = Callable[[Any, Exception | None], None]


class WriterThread:
    """Run jobs one by one in a thread and report each result or exception to the event loop."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Job, OnDone, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, on_done: OnDone) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_jobs, name="ledger", daemon=True)
            self._thread.start()
        self._queue.put((job, on_done, asyncio.get_running_loop()))

    def join(self) -> None:
        """Finish all submitted jobs, then stop the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run_jobs(self) -> None:
        while (item := self._queue.get()) is not None:
            job, on_done, loop = item
            try:
                value, error = job(), None
            except Exception as caught:  # noqa: BLE001  (passed on, not swallowed)
                value, error = None, caught
            try:
                loop.call_soon_threadsafe(on_done, value, error)
            except RuntimeError:
                # The loop is closed: no caller is left to notify.
                return
