"""Terminal output: safe text, one JSON value with --json, and aligned tables."""

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from retinue.cli.ui.agent_titles import AgentTitles
from retinue.cli.ui.live_footer import (
    Footer,
    LiveFooter,
    display_width,
    supports_cursor_movement,
    truncate_to_width,
)
from retinue.domain.sanitize import safe_json, safe_name, safe_text
from retinue.errors import RetinueError

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
"""A heading, and a function that returns the cell for a row."""

_COLOURS: Mapping[str, str] = {
    "done": "32", "ok": "32", "running": "36", "queued": "36", "waiting": "33", "warn": "33",
    "failed": "31", "lost": "31", "bad": "31", "timed_out": "31", "cancelled": "33",
}  # fmt: skip


MAX_ERROR_CHARS = 4_000
"""Number of characters of an error message that are shown."""


AGENT_HEADING = "AGENT"
"""Heading of the column with the agent of a run, a session or an approval."""
MAX_INDENT = 20
"""Maximum number of leading spaces in the first column."""


def one_line(text: str, limit: int = 160) -> str:
    """Return the start of a text on one line, safe for a terminal."""
    flat = safe_name(" ".join(text.split()))  # collapse blanks first, so that they cannot hide text
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def truncate_error(message: str) -> str:
    """Shorten an error message, which may quote text of any length."""
    return (
        message
        if len(message) <= MAX_ERROR_CHARS
        else f"{message[:MAX_ERROR_CHARS]}… ({len(message):,} characters)"
    )


def json_text(value: object, *, ascii_only: bool = False) -> str:
    """Return JSON that is safe on a terminal: control and invisible characters are escaped."""
    return safe_json(json.dumps(value, indent=2, ensure_ascii=ascii_only))


