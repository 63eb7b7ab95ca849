"""A live footer: lines below the terminal output that are redrawn in place."""

import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from msgspec import Struct

StyledText = tuple[str, str]
"""A piece of text and its colour."""

FooterLine = tuple[StyledText, ...]
"""A line of the footer, cut by the caller to the width of the terminal."""

TAB_WIDTH = 8
VARIABLE_WIDTH_CATEGORIES = frozenset({"Mn", "Me", "Mc", "Cf", "Sk"})
"""Unicode categories whose display width differs between terminals."""


class TerminalSize(Struct, frozen=True, kw_only=True):
    """The size of the terminal."""

    width: int
    height: int


def terminal_size(stream: TextIO) -> TerminalSize:
    """Return the current size of the terminal, or 80 x 24 if it is unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((80, 24))
    return TerminalSize(width=size.columns or 80, height=size.lines or 24)


def supports_cursor_movement(stream: TextIO) -> bool:
    """Return whether a stream is a UTF-8 terminal that supports cursor movement."""
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and utf8 and os.environ.get("TERM", "dumb") != "dumb"


class Footer(Protocol):
    """Lines below the output of a terminal, and the way to print above them."""

    @property
    def stream(self) -> TextIO: ...

    current_size: Callable[[], TerminalSize]
    is_paused: Callable[[], bool]

    def write_above(self, text: str) -> None: ...

    def draw(self, lines: Sequence[FooterLine]) -> None: ...


class LiveFooter:
    """Lines kept at the end of the terminal output.

    Text written meanwhile waits for the next frame and is printed above the footer in the same write, so that
    a frame is a single write, however much has changed.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        current_size: Callable[[], TerminalSize] | None = None,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stream = stream
        self.current_size = current_size or (lambda: terminal_size(stream))
        self.is_paused = is_paused
        """True while the user is being asked: nothing is drawn where they type."""
        self.shown_lines: tuple[FooterLine, ...] = ()
        """Lines that are on the screen now."""
        self.drawn_width = 0
        self.pending_text: list[str] = []
        self.cursor = CursorPosition()

    def write_above(self, text: str) -> None:
        """Print text above the footer: immediately while no footer is shown, else with the next frame."""
        self.pending_text.append(text)
        if not self.shown_lines or self.is_paused():
            self.draw(())

    def draw(self, lines: Sequence[FooterLine]) -> None:
        """Draw one frame: pending text, then these lines below it. Writes nothing if nothing changed."""
        new_lines = () if self.is_paused() else tuple(lines)
        text = "".join(self.pending_text)
        if not text and new_lines == self.shown_lines:
            return
        self.pending_text.clear()
        size = self.current_size()
        new_lines = new_lines if len(new_lines) < size.height else ()
        frame = self._cursor_return_sequence(size, erase=bool(text) or not new_lines)
        if self.cursor.is_wrapped and text.startswith("\n"):
            text = text[1:]  # the footer has already ended the full row
            self.cursor = CursorPosition()
        self.cursor = self.cursor.advance(text, size.width)
        if not self.cursor.is_certain:
            new_lines = ()
        frame += text
        if new_lines:
            frame += "\n" if self.cursor.needs_new_row else ""
            frame += "\n".join(f"{styled_line(line)}\x1b[K" for line in new_lines) + "\x1b[J"
            self.cursor = self.cursor.wrap_full_row()
        self.shown_lines, self.drawn_width = new_lines, size.width
        if frame:
            self.stream.write(frame)
            self.stream.flush()

    def _cursor_return_sequence(self, size: TerminalSize, *, erase: bool) -> str:
        """Return the escape sequence that moves the cursor from the footer to the end of the text."""
        if not self.shown_lines:
            return ""
        rows_up = (
            sum(max(1, -(-display_width(line_text(line)) // size.width)) for line in self.shown_lines) - 1
        )
        if size.width != self.drawn_width:
            self.cursor = CursorPosition()  # the terminal rewrapped the text: continue on a new line
        rows_up += self.cursor.needs_new_row
        column_sequence = f"\x1b[{self.cursor.column + 1}G"
        return (f"\x1b[{rows_up}A" if rows_up else "") + column_sequence + ("\x1b[J" if erase else "")


class CursorPosition(Struct, frozen=True, kw_only=True):
    """The cursor position at the end of the printed text."""

    column: int = 0
    row_full: bool = False
    """The last row is filled to the edge: the next character goes to a new row."""
    is_wrapped: bool = False
    """The row above was filled to the edge, and the footer has moved the cursor to a new row."""
    is_certain: bool = True
    """False if the line has characters of unknown width, so its end cannot be located."""

    @property
    def needs_new_row(self) -> bool:
        """True if the footer must start on a new row."""
        return self.column > 0

    def advance(self, text: str, width: int) -> "CursorPosition":
        """Return the position after printing more text. Only its last line matters."""
        if not text:
            return self
        before, _, last = text.rpartition("\n")
        position = CursorPosition() if before or text[0] == "\n" else self
        if last.isascii() and last.isprintable():
            return position.advance_columns(len(last), width)
        for char in last:
            position = position.advance_character(char, width)
        return position

    def wrap_full_row(self) -> "CursorPosition":
        """Return the position once the footer is drawn below.

        Text after a full row continues where the footer begins, as it would have without it.
        """
        return CursorPosition(is_wrapped=True) if self.row_full else self

    def advance_columns(self, count: int, width: int) -> "CursorPosition":
        if not count:
            return self
        end = (0 if self.row_full else self.column) + count
        column = (end - 1) % width + 1
        return CursorPosition(column=column, row_full=column == width, is_certain=self.is_certain)

    def advance_character(self, char: str, width: int) -> "CursorPosition":
        start = 0 if self.row_full else self.column
        if char == "\t":
            stop = (self.column // TAB_WIDTH + 1) * TAB_WIDTH  # terminals differ at the right edge
            return CursorPosition(column=min(stop, width - 1), is_certain=self.is_certain and stop < width)
        char_width = display_width(char)
        end = start + char_width if start + char_width <= width else char_width
        return CursorPosition(
            column=end, row_full=end == width, is_certain=self.is_certain and _has_fixed_width(char)
        )


def display_width(text: str) -> int:
    """Return the number of terminal cells that a text occupies."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(char) or char in "\u200d\ufe0f"
        else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def truncate_to_width(text: str, width: int) -> str:
    """Cut a text to a display width."""
    while display_width(text) > width:
        if width < 1:
            return ""
        text = text[: len(text) - max(2, (display_width(text) - width) // 2 + 1)] + "…"
    return text


def line_text(line: FooterLine) -> str:
    return "".join(text for text, _ in line)


def styled_line(line: FooterLine) -> str:
    if os.environ.get("NO_COLOR"):
        return line_text(line)
    return "".join(f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text for text, colour in line)


def _has_fixed_width(char: str) -> bool:
    """Return whether all terminals give a character the same width; emoji may combine."""
    return unicodedata.category(char) not in VARIABLE_WIDTH_CATEGORIES and ord(char) < 0x1F000  # noqa: PLR2004  (start of the emoji blocks)
