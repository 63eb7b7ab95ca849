"""Aside: one thread for the few things that may sleep, so that the loop never does."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Work = Callable[[], Any]
Then = Callable[[Any, Exception | None], None]


class Aside:
    """Does one piece of work after the other, and tells the loop of each: its value, or what it raised."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Work, Then, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Work, then: Then) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
            self._thread.start()
        self._queue.put((work, then, asyncio.get_running_loop()))

    def end(self) -> None:
        """Everything given before is done first."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (given := self._queue.get()) is not None:
            work, then, loop = given
            try:
                value, error = work(), None
            except Exception as caught:  # noqa: BLE001  (it is handed on, not swallowed)
                value, error = None, caught
            try:
                loop.call_soon_threadsafe(then, value, error)
            except RuntimeError:
                # The loop is closed: nobody is left to tell.
                return
