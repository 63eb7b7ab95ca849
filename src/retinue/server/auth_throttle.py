"""Throttling of failed authentication, per client address."""

import math
import time

MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MAX_CLIENTS = 1_024
"""Number of addresses that are remembered; the one that failed longest ago is dropped."""


class LoginThrottle:
    """Count failed keys per address.

    A valid key is never refused, so that no client can lock out another.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def record_failure(self, client: str) -> int:
        """Record a failure, and return the seconds this address must wait; 0 if it may retry now."""
        now = time.monotonic()
        count, window_end = self._failures.pop(client, (0, 0.0))
        if window_end <= now:
            count, window_end = 0, now + WINDOW_SECONDS
        self._failures[client] = (count + 1, window_end)
        if len(self._failures) > MAX_CLIENTS:
            del self._failures[next(iter(self._failures))]
        return math.ceil(window_end - now) if count >= MAX_FAILURES else 0
