"""The system clock, time-ordered ids and system randomness."""

import os
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from retinue.domain.clock import Clock

_CROCKFORD_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BASE32_PAIRS = [first + second for first in _CROCKFORD_BASE32 for second in _CROCKFORD_BASE32]
"""All pairs of digits: ids are formatted two of the 26 characters at a time."""
_PART_MASK = (1 << 40) - 1
_ULID_RANDOM_BITS = 80
_UUID_RANDOM_BITS = 74


def system_clock() -> Clock:
    """Return the system clock.

    Ids of one process always increase, also within a millisecond and when the clock steps back.
    """
    ulid_numbers = IncreasingNumbers(_current_ms, bits=_ULID_RANDOM_BITS)
    uuid_numbers = IncreasingNumbers(_current_ms, bits=_UUID_RANDOM_BITS)
    return Clock(
        now=partial(datetime.now, UTC),
        new_entry_id=lambda: format_ulid(ulid_numbers.next()),
        new_uuid=lambda: format_uuid7(uuid_numbers.next()),
        uniform=random.SystemRandom().uniform,
    )


class IncreasingNumbers:
    """Numbers made of a time and `bits` random bits, each larger than the previous one. Thread-safe.

    Within one millisecond, or when the clock is behind the last number, the last number is incremented by a
    random amount; an overflow of the random part carries into the time, which only moves it ahead.
    """

    def __init__(self, current_ms: Callable[[], int], *, bits: int) -> None:
        self._current_ms = current_ms
        self._bits = bits
        self._bytes = (bits + 7) // 8
        self._spare_bits = self._bytes * 8 - bits
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            at = self._current_ms()
            if at > self._last >> self._bits:
                random_part = int.from_bytes(os.urandom(self._bytes), "big") >> self._spare_bits
                self._last = at << self._bits | random_part
            else:
                self._last += 1 + int.from_bytes(os.urandom(4), "big")
            return self._last


def format_ulid(number: int) -> str:
    """Format 48 bits of time and 80 random bits in Crockford's base 32."""
    pairs = _BASE32_PAIRS
    # In three parts that fit into machine words, which is faster than arithmetic on one 128-bit integer.
    high, middle, low = number >> 80, number >> 40 & _PART_MASK, number & _PART_MASK
    return (
        f"{pairs[high >> 40 & 1023]}{pairs[high >> 30 & 1023]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[middle >> 30]}{pairs[middle >> 20 & 1023]}{pairs[middle >> 10 & 1023]}{pairs[middle & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def format_uuid7(number: int) -> str:
    """Format 48 bits of time and 74 random bits, with version and variant between them (RFC 9562)."""
    timestamp_ms, high, low = number >> 74, number >> 62 & 0xFFF, number & (1 << 62) - 1
    digits = f"{timestamp_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _current_ms() -> int:
    return time.time_ns() // 1_000_000
