"""A terminal for tests: a process on a pty, and an emulator that shows what its bytes draw."""

import os
import re
import select
import subprocess
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 15.0


SETTLE_S = 0.03
"""A write of the command is read in pieces, all of them within this time."""


@dataclass(slots=True, kw_only=True)
class TerminalEmulator:
    """What a terminal shows of the bytes it gets. It knows the sequences that Retinue writes; another one fails."""

    width: int = 80
    height: int = 24
    lines: list[list[str]] = field(default_factory=lambda: [[]])
    """All text shown so far, including scrollback; a wide character takes two cells."""
    row: int = 0
    column: int = 0
    wraps: bool = True
    """Whether text that reaches the edge continues on the next row."""

    SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([ABCDGKJmhl])")

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                found = self.SEQUENCE.match(text, at)
                assert found, f"the terminal would obey {text[at : at + 12]!r}"
                if found[2] in "ABCDGKJ":
                    self._apply_sequence(found[2], int(found[1] or 0))
                elif found[1] == "?7":
                    self.wraps = found[2] == "h"
                at = found.end()
                continue
            self._print_character(char)
            at += 1

    def visible_lines(self) -> list[str]:
        """The lines on the screen, without blanks at their ends and empty lines below the last."""
        lines = ["".join(line).rstrip() for line in self.lines[max(0, len(self.lines) - self.height) :]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _apply_sequence(self, what: str, number: int) -> None:
        if what == "A":
            self.row = max(len(self.lines) - self.height, 0, self.row - (number or 1))
            self.column = min(self.column, self.width - 1)
        elif what == "B":
            self.row = min(len(self.lines) - 1, self.row + (number or 1))
        elif what == "C":
            self.column = min(self.column, self.width - 1) + (number or 1)
        elif what == "D":
            self.column = max(0, min(self.column, self.width - 1) - (number or 1))
        elif what == "G":
            self.column = min(number or 1, self.width) - 1
        elif what in "KJ":
            assert number == 0, "only what follows is erased"
            del self.lines[self.row][self.column :]
            if what == "J":
                for line in self.lines[self.row + 1 :]:
                    line.clear()

    def _print_character(self, char: str) -> None:
        if char == "\n":
            self._line_feed()
        elif char == "\r":
            self.column = 0
        elif char == "\b":
            self.column = max(0, min(self.column, self.width - 1) - 1)
        elif char == "\t":
            self.column = min(self.width - 1, (self.column // 8 + 1) * 8)
        else:
            assert char.isprintable(), f"the terminal would obey {char!r}"
            self._put_character(char)

    def _put_character(self, char: str) -> None:
        wide = 1 + (unicodedata.east_asian_width(char) in "WF")
        if self.column + wide > self.width:
            if self.wraps:
                self._line_feed()
                self.column = 0
            else:
                self.column = self.width - wide
        line = self.lines[self.row]
        line.extend(" " * (self.column - len(line)))
        line[self.column : self.column + wide] = [char, *[""] * (wide - 1)]
        self.column += wide

    def _line_feed(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])


@dataclass(slots=True, kw_only=True)
class TerminalProcess:
    """A command on a terminal of its own, read and typed into by the test."""

    process: subprocess.Popen[bytes]
    fd: int
    output: bytes = b""
    emulator: TerminalEmulator = field(default_factory=TerminalEmulator)
    unrendered: bytes = b""
    """Bytes not yet passed to the emulator."""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def press(self, key: str) -> None:
        """Ctrl and a letter, as the terminal's own keys."""
        os.write(self.fd, bytes([ord(key.upper()) - 64]))

    def press_until(self, key: str, done: Callable[[], bool]) -> None:
        """Presses again now and then: the line editor may miss a key that comes while it prepares."""
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            assert time.monotonic() < deadline, f"Ctrl-{key} did nothing; seen: {self.output!r}"
            self.press(key)
            quiet = time.monotonic() + 1
            while not done() and time.monotonic() < quiet:
                self._read(0.05)

    def wait_for_text(self, text: str) -> str:
        """Everything seen so far, once it holds the text; what was seen before counts only once."""
        wanted = text.encode()
        deadline = time.monotonic() + TIMEOUT_S
        while wanted not in self.output:
            assert time.monotonic() < deadline, f"{text!r} never came; seen: {self.output!r}"
            assert self._read(), f"the command left before {text!r}; seen: {self.output!r}"
        at = self.output.index(wanted) + len(wanted)
        before, self.output = self.output[:at], self.output[at:]
        return before.decode("utf-8", "replace")

    def wait_for_screen(self, when: Callable[[list[str]], Any]) -> list[str]:
        """The lines on the screen, as soon as they are so and no more of them is on the way."""
        deadline = time.monotonic() + TIMEOUT_S
        while not when(lines := self.screen_lines()) or self._read(SETTLE_S):
            assert time.monotonic() < deadline, f"it never showed; on the screen: {lines}"
            assert when(lines) or self._read(), f"the command left before; on the screen: {lines}"
        return lines

    def close(self) -> None:
        """Close the terminal, which sends the process a hangup."""
        os.close(self.fd)
        self.fd = -1

    def wait_for_exit(self) -> tuple[int, str]:
        """The exit code and the rest of the screen, once the command has left."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT_S), self.output.decode("utf-8", "replace")

    def _read(self, timeout_s: float = TIMEOUT_S) -> bool:
        if not select.select([self.fd], [], [], timeout_s)[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return False
        self.output += piece
        self.unrendered += piece
        return bool(piece)

    def screen_lines(self) -> list[str]:
        """The lines on the screen now. What came of a character or a sequence that is not whole waits for the rest."""
        piece, self.unrendered = self.unrendered, b""
        begun = re.search(rb"\x1b(\[\??[\d;]*)?$|[\xc0-\xff][\x80-\xbf]{0,2}$", piece)
        if begun and not _is_complete(begun[0]):
            piece, self.unrendered = piece[: begun.start()], begun[0]
        self.emulator.feed(piece.decode("utf-8", "replace"))
        return self.emulator.visible_lines()


def _is_complete(piece: bytes) -> bool:
    try:
        return not piece.startswith(b"\x1b") and bool(piece.decode())
    except UnicodeDecodeError:
        return False
