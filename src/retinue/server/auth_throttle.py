"""The throttle: whoever shows wrong keys again and again is told to wait, this machine's own programs too."""

import math
import time

MOST_WRONG = 10
WHILE_SECONDS = 60.0
MOST_PEERS = 1_024
"""How many are remembered; the one that was wrong longest ago is forgotten for another."""


class Throttle:
    """Counts wrong keys by peer. A right key is never refused: nobody can lock another out."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}

    def wrong(self, peer: str) -> int:
        """One more wrong key: how many seconds this peer has to wait; 0: it may try again."""
        now = time.monotonic()
        count, until = self._wrong.pop(peer, (0, 0.0))
        if until <= now:
            count, until = 0, now + WHILE_SECONDS
        self._wrong[peer] = (count + 1, until)
        if len(self._wrong) > MOST_PEERS:
            del self._wrong[next(iter(self._wrong))]
        return math.ceil(until - now) if count >= MOST_WRONG else 0
