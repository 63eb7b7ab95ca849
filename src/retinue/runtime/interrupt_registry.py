"""The callbacks that interrupt the runs of this process."""

from collections.abc import Callable, Generator
from contextlib import contextmanager


class InterruptRegistry:
    """Interrupt callbacks of the runs that this process executes."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callable[[], None]] = {}

    @contextmanager
    def register(self, run_id: str, on_interrupt: Callable[[], None]) -> Generator[None]:
        self._callbacks[run_id] = on_interrupt
        try:
            yield
        finally:
            self._callbacks.pop(run_id, None)

    def interrupt_run(self, run_id: str) -> None:
        if (on_interrupt := self._callbacks.get(run_id)) is not None:
            on_interrupt()
