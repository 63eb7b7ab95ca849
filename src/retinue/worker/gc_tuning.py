"""Garbage collector tuning: collect less often while runs are executed."""

import gc

BUSY_GC_THRESHOLD = 50_000
"""New objects before the next collection. With Python's default of 700, a thousand concurrent runs spend a
quarter of their time in collections.
"""


class GcTuning:
    """Raise the process's collection threshold while it matters.

    A program that set a higher threshold, or disabled collection, keeps its setting.
    """

    def __init__(self) -> None:
        self._previous: tuple[int, int, int] | None = None

    def raise_threshold(self) -> None:
        current = gc.get_threshold()
        if 0 < current[0] < BUSY_GC_THRESHOLD:
            self._previous = current
            gc.set_threshold(BUSY_GC_THRESHOLD, *current[1:])

    def restore(self) -> None:
        previous, self._previous = self._previous, None
        if previous is not None and gc.get_threshold()[0] == BUSY_GC_THRESHOLD:
            gc.set_threshold(*previous)
