"""Lines that stay below whatever is written on a terminal, change in place, and go without a trace."""

import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import TextIO

from retinue.domain.value import value

Span = tuple[str, str]
"""A piece of a line and its colour."""

Line = tuple[Span, ...]
"""One line of the footer. It is never longer than the terminal is wide: whoever makes it has cut it."""

TAB = 8
WAVERING = frozenset({"Mn", "Me", "Mc", "Cf", "Sk"})
"""Kinds of characters that terminals give different widths."""


@value
class Room:
    """How large the terminal is."""

    width: int
    height: int


def room_of(stream: TextIO) -> Room:
    """As the terminal says now; a terminal that says nothing is taken for an ordinary one."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        found = os.terminal_size((80, 24))
    return Room(width=found.columns or 80, height=found.lines or 24)


def can_move(stream: TextIO) -> bool:
    """Whether a stream is a terminal that obeys, and shows the characters that a footer is drawn with."""
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and utf8 and os.environ.get("TERM", "dumb") != "dumb"


class Footer:
    """Owns the end of a terminal while it is up. Words that come meanwhile wait for the next frame and are written
    with it, above the footer, so that a frame is one write, however much has changed."""

    def __init__(
        self,
        stream: TextIO,
        *,
        room: Callable[[], Room] | None = None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stream = stream
        self.room = room or (lambda: room_of(stream))
        self.paused = paused
        """Whether a person is being asked: then nothing is drawn where they type."""
        self.lines: tuple[Line, ...] = ()
        """What is on the screen now."""
        self.width = 0
        self.waiting: list[str] = []
        self.place = Place()

    def above(self, text: str) -> None:
        """Writes words where they belong: at once while no footer is up, else with the next frame."""
        self.waiting.append(text)
        if not self.lines or self.paused():
            self.show(())

    def show(self, lines: Sequence[Line]) -> None:
        """One frame: the words that wait, and these lines below them. When nothing changed nothing is written."""
        wanted = () if self.paused() else tuple(lines)
        text = "".join(self.waiting)
        if not text and wanted == self.lines:
            return
        self.waiting.clear()
        room = self.room()
        wanted = wanted if len(wanted) < room.height else ()
        frame = self._home(room, erase=bool(text) or not wanted)
        self.place = self.place.after(text, room.width)
        if not self.place.sure:
            wanted = ()
        frame += text
        if wanted:
            frame += "\n" if self.place.below else ""
            frame += "\n".join(f"{painted(line)}\x1b[K" for line in wanted) + "\x1b[J"
            self.place = self.place.left()
        self.lines, self.width = wanted, room.width
        if frame:
            self.stream.write(frame)
            self.stream.flush()

    def _home(self, room: Room, *, erase: bool) -> str:
        """Back from the footer's last row to where the words stopped."""
        if not self.lines:
            return ""
        up = sum(max(1, -(-columns(plain(line)) // room.width)) for line in self.lines) - 1
        if room.width != self.width:
            self.place = Place()  # the words were wrapped anew: they go on in a line of their own
        up += self.place.below
        begin = f"\x1b[{self.place.column + 1}G"
        return (f"\x1b[{up}A" if up else "") + begin + ("\x1b[J" if erase else "")


@value
class Place:
    """Where words stopped on the terminal."""

    column: int = 0
    full: bool = False
    """The last row is full to its edge: the next character stands at the beginning of another."""
    sure: bool = True
    """False: the line holds characters whose width is not the same everywhere, so nobody can return to its end."""

    @property
    def below(self) -> bool:
        """Whether the footer must begin on a row of its own."""
        return self.column > 0

    def after(self, text: str, width: int) -> "Place":
        """The place after more words. Only their last line counts."""
        if not text:
            return self
        begun, _, last = text.rpartition("\n")
        place = Place() if begun or text[0] == "\n" else self
        if last.isascii() and last.isprintable():
            return place.along(len(last), width)
        for char in last:
            place = place.past(char, width)
        return place

    def left(self) -> "Place":
        """Once the footer stands below: words after a full row go on where it begins, as they would have anyway."""
        return Place() if self.full else self

    def along(self, count: int, width: int) -> "Place":
        if not count:
            return self
        end = (0 if self.full else self.column) + count
        column = (end - 1) % width + 1
        return Place(column=column, full=column == width, sure=self.sure)

    def past(self, char: str, width: int) -> "Place":
        start = 0 if self.full else self.column
        if char == "\t":
            stop = (self.column // TAB + 1) * TAB  # at the edge terminals differ
            return Place(column=min(stop, width - 1), sure=self.sure and stop < width)
        wide = columns(char)
        end = start + wide if start + wide <= width else wide
        return Place(column=end, full=end == width, sure=self.sure and _steady(char))


def columns(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(char) or char in "\u200d\ufe0f"
        else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def fitted(text: str, width: int) -> str:
    """As much of a text as a row of this width holds."""
    while columns(text) > width:
        if width < 1:
            return ""
        text = text[: len(text) - max(2, (columns(text) - width) // 2 + 1)] + "…"
    return text


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def painted(line: Line) -> str:
    if os.environ.get("NO_COLOR"):
        return plain(line)
    return "".join(f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text for text, colour in line)


def _steady(char: str) -> bool:
    """Whether every terminal gives a character the same width: pictures may melt into one another."""
    return unicodedata.category(char) not in WAVERING and ord(char) < 0x1F000  # noqa: PLR2004  (where pictures begin)
