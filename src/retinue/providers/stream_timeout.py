"""Timeouts for one attempt at a reply: no bytes, no output, or too long in total."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from retinue.domain.model_turn import ModelReply, ReplyDelta
from retinue.domain.run import Reason
from retinue.providers.errors import ProviderError

KEEPALIVE = ReplyDelta()
"""Passed when bytes that are not part of a reply were sent or received: the connection is alive.

Compared by identity, not by equality.
"""


class StreamTimeoutSettings(Struct, frozen=True, kw_only=True):
    """Time limits of one attempt, in seconds."""

    first_byte_s: float = 600.0
    """Until the first byte, which a model that reasons for a long time sends late."""
    idle_s: float = 120.0
    """Without a further byte."""
    no_output_s: float = 600.0
    """Without output; blanks and keep-alive comments are not output."""
    total_s: float = math.inf
    """From the beginning of the attempt to its end."""
    retry_after_timeout: bool = True
    """Whether an attempt that timed out may be retried."""


class StreamWatchdog:
    """Pass deltas on to the listener and cancel the attempt when a limit has passed.

    Receiving a delta only records the time. One timer checks the recorded times when the nearest limit could
    have passed, so a delta costs no timer of its own.
    """

    __slots__ = (
        "_clock",
        "_error",
        "_last_byte_at",
        "_last_output_at",
        "_on_delta",
        "_on_first_byte",
        "_started_at",
        "_task",
        "_texts",
        "_timeouts",
        "_timer",
        "has_output",
    )

    def __init__(
        self,
        timeouts: StreamTimeoutSettings,
        on_delta: Callable[[ReplyDelta], None],
        on_first_byte: Callable[[], None],
    ) -> None:
        self._timeouts = timeouts
        self._on_delta = on_delta
        self._on_first_byte: Callable[[], None] | None = on_first_byte
        """Called when the first byte of the reply arrives."""
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._last_byte_at = self._last_output_at = self._clock()
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.Handle | None = None
        self._error: ProviderError | None = None
        self._texts: list[str] = []
        self.has_output = False
        """Whether any output of this attempt was passed on."""

    @property
    def _idle_limit_s(self) -> float:
        return self._timeouts.first_byte_s if self._on_first_byte is not None else self._timeouts.idle_s

    @property
    def text(self) -> str:
        return "".join(self._texts)

    async def run(self, attempt: Awaitable[ModelReply]) -> ModelReply:
        """Await the attempt; raise ProviderError if a limit has passed. Other cancellations pass through."""
        task = self._task = asyncio.current_task()
        cancel_requests = 0 if task is None else task.cancelling()
        was_cancelled = False
        try:
            self._check_limits()
            return await attempt
        except asyncio.CancelledError:
            was_cancelled = True
            raise
        finally:
            self._task = None
            if self._timer is not None:
                self._timer.cancel()
            if (
                self._error is not None
                and task is not None
                and task.uncancel() <= cancel_requests
                and was_cancelled
            ):
                raise self._error from None

    def receive_delta(self, delta: ReplyDelta) -> None:
        self._last_byte_at = now = self._clock()
        if delta is KEEPALIVE:
            return
        if self._on_first_byte is not None:
            self._on_first_byte()
            self._on_first_byte = None
        if delta.wait_reason:
            self._on_delta(delta)
            return
        text = delta.text
        output = text or delta.thinking or delta.tool_arguments
        if delta.provider_tool_call is not None:
            self._last_output_at = now
            self.has_output = True
            self._on_delta(delta)
            return
        if not output:
            return
        if not output.isspace():
            self._last_output_at = now
        if text:
            self._texts.append(text)
        elif not delta.thinking:
            return
        self.has_output = True
        self._on_delta(delta)

    def _check_limits(self) -> None:
        """Cancel the attempt if a limit has passed, else check again when the nearest one could have."""
        now = self._clock()
        timeouts = self._timeouts
        next_check = min(
            self._started_at + timeouts.total_s,
            self._last_byte_at + self._idle_limit_s,
            self._last_output_at + timeouts.no_output_s,
        )
        if next_check > now:
            self._timer = asyncio.get_running_loop().call_at(next_check, self._check_limits)
        else:
            # Not at once: cancelling a task that is running, not waiting, would hit it at a later await.
            self._timer = asyncio.get_running_loop().call_soon(self._cancel_attempt)

    def _cancel_attempt(self) -> None:
        if self._task is not None:
            self._error = self._timeout_error()
            self._task.cancel()

    def _timeout_error(self) -> ProviderError:
        """Return the error for the limit that passed."""
        timeouts = self._timeouts
        limits = (
            (self._started_at + timeouts.total_s, f"the model took more than {timeouts.total_s:g} s"),
            (self._last_byte_at + self._idle_limit_s, f"the model sent no data for {self._idle_limit_s:g} s"),
            (
                self._last_output_at + timeouts.no_output_s,
                f"the model produced no output for {timeouts.no_output_s:g} s",
            ),
        )
        _, message = min(limits)
        return ProviderError(message, reason=Reason.INCOMPLETE, retry=timeouts.retry_after_timeout)
