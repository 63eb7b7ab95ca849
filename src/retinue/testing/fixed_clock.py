"""A deterministic clock: time that advances by a fixed step, counting ids, and no randomness."""

from datetime import UTC, datetime, timedelta
from itertools import count

from retinue.domain.clock import Clock
from retinue.worker.clock import format_ulid, format_uuid7

START_TIME = datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC)


def fixed_clock(
    start: datetime = START_TIME, *, step: timedelta = timedelta(milliseconds=1), seed: int = 0
) -> Clock:
    """Return a clock that advances by `step` at each reading.

    Ids are well formed, increase, and are the same in every test. Another `seed` gives ids that never collide
    with those of the first, as in another process. `uniform` returns the middle of its range.
    """
    start_ms = int(start.timestamp() * 1000)
    ticks, entry_numbers, uuid_numbers = count(), count(1), count(1)
    return Clock(
        now=lambda: start + step * next(ticks),
        new_entry_id=lambda: format_ulid(start_ms << 80 | seed << 40 | next(entry_numbers)),
        new_uuid=lambda: format_uuid7(start_ms << 74 | seed << 40 | next(uuid_numbers)),
        uniform=lambda low, high: (low + high) / 2,
    )
