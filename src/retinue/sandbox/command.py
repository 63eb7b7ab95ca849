"""A cell: one command made ready to run under one scope, whatever the level that holds it."""

import signal
from collections.abc import Callable, Mapping

from retinue.domain.value import value

Aftermath = Callable[[], tuple[str, ...]]
During = Callable[[Callable[[], None]], Aftermath]
"""Begins to look after a command while it runs, and gives what stops that and says what had to be put right."""


def nothing_left() -> tuple[str, ...]:
    return ()


@value
class Cell:
    """What is started, with what, and what must be looked after when nothing of it lives any more."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Complete: nothing of our own environment is added."""
    cwd: str = "/"
    fds: tuple[int, ...] = ()
    """Open here for the command's sake; whoever runs it closes them after the start."""
    after: Aftermath = nothing_left
    """Called once, when every process of the command is gone; says what it had to put right."""
    during: During | None = None
    """Called when the command has lasted a moment, with what ends it."""
    head: int = 1
    """How many words of argv name the program that holds the command: behind them it is told, with
    `--json-status-fd N`, where to say that the command was started and how it ended."""
    end: signal.Signals = signal.SIGKILL
    """The signal to that program that ends the whole of it."""
    grace: float = 0.0
    """Seconds between the request to end, which goes to every process group inside, and the end."""
    gate: int = -1
    """Open here too: a byte written to it lets the command begin, where it waits for one."""
    apart: bool = False
    """Its two streams are two pipes."""
