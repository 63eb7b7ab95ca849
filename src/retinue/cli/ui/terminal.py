"""What reaches a terminal, and how: text made harmless, JSON made whole, tables made straight."""

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TextIO

from retinue.cli.ui.live_footer import Footer, can_move, columns, fitted
from retinue.domain.sanitize import json_safe, safe_text, shown
from retinue.domain.value import value
from retinue.errors import RetinueError

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
"""A heading and what stands below it for one row."""

_COLOURS: Mapping[str, str] = {
    "done": "32", "ok": "32", "running": "36", "queued": "36", "waiting": "33", "warn": "33",
    "failed": "31", "lost": "31", "bad": "31", "timed_out": "31", "cancelled": "33",
}  # fmt: skip


SENTENCE = 4_000
"""Characters of an error that are shown."""


DEEPEST = 20
"""Blanks before the first column of a row."""


def one_line(text: str, limit: int = 160) -> str:
    """The start of a text on one line, safe."""
    flat = shown(" ".join(text.split()))  # first, so that blanks cannot push anything out of sight
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def cut(sentence: str) -> str:
    """A sentence may quote what somebody wrote: it has an end."""
    return sentence if len(sentence) <= SENTENCE else f"{sentence[:SENTENCE]}… ({len(sentence):,} characters)"


def json_text(value: object, *, ascii_only: bool = False) -> str:
    """JSON that is safe on a terminal too: what would be obeyed or hidden is written as its escape."""
    return json_safe(json.dumps(value, indent=2, ensure_ascii=ascii_only))


