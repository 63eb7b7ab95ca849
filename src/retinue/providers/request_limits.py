"""Limits on the requests to one server: how many at the same time, and how many within a minute."""

import asyncio
import math
from collections import deque
from contextlib import suppress

from msgspec import Struct

from retinue.providers.interface import ServerSettings


class RequestLimits(Struct, frozen=True, kw_only=True):
    """The limits that the user set for a provider; None: no limit."""

    max_concurrent: int | None = None
    requests_per_minute: float | None = None


def request_limits(server: ServerSettings) -> RequestLimits | None:
    """Return the limits of a provider, or None if it has none."""
    if server.max_concurrent is None and server.requests_per_minute is None:
        return None
    return RequestLimits(max_concurrent=server.max_concurrent, requests_per_minute=server.requests_per_minute)


class RequestLimiter:
    """Lets requests to one server begin within its limits, in the order in which they came."""

    def __init__(self, provider: str, limits: RequestLimits, *, minute_s: float = 60.0) -> None:
        self._provider = provider
        self._max_concurrent = math.inf if limits.max_concurrent is None else limits.max_concurrent
        per_minute = limits.requests_per_minute
        self._max_starts = math.inf if per_minute is None else max(1, math.floor(per_minute))
        self._window_s = 0.0 if per_minute is None else minute_s * self._max_starts / per_minute
        """Time in which `max_starts` requests may begin: a minute, longer for less than one request a minute."""
        self._running = 0
        self._starts: deque[float] = deque()
        """Event-loop times of the requests that began within the window; empty without such a limit."""
        self._queue: deque[asyncio.Future[RequestSlot]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def try_enter(self) -> "RequestSlot | None":
        """Return a slot for one request, or None if the caller has to join the queue first."""
        return None if self._queue or not self._has_room() else self._enter()

    def join_queue(self) -> "asyncio.Future[RequestSlot]":
        """Return a future of a slot. The caller awaits it, or leaves the queue."""
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._admit()
        return place

    def leave_queue(self, place: "asyncio.Future[RequestSlot]") -> None:
        """Give up a place in the queue, also if its slot has just been assigned."""
        if place.done() and not place.cancelled():
            place.result().leave(was_sent=False)
            return
        place.cancel()
        with suppress(ValueError):  # it was cancelled when its turn came
            self._queue.remove(place)
        self._admit()

    def wait_reason(self) -> str:
        """Return which limit is reached, for people."""
        if self._running >= self._max_concurrent:
            return f"waiting for another request to {self._provider} to end (max_concurrent = {self._max_concurrent})"
        return f"waiting for the next request that {self._provider} may get (requests_per_minute)"

    def leave(self, slot: "RequestSlot", *, was_sent: bool) -> None:
        self._running -= 1
        if not was_sent and slot.started_at in self._starts:
            self._starts.remove(slot.started_at)
        if self._queue:
            self._admit()

    def _enter(self) -> "RequestSlot":
        now = asyncio.get_running_loop().time()
        self._running += 1
        if self._window_s:
            self._starts.append(now)
        return RequestSlot(self, now)

    def _has_room(self) -> bool:
        if self._starts:
            window_start = asyncio.get_running_loop().time() - self._window_s
            while self._starts and self._starts[0] <= window_start:
                self._starts.popleft()
        return self._running < self._max_concurrent and len(self._starts) < self._max_starts

    def _admit(self) -> None:
        """Let the first ones of the queue in, as many as there is room for."""
        while self._queue and self._has_room():
            place = self._queue.popleft()
            if not place.done():
                place.set_result(self._enter())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue and len(self._starts) >= self._max_starts:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._starts[0] + self._window_s, self._admit)


class RequestSlot:
    """The permission for one request, from its beginning to its end."""

    __slots__ = ("_limiter", "started_at")

    def __init__(self, limiter: RequestLimiter, started_at: float) -> None:
        self._limiter = limiter
        self.started_at = started_at

    def leave(self, *, was_sent: bool = True) -> None:
        """End the request in any way; one that was never sent does not count."""
        self._limiter.leave(self, was_sent=was_sent)
