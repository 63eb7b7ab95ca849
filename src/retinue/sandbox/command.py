"""A sandboxed command: how to start, monitor and clean it up, at any sandbox level."""

import signal
from collections.abc import Callable, Mapping

from msgspec import Struct

CleanUp = Callable[[], tuple[str, ...]]
StartMonitor = Callable[[Callable[[], None]], CleanUp]
"""Start to monitor a command; return a function that stops it and reports what was removed."""


def no_clean_up() -> tuple[str, ...]:
    return ()


class SandboxedCommand(Struct, frozen=True, kw_only=True):
    """A command ready to start, with its cleanup."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Complete: nothing of our own environment is added."""
    cwd: str = "/"
    fds: tuple[int, ...] = ()
    """Descriptors opened for the command; closed by the caller after the start."""
    clean_up: CleanUp = no_clean_up
    """Called once, after every process of the command has ended; returns notes on the cleanup."""
    start_monitor: StartMonitor | None = None
    """Called when the command has run for a moment, with a function that ends it."""
    launcher_argc: int = 1
    """Number of argv items that name the launcher.

    Behind them `--json-status-fd N` is inserted: where the launcher reports the command's start and end.
    """
    end_signal: signal.Signals = signal.SIGKILL
    """Signal to the launcher that ends the whole command."""
    sigterm_grace_s: float = 0.0
    """Seconds between SIGTERM, sent to every process group inside, and the end."""
    start_gate_fd: int = -1
    """Descriptor, open here too: writing one byte lets a waiting command begin."""
    ready_fd: int = -1
    """Descriptor, open here too: the command writes to it when its sandbox is complete, and waits."""
    go_fd: int = -1
    """Descriptor, open here too: writing a line lets the command begin; closing it ends the waiting command."""
    separate_stderr: bool = False
    """Use separate pipes for stdout and stderr."""
