"""How often Python looks for garbage while runs are worked: many at once hold much, and leave little to be found."""

import gc

OBJECTS = 50_000
"""New objects before the next look. Python's own 700 makes a thousand runs at once look for a quarter of their time."""


class Sweeps:
    """The process's setting, raised while it matters. A program that chose a higher one, or none, keeps it."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def fewer(self) -> None:
        before = gc.get_threshold()
        if 0 < before[0] < OBJECTS:
            self._before = before
            gc.set_threshold(OBJECTS, *before[1:])

    def as_before(self) -> None:
        before, self._before = self._before, None
        if before is not None and gc.get_threshold()[0] == OBJECTS:
            gc.set_threshold(*before)
