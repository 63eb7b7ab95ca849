"""Where a person types: one line at a time, with history and completion on a terminal."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.surfaces.cli.terminal import Terminal

SIGN = "> "


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
            return sys.stdin.readline().rstrip("\n") if _more() else None
        self._prepare()
        for left in (1, 0):
            try:
                return _typed()
            except EOFError:
                break
            except KeyboardInterrupt:
                self.terminal.note("\n(Ctrl-C again leaves, and so does Ctrl-D)" if left else "")
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


def _typed() -> str:
    """Ctrl-C raises here, whatever the event loop has made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(SIGN)
    finally:
        signal.signal(signal.SIGINT, before)


def _more() -> bool:
    """Whether standard input holds another line; a pipe is waited for."""
    return bool(sys.stdin.buffer.peek(1))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]  (standard input is buffered)