class LivePrompt(Footer, Protocol):
    """A footer with a prompt, at which the user also answers questions."""

    def answering(self) -> AbstractAsyncContextManager[Callable[[], Coroutine[Any, Any, str]]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Standard output and standard error.

    With `--json`, standard output gets exactly one JSON value and nothing else.
    """

    json: bool
    out: TextIO
    err: TextIO
    footer: Footer | None = field(init=False, compare=False)
    """The live footer; None if the terminal cannot show one."""
    prompt: "LivePrompt | None" = field(init=False, compare=False, default=None)
    """The prompt that owns standard input now; None if nothing else reads it."""
    agent_titles: AgentTitles = field(default_factory=AgentTitles, compare=False)

    def __post_init__(self) -> None:
        stream = self.out if _is_same_terminal(self.out, self.err) else self.err
        object.__setattr__(self, "footer", LiveFooter(stream) if supports_cursor_movement(self.err) else None)

    @classmethod
    def from_std_streams(cls, *, json: bool) -> "Terminal":
        return cls(json=json, out=sys.stdout, err=sys.stderr)

    @property
    def streams_text(self) -> bool:
        """True if text is shown as it arrives, because a person watches the output."""
        return not self.json and self.out.isatty()

    @property
    def supports_live_prompt(self) -> bool:
        """True if a person can type a message while output appears above it."""
        return not self.json and sys.stdin.isatty() and supports_cursor_movement(self.out)

    @contextmanager
    def use_prompt(self, prompt: LivePrompt) -> Generator[None]:
        """Print above this prompt, and let it read the user's answers, while the context is open."""
        footer = self.footer
        object.__setattr__(self, "footer", prompt)
        object.__setattr__(self, "prompt", prompt)
        try:
            yield
        finally:
            object.__setattr__(self, "footer", footer)
            object.__setattr__(self, "prompt", None)

    def print_json(self, value: object) -> None:
        """Print the JSON value of this command."""
        self._write(self.out, self._encode_json(value) + "\n")

    @contextmanager
    def print_json_array(self) -> Generator[Callable[[object], None]]:
        """Print a JSON array of any length, element by element."""
        separator = "["

        def add(value: object) -> None:
            nonlocal separator
            self._write(self.out, f"{separator}\n  " + self._encode_json(value).replace("\n", "\n  "))
            separator = ","

        yield add
        self._write(self.out, "[]\n" if separator == "[" else "\n]\n")

    def _encode_json(self, value: object) -> str:
        utf8 = (self.out.encoding or "").lower().replace("-", "") == "utf8"
        return json_text(value, ascii_only=not utf8)

    def print_text(self, text: str) -> None:
        """Print an agent's text: unchanged for a program, made safe for a terminal."""
        self._write(self.out, safe_text(text) if self.out.isatty() else text)

    def print_line(self, text: str = "") -> None:
        """Print a line on standard output; nothing with `--json`."""
        if not self.json:
            self._write(self.out, safe_name(text) + "\n")

    def print_coloured(self, text: str, colour: str) -> None:
        """Print a coloured line on standard output, if colours are supported; nothing with `--json`."""
        if not self.json:
            self._write(self.out, _colour_text(safe_name(text), colour, stream=self.out) + "\n")

    def print_note(self, text: str, *, colour: str = "2") -> None:
        """Print a line on standard error."""
        self._write(self.err, _colour_text(safe_name(text), colour, stream=self.err) + "\n")

    def print_error(self, error: RetinueError) -> None:
        """Print an error, with the cause if the message does not contain it."""
        cause = error.__cause__
        cause_text = str(cause) if isinstance(cause, RetinueError) and str(cause) not in str(error) else ""
        self.print_error_message(error.code, str(error), cause_text=cause_text)

    def print_error_message(self, code: str, message: str, *, cause_text: str = "") -> None:
        """Print an error for people, and with `--json` as a value for programs."""
        if self.json:
            self.print_json({"error": {"code": code, "message": message}})
        sentence = truncate_error(f"{message} ({cause_text})" if cause_text else message)
        self._write(self.err, _colour_text("retinue:", "31", stream=self.err) + f" {safe_name(sentence)}\n")

    def print_table(self, rows: Iterable[Row], columns: Sequence[Column], *, empty_note: str) -> None:
        """Print a list: a JSON array for programs, an aligned table for people.

        Without rows, people get `empty_note`, which says what to do.
        """
        if self.json:
            self.print_json(list(rows))
            return
        cells = [
            _safe_cells([self._with_title(heading, cell(row), row) for heading, cell in columns])
            for row in rows
        ]
        if not cells:
            self.print_note(empty_note)
            return
        first, *lines = _align_columns([[heading for heading, _ in columns], *cells], self._width())
        if _supports_colour(self.out):
            first, lines = _colour_text(first, "1", stream=self.out), [_colour_status(line) for line in lines]
        self._write(self.out, "\n".join((first, *lines, "")))

    def _with_title(self, heading: str, text: str, row: Row) -> str:
        """Return the display name instead of the agent's name in the agent's column."""
        is_agent = heading == AGENT_HEADING and text == row.get("agent", row.get("agentId"))
        return self.agent_titles.title(text) if is_agent else text

    def print_facts(self, facts: Row) -> None:
        """Print one object: JSON for programs, one line per field for people."""
        if self.json:
            self.print_json(facts)
            return
        shown_facts = [
            (name, _format_value(fact)) for name, fact in facts.items() if fact not in (None, "", [], {}, ())
        ]
        width = max((len(name) for name, _ in shown_facts), default=0)
        for name, fact in shown_facts:
            label = _colour_text(f"{safe_name(name):<{width}}", "2", stream=self.out)
            self._write(self.out, f"{label}  {safe_name(fact)}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        """Write to a stream; text for the footer's terminal goes above the footer."""
        footer = self.footer
        if footer is not None and (stream is footer.stream or (stream is self.err and stream.isatty())):
            _ignore_closed_terminal(lambda: footer.write_above(text))
        else:
            _ignore_closed_terminal(lambda: _write_escaped(stream, text))

    def _width(self) -> int | None:
        return shutil.get_terminal_size().columns if self.out.isatty() else None


def _colour_status(line: str) -> str:
    return re.sub(
        r"(?:(?<=  )|(?<=#[0-9] )|(?<=#[0-9]{2} )|(?<=#[0-9]{3} ))(" + "|".join(_COLOURS) + r")(?=  |$)",
        lambda match: f"\x1b[{_COLOURS[match[1]]}m{match[1]}\x1b[0m",
        line,
        count=1,
    )


def _safe_cells(cells: Sequence[str]) -> list[str]:
    """Make the cells safe, keeping the indentation of the first, which shows depth in a tree."""
    first = cells[0]
    depth = min(len(first) - len(first.lstrip(" ")), MAX_INDENT) if first.strip() else 0
    return [" " * depth + one_line(first, 400), *(one_line(cell, 400) for cell in cells[1:])]


def _is_same_terminal(out: TextIO, err: TextIO) -> bool:
    """Return whether both streams are the same terminal."""
    try:
        return out.isatty() and (
            out is err or os.fstat(out.fileno()).st_rdev == os.fstat(err.fileno()).st_rdev
        )
    except (OSError, ValueError):
        return False


def _ignore_closed_terminal(write: Callable[[], None]) -> None:
    """Write, ignoring the error of a terminal that was closed."""
    try:
        write()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def _write_escaped(stream: TextIO, text: str) -> None:
    """Write a text, escaping characters that the stream's encoding lacks."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _supports_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _colour_text(text: str, colour: str, *, stream: TextIO) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if _supports_colour(stream) and text else text


def _align_columns(cells: Sequence[Sequence[str]], width: int | None) -> list[str]:
    cell_widths = [[display_width(cell) for cell in row] for row in cells]
    column_widths = [max(column) for column in zip(*cell_widths, strict=True)]
    lines = (
        "  ".join(
            cell + " " * (column_width - cell_width)
            for cell, cell_width, column_width in zip(row, row_widths, column_widths, strict=True)
        ).rstrip()
        for row, row_widths in zip(cells, cell_widths, strict=True)
    )
    return [line if width is None else truncate_to_width(line, width) for line in lines]


def _format_value(fact: object) -> str:
    if isinstance(fact, str):
        return fact
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return json.dumps(fact, ensure_ascii=False)
