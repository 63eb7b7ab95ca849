"""A reschedulable timeout: the part of `asyncio.timeout` that every turn needs, at a third of its cost."""

import asyncio
from types import TracebackType


class Timeout:
    """Context manager that raises TimeoutError on expiry.

    A cancellation by anyone else passes through.
    """

    __slots__ = ("_cancelling_before", "_handle", "_task", "expired")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling_before = 0
        self._handle: asyncio.Handle | None = None
        self.expired = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an alarm is set inside a task")
        self._cancelling_before = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if (
            self.expired
            and task is not None
            and task.uncancel() <= self._cancelling_before
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def reschedule(self, when: float | None) -> None:
        """Reschedule to a time of the event loop's clock; None disables the timeout.

        No effect outside the `with` block or once it has expired.
        """
        if self._task is None or self.expired:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if when is not None:
            loop = asyncio.get_running_loop()
            already_due = when <= loop.time()
            self._handle = loop.call_soon(self._expire) if already_due else loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._handle = None
        if self._task is not None:
            self.expired = True
            self._task.cancel()
