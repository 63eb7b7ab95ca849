"""Chance without any: a clock that moves by itself, ids that count, and always the middle."""

from datetime import UTC, datetime, timedelta
from itertools import count

from retinue.domain.clock import Chance
from retinue.worker.clock import ulid, uuid7

START = datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC)


def fixed_chance(
    start: datetime = START, *, step: timedelta = timedelta(milliseconds=1), seed: int = 0
) -> Chance:
    """Each look at the clock moves it by `step`. Ids are well formed, rise, and are the same in every test;
    another `seed` gives ids that never meet the first ones, as another process has."""
    born = int(start.timestamp() * 1000)
    ticks, entries, uuids = count(), count(1), count(1)
    return Chance(
        now=lambda: start + step * next(ticks),
        entry_id=lambda: ulid(born << 80 | seed << 40 | next(entries)),
        uuid=lambda: uuid7(born << 74 | seed << 40 | next(uuids)),
        uniform=lambda low, high: (low + high) / 2,
    )
