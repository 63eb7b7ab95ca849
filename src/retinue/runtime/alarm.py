"""An alarm over what is awaited inside it: `asyncio.timeout` as far as every turn of every run needs it, at a third of its cost."""

import asyncio
from types import TracebackType


class Alarm:
    """TimeoutError where it rang and nobody else wanted the task to stop."""

    __slots__ = ("_before", "_handle", "_task", "rang")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self._handle: asyncio.Handle | None = None
        self.rang = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an alarm is set inside a task")
        self._before = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if (
            self.rang
            and task is not None
            and task.uncancel() <= self._before
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def set(self, when: float | None) -> None:
        """By the loop's clock; None: not at all. Outside of what it stands over, and once it rang, it cannot be set."""
        if self._task is None or self.rang:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if when is not None:
            loop = asyncio.get_running_loop()
            late = when <= loop.time()
            self._handle = loop.call_soon(self._ring) if late else loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._handle = None
        if self._task is not None:
            self.rang = True
            self._task.cancel()
