"""The rate-limit gate of a model: while closed, all runs wait and one at a time tries again."""

import asyncio


class RateLimitGate:
    """Open until the model reports a rate limit; then closed until the time it named.

    After that time a single attempt is let through, and its success opens the gate for all.
    """

    __slots__ = ("_probe", "_waiters", "closed_until", "consecutive_rate_limits", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self.closed_until = 0.0
        """Event-loop time before which no attempt is allowed."""
        self.consecutive_rate_limits = 0
        """Number of times in a row the gate was closed; concurrent attempts count once."""
        self._probe: RateLimitPermit | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def try_enter(self) -> "RateLimitPermit | None":
        """Return a permit, or None if the caller has to await `wait_for_change` first."""
        if not self.is_closed:
            return RateLimitPermit(self)
        if self._probe is not None or asyncio.get_running_loop().time() < self.closed_until:
            return None
        self._probe = RateLimitPermit(self)
        return self._probe

    async def wait_for_change(self) -> None:
        """Wait until entering is worth another try."""
        loop = asyncio.get_running_loop()
        seconds = self.closed_until - loop.time()
        if seconds > 0:
            await asyncio.sleep(seconds)
        elif self._probe is not None:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self, permit: "RateLimitPermit", seconds: float) -> None:
        """Close the gate after a rate limit.

        An attempt that began before the gate was last closed does not count as another rate limit.
        """
        closed_until = asyncio.get_running_loop().time() + seconds
        if permit.gate_version == self.consecutive_rate_limits:
            self.consecutive_rate_limits += 1
            self.closed_until = closed_until
        else:
            self.closed_until = max(self.closed_until, closed_until)
        self.is_closed = True

    def open(self, permit: "RateLimitPermit") -> None:
        if self.is_closed and permit.gate_version == self.consecutive_rate_limits:
            self.is_closed = False
            # A later rate limit of this same attempt must count again.
            self.consecutive_rate_limits = permit.gate_version = 0
            self._wake_waiters()

    def leave(self, permit: "RateLimitPermit") -> None:
        """End an attempt in any way, including cancellation, so that the next may try."""
        if permit is self._probe:
            self._probe = None
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)


class RateLimitPermit:
    """The permit of one attempt, with the gate's state at the time it was issued."""

    __slots__ = ("_gate", "gate_version")

    def __init__(self, gate: RateLimitGate) -> None:
        self._gate = gate
        self.gate_version = gate.consecutive_rate_limits

    def report_success(self) -> None:
        self._gate.open(self)

    def report_rate_limit(self, seconds: float) -> None:
        self._gate.close(self, seconds)

    def leave(self) -> None:
        self._gate.leave(self)
