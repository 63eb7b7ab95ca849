"""Timeouts within a turn: stop an agent that only talks, or one that a person interrupts."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from retinue.domain.model_turn import Reply, ReplyDelta
from retinue.errors import ModelFailed
from retinue.runtime.alarm import Timeout

STUCK_ERROR = "Agent stuck: no tool calls for {n} seconds (timeout: {most}s)"


class TurnInterrupted(Exception):
    """Raised when a person interrupts and the reply in progress is dropped."""


class TurnTimer:
    """Times a reply from its first piece to its end.

    It does not run while the run waits for the model, tools, children or people. It needs no task, and costs
    nothing while no text arrives.
    """

    def __init__(self) -> None:
        self.idle_timeout_s: float | None = None
        """None: no limit on talking."""
        self._timeout = Timeout()
        self._talking_since: float | None = None
        self.interrupted = False

    async def run_turn(self, turn: Awaitable[Reply]) -> Reply:
        """Await one turn.

        Raises:
            ModelFailed: the model only talked until the idle timeout.
            TurnInterrupted: a person interrupted.
        """
        timeout = self._timeout = Timeout()
        self._talking_since = None
        try:
            with timeout:
                return await turn
        except TimeoutError as error:
            if not timeout.expired:
                raise
            if self.interrupted:
                raise TurnInterrupted from None
            raise ModelFailed(self._stuck_error(), reason="idle") from error

    def on_delta(self, delta: ReplyDelta) -> None:
        """Start the timer at the first piece of text; stop it while the reply is retried or a CLI agent acts."""
        if self.idle_timeout_s is None or self.interrupted:
            return
        if delta.is_discarded or delta.wait_reason or delta.provider_tool_call is not None:
            self._talking_since = None
            self._timeout.reschedule(None)
        elif self._talking_since is None and (delta.text or delta.thinking or delta.tool_arguments):
            self._talking_since = asyncio.get_running_loop().time()
            self._timeout.reschedule(self._talking_since + self.idle_timeout_s)

    def interrupt_turn(self) -> None:
        """Stop the reply in progress; running tools are allowed to finish."""
        if not self.interrupted:
            self.interrupted = True
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _stuck_error(self) -> str:
        now = asyncio.get_running_loop().time()
        return STUCK_ERROR.format(
            n=round(now - (self._talking_since or now)), most=f"{self.idle_timeout_s:g}"
        )


class InterruptRegistry:
    """Interrupt callbacks of the runs that this process works."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callable[[], None]] = {}

    @contextmanager
    def register(self, run_id: str, on_interrupt: Callable[[], None]) -> Generator[None]:
        self._callbacks[run_id] = on_interrupt
        try:
            yield
        finally:
            self._callbacks.pop(run_id, None)

    def interrupt_run(self, run_id: str) -> None:
        if (on_interrupt := self._callbacks.get(run_id)) is not None:
            on_interrupt()