@value
class Terminal:
    """Standard output and standard error, with the promise that `--json` prints one value and nothing else."""

    json: bool
    out: TextIO
    err: TextIO
    footer: Footer | None = field(init=False, compare=False)
    """Where progress is shown; None where nobody would see it, or the terminal does not obey."""

    def __post_init__(self) -> None:
        one = self.out if _one_terminal(self.out, self.err) else self.err
        object.__setattr__(self, "footer", Footer(one) if can_move(self.err) else None)

    @classmethod
    def here(cls, *, json: bool) -> "Terminal":
        return cls(json=json, out=sys.stdout, err=sys.stderr)

    @property
    def streams(self) -> bool:
        """A person watches the output, so text is shown as it comes."""
        return not self.json and self.out.isatty()

    def value(self, value: object) -> None:
        """The one JSON value of this command."""
        self._write(self.out, self._json(value) + "\n")

    @contextmanager
    def array(self) -> Generator[Callable[[object], None]]:
        """The same for an array of any length, which is printed as it comes."""
        before = "["

        def add(value: object) -> None:
            nonlocal before
            self._write(self.out, f"{before}\n  " + self._json(value).replace("\n", "\n  "))
            before = ","

        yield add
        self._write(self.out, "[]\n" if before == "[" else "\n]\n")

    def _json(self, value: object) -> str:
        utf8 = (self.out.encoding or "").lower().replace("-", "") == "utf8"
        return json_text(value, ascii_only=not utf8)

    def words(self, text: str) -> None:
        """An agent's own words: exactly as they are for a program, harmless for a person."""
        self._write(self.out, safe_text(text) if self.out.isatty() else text)

    def line(self, text: str = "") -> None:
        """A line for people on standard output; silent with `--json`."""
        if not self.json:
            self._write(self.out, shown(text) + "\n")

    def painted(self, text: str, colour: str) -> None:
        """The same in a colour, where there are any."""
        if not self.json:
            self._write(self.out, _painted(shown(text), colour, on=self.out) + "\n")

    def note(self, text: str, *, colour: str = "2") -> None:
        """A line of progress on standard error."""
        self._write(self.err, _painted(shown(text), colour, on=self.err) + "\n")

    def failure(self, error: RetinueError) -> None:
        """What a sentence with a fixed wording rests on stands behind it, for people."""
        cause = error.__cause__
        why = str(cause) if isinstance(cause, RetinueError) and str(cause) not in str(error) else ""
        self.failed(error.code, str(error), why=why)

    def failed(self, code: str, message: str, *, why: str = "") -> None:
        """The sentence for people, and with `--json` the value for programs."""
        if self.json:
            self.value({"error": {"code": code, "message": message}})
        sentence = cut(f"{message} ({why})" if why else message)
        self._write(self.err, _painted("retinue:", "31", on=self.err) + f" {shown(sentence)}\n")

    def rows(self, rows: Iterable[Row], columns: Sequence[Column], *, empty: str) -> None:
        """A list: an array for programs, an aligned table for people, and a word on what to do when empty."""
        if self.json:
            self.value(list(rows))
            return
        cells = [_indented([cell(row) for _, cell in columns]) for row in rows]
        if not cells:
            self.note(empty)
            return
        first, *lines = _aligned([[heading for heading, _ in columns], *cells], self._width())
        if _colours(self.out):
            first, lines = _painted(first, "1", on=self.out), [_with_status(line) for line in lines]
        self._write(self.out, "\n".join((first, *lines, "")))

    def facts(self, facts: Row) -> None:
        """One thing: an object for programs, a line per fact for people."""
        if self.json:
            self.value(facts)
            return
        told = [(name, _plain(fact)) for name, fact in facts.items() if fact not in (None, "", [], {}, ())]
        width = max((len(name) for name, _ in told), default=0)
        for name, fact in told:
            label = _painted(f"{shown(name):<{width}}", "2", on=self.out)
            self._write(self.out, f"{label}  {shown(fact)}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        """What a person sees stands above the footer; what a program reads knows nothing of it."""
        footer = self.footer
        if footer is not None and (stream is footer.stream or stream is self.err):
            _guarded(lambda: footer.above(text))
        else:
            _guarded(lambda: _write(stream, text))

    def _width(self) -> int | None:
        return shutil.get_terminal_size().columns if self.out.isatty() else None


def _with_status(line: str) -> str:
    return re.sub(
        r"(?:(?<=  )|(?<=#[0-9] )|(?<=#[0-9]{2} )|(?<=#[0-9]{3} ))(" + "|".join(_COLOURS) + r")(?=  |$)",
        lambda found: f"\x1b[{_COLOURS[found[1]]}m{found[1]}\x1b[0m",
        line,
        count=1,
    )


def _indented(cells: Sequence[str]) -> list[str]:
    """What stands below something else in a tree is set in; that is in the first column."""
    first = cells[0]
    depth = min(len(first) - len(first.lstrip(" ")), DEEPEST) if first.strip() else 0
    return [" " * depth + one_line(first, 400), *(one_line(cell, 400) for cell in cells[1:])]


def _one_terminal(out: TextIO, err: TextIO) -> bool:
    """Whether both streams end on the same screen."""
    try:
        return out.isatty() and (
            out is err or os.fstat(out.fileno()).st_rdev == os.fstat(err.fileno()).st_rdev
        )
    except (OSError, ValueError):
        return False


def _guarded(write: Callable[[], None]) -> None:
    """A terminal that was closed takes nothing any more, and nobody misses it there."""
    try:
        write()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def _write(stream: TextIO, text: str) -> None:
    """A character the stream cannot hold is written as its escape, never a traceback."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _painted(text: str, colour: str, *, on: TextIO) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if _colours(on) and text else text


def _aligned(cells: Sequence[Sequence[str]], width: int | None) -> list[str]:
    taken = [[columns(cell) for cell in row] for row in cells]
    rooms = [max(column) for column in zip(*taken, strict=True)]
    lines = (
        "  ".join(
            cell + " " * (room - own) for cell, own, room in zip(row, owns, rooms, strict=True)
        ).rstrip()
        for row, owns in zip(cells, taken, strict=True)
    )
    return [line if width is None else fitted(line, width) for line in lines]


def _plain(fact: object) -> str:
    if isinstance(fact, str):
        return fact
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return json.dumps(fact, ensure_ascii=False)
