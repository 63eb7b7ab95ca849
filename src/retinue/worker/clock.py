"""Chance: the real clock, ids that sort by time, and the machine's randomness."""

import os
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from retinue.domain.clock import Chance

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
"""Two of the 26 characters at a time."""
_PART = (1 << 40) - 1
_ULID_RANDOM_BITS = 80
_UUID_RANDOM_BITS = 74


def system_chance() -> Chance:
    """Ids of one process always increase, also within a millisecond and when the clock steps back."""
    entries = Rising(_milliseconds, bits=_ULID_RANDOM_BITS)
    uuids = Rising(_milliseconds, bits=_UUID_RANDOM_BITS)
    return Chance(
        now=partial(datetime.now, UTC),
        entry_id=lambda: ulid(entries.next()),
        uuid=lambda: uuid7(uuids.next()),
        uniform=random.SystemRandom().uniform,
    )


class Rising:
    """Numbers made of a time and `bits` random bits, each larger than the one before. Safe from any thread.

    Within one millisecond, or when the clock stands behind the last number, the last number is raised by a
    random amount; an overflow of the random part carries into the time, which only moves it ahead.
    """

    def __init__(self, milliseconds: Callable[[], int], *, bits: int) -> None:
        self._milliseconds = milliseconds
        self._bits = bits
        self._bytes = (bits + 7) // 8
        self._spare = self._bytes * 8 - bits
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            at = self._milliseconds()
            if at > self._last >> self._bits:
                random_part = int.from_bytes(os.urandom(self._bytes), "big") >> self._spare
                self._last = at << self._bits | random_part
            else:
                self._last += 1 + int.from_bytes(os.urandom(4), "big")
            return self._last


def ulid(number: int) -> str:
    """48 bits of time and 80 of chance, in Crockford's base 32."""
    pairs = _PAIRS
    # In three parts, which the machine counts with as with any number; the whole is too long for that.
    high, middle, low = number >> 80, number >> 40 & _PART, number & _PART
    return (
        f"{pairs[high >> 40 & 1023]}{pairs[high >> 30 & 1023]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[middle >> 30]}{pairs[middle >> 20 & 1023]}{pairs[middle >> 10 & 1023]}{pairs[middle & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def uuid7(number: int) -> str:
    """48 bits of time and 74 of chance, with version and variant between them (RFC 9562)."""
    at, high, low = number >> 74, number >> 62 & 0xFFF, number & (1 << 62) - 1
    digits = f"{at << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
