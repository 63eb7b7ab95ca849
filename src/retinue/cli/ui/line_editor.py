"""A line editor with history and completion for interactive input."""

import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from retinue.cli.ui.terminal import Terminal

PROMPT = "> "
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SIGNAL_POLL_SECONDS = 0.25
INTERRUPTS_TO_QUIT = 2
"""Number of consecutive Ctrl-C presses that end the input."""


@dataclass(slots=True, kw_only=True)
class LineEditor:
    """Read lines until Ctrl-D, or Ctrl-C twice in a row. Blocks the event loop: no run is active meanwhile."""

    terminal: Terminal
    completions: Sequence[str] = ()
    """Words that the tab key completes."""
    is_readline_set_up: bool = False

    @property
    def is_interactive(self) -> bool:
        return sys.stdin.isatty() and self.terminal.out.isatty() and not self.terminal.json

    def read_line(self) -> str | None:
        """Return the next line, or None at the end of the input."""
        if not self.is_interactive:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        self._set_up_readline()
        with _install_signal_handlers():
            return self._read_interactive()

    def _read_interactive(self) -> str | None:
        interrupt_count = 0
        while interrupt_count < INTERRUPTS_TO_QUIT:
            try:
                if interrupt_count:
                    self.terminal.print_note("\n(press Ctrl-C again, or Ctrl-D, to exit)")
                return input(PROMPT)
            except EOFError:
                break
            except KeyboardInterrupt:
                interrupt_count += 1
        self.terminal.print_line()
        return None

    def _set_up_readline(self) -> None:
        if self.is_readline_set_up:
            return
        import readline  # noqa: PLC0415  (importing it changes the terminal, so only for interactive input)

        self.is_readline_set_up = True
        readline.set_completer(self._complete_word)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")

    def _complete_word(self, prefix: str, index: int) -> str | None:
        matches = [word for word in self.completions if word.startswith(prefix)]
        return matches[index] if index < len(matches) else None


@contextmanager
def _install_signal_handlers() -> Generator[None]:
    """Install signal handlers for the time a line is edited.

    Ctrl-C raises KeyboardInterrupt, whatever the event loop has installed, and a termination signal restores
    the terminal first. The line editor notices signals only while it waits for input, so a timer wakes it
    regularly.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: _on_alarm}
    handlers |= dict.fromkeys(TERMINATION_SIGNALS, _on_termination)
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, SIGNAL_POLL_SECONDS, SIGNAL_POLL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _on_alarm(_number: int, _frame: object) -> None:
    return


def _on_termination(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
