"""Where a person types: one line at a time, with history and completion on a terminal."""

import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from retinue.cli.ui.terminal import Terminal

SIGN = "> "
ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
HEED_SECONDS = 0.25
LEAVES = 2
"""So many times Ctrl-C, and the person is gone."""


@dataclass(slots=True, kw_only=True)
class Prompt:
    """Reads lines until Ctrl-D, or Ctrl-C twice in a row. Nothing runs meanwhile, so it may block."""

    terminal: Terminal
    words: Sequence[str] = ()
    """What the tab key completes."""
    ready: bool = False

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty() and self.terminal.out.isatty() and not self.terminal.json

    def line(self) -> str | None:
        """The next line, or None when the person leaves."""
        if not self.interactive:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        self._prepare()
        with _heeding():
            return self._typed()

    def _typed(self) -> str | None:
        pressed = 0
        while pressed < LEAVES:
            try:
                if pressed:
                    self.terminal.note("\n(Ctrl-C again leaves, and so does Ctrl-D)")
                return input(SIGN)
            except EOFError:
                break
            except KeyboardInterrupt:
                pressed += 1
        self.terminal.line()
        return None

    def _prepare(self) -> None:
        if self.ready:
            return
        import readline  # noqa: PLC0415  (importing it touches the terminal: only where a person types)

        self.ready = True
        readline.set_completer(self._completion)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")

    def _completion(self, start: str, number: int) -> str | None:
        matches = [word for word in self.words if word.startswith(start)]
        return matches[number] if number < len(matches) else None


@contextmanager
def _heeding() -> Generator[None]:
    """Ctrl-C raises here, whatever the event loop has made of it; and whoever is ended while the line editor holds
    the terminal gives it back first. The editor hears of a signal only while it waits, so it is woken now and then."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: _woken}
    handlers |= dict.fromkeys(ENDINGS, _ended)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, HEED_SECONDS, HEED_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _woken(_number: int, _frame: object) -> None:
    return


def _ended(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
