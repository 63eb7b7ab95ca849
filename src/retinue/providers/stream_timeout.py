"""The watch over one attempt at a turn: it ends what is silent, what says nothing, and what never ends."""

import asyncio
from collections.abc import Awaitable, Callable

from retinue.domain.model_turn import Delta, Reply
from retinue.domain.run import Reason
from retinue.domain.value import value
from retinue.providers.errors import Trouble

MOVED = Delta()
"""Itself, not its equals, says that bytes went or came which are no answer yet: the line lives, and no more is known."""


@value
class Patience:
    """Seconds without a byte, without a word, and in all."""

    idle: float
    progress: float
    total: float
    again: bool = True
    """Whether one that took too long is worth asking a second time."""


class Watch:
    """Listens in front of the real listener. Hearing only notes the time; one timer looks at the notes when
    the nearest limit could have passed, so a piece costs no timer of its own."""

    __slots__ = (
        "_begin",
        "_byte",
        "_clock",
        "_handle",
        "_hear",
        "_opened",
        "_patience",
        "_task",
        "_texts",
        "_trouble",
        "_word",
        "told",
    )

    def __init__(
        self, patience: Patience, heard: Callable[[Delta], None], opened: Callable[[], None]
    ) -> None:
        self._patience = patience
        self._hear = heard
        self._opened: Callable[[], None] | None = opened
        """Called when the first byte of an answer is there."""
        self._clock = asyncio.get_running_loop().time
        self._begin = self._byte = self._word = self._clock()
        self._task: asyncio.Task[object] | None = None
        self._handle: asyncio.Handle | None = None
        self._trouble: Trouble | None = None
        self._texts: list[str] = []
        self.told = False
        """Whether anything of this attempt was passed on."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    async def over(self, turn: Awaitable[Reply]) -> Reply:
        """A Trouble when a limit has passed. Whoever else wants the task to stop is heard as ever."""
        task = self._task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        stopped = False
        try:
            self._look()
            return await turn
        except asyncio.CancelledError:
            stopped = True
            raise
        finally:
            self._task = None
            if self._handle is not None:
                self._handle.cancel()
            if self._trouble is not None and task is not None and task.uncancel() <= before and stopped:
                raise self._trouble from None

    def heard(self, delta: Delta) -> None:
        self._byte = now = self._clock()
        if delta is MOVED:
            return
        if self._opened is not None:
            self._opened()
            self._opened = None
        if delta.waiting:
            self._hear(delta)
            return
        text = delta.text
        words = text or delta.thinking or delta.calling
        if delta.act is not None:
            self._word = now
            self.told = True
            self._hear(delta)
            return
        if not words:
            return
        if not words.isspace():
            self._word = now
        if text:
            self._texts.append(text)
        elif not delta.thinking:
            return
        self.told = True
        self._hear(delta)

    def _look(self) -> None:
        """Ends the attempt when a limit has passed, else comes back when the nearest one could have."""
        now = self._clock()
        patience = self._patience
        when = min(self._begin + patience.total, self._byte + patience.idle, self._word + patience.progress)
        if when > now:
            self._handle = asyncio.get_running_loop().call_at(when, self._look)
        else:
            # Not at once: whoever is stopped while it runs, and waits for nothing, would be struck later.
            self._handle = asyncio.get_running_loop().call_soon(self._strike)

    def _strike(self) -> None:
        if self._task is not None:
            self._trouble = self._passed()
            self._task.cancel()

    def _passed(self) -> Trouble:
        """Which limit it was."""
        patience = self._patience
        limits = (
            (self._begin + patience.total, f"the model took more than {patience.total:g} s", False),
            (self._byte + patience.idle, f"the model was silent for {patience.idle:g} s", True),
            (self._word + patience.progress, f"the model said nothing for {patience.progress:g} s", True),
        )
        _, why, retry = min(limits)
        return Trouble(why, reason=Reason.INCOMPLETE, retry=retry and patience.again)
