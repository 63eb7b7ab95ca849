"""grep: search files for a regular expression, within a time limit."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Annotated

from msgspec import Struct

from retinue.domain.io_results import FileEntry
from retinue.domain.tool import Effect
from retinue.errors import Failed, RetinueError
from retinue.interfaces import Call, ScopedFiles
from retinue.tools.define import tool
from retinue.tools.file_patterns import compile_matcher
from retinue.tools.text_format import clip_line, is_binary, workspace_path

MAX_MATCHES = 500
TIMEOUT_S = 10.0
MAX_PATTERN_CHARS = 1_000
MAX_FILE_BYTES = 8_000_000

_REGEX_SYNTAX = re.compile(r"[\\.^$*+?{}\[\]|()\n]")
_LINE_BY_LINE_SYNTAX = re.compile(r"\(\?(?!:|i\))|[*+?}]\+|\\[AZzGKBWD]|\[\^")
"""Syntax that needs a line-by-line search.

These constructs (look-around, atomic groups, anchors of the whole text, and classes that match line ends) may
fail on a text and yet match one of its lines, or are slow over many lines.
"""


class LineSearch(Struct, frozen=True, kw_only=True):
    """A compiled pattern.

    Both functions take the remaining seconds and raise TimeoutError after that time.
    """

    may_match: Callable[[str, float], bool]
    """Return False only for a text in which no line matches."""
    find_in_line: Callable[[str, float], int]
    """Return the index in a line where the first match starts, or -1."""


@tool(effect=Effect.READ, category="files", access=("read", "path"))
async def grep(
    call: Call,
    pattern: Annotated[
        str, "A regular expression, matched within each line; (?i) at its start ignores case."
    ],
    path: Annotated[str | None, "The folder or file to search; default: the workspace."] = None,
    glob: Annotated[str | None, "Only files that match, for example *.py or src/**/*.ts."] = None,
) -> str:
    """Search in files. The result has one line per match, as `file:line: text`, with paths relative to the
    workspace. Binary files are skipped. Use read to see the context of a match."""
    search_job = GrepSearch(
        files=call.files,
        root=call.session.workspace.root,
        pattern=pattern,
        path=path or ".",
        matches_path=_match_any_path
        if glob is None
        else compile_matcher(glob if "/" in glob else f"**/{glob}"),
    )
    return await asyncio.to_thread(search_job.run)


class GrepSearch(Struct, frozen=True, kw_only=True):
    """A search, run in its own thread."""

    files: ScopedFiles
    root: str
    pattern: str
    path: str
    matches_path: Callable[[str], bool]
    timeout_s: float = TIMEOUT_S

    def run(self) -> str:
        search = compile_search(self.pattern)
        deadline = time.monotonic() + self.timeout_s
        lines: list[str] = []
        try:
            for line in self._matching_lines(search, deadline):
                lines.append(line)
                if len(lines) > MAX_MATCHES:
                    lines[-1] = f"[more than {MAX_MATCHES} matches: use a narrower pattern, path or glob]"
                    break
        except TimeoutError:
            lines.append(
                f"[stopped after {self.timeout_s:g} seconds: use a simpler pattern, or path and glob]"
            )
        return "\n".join(lines) or "[no matches]"

    def _matching_lines(self, search: LineSearch, deadline: float) -> Iterator[str]:
        for entry in self.files.walk(self.path):
            if entry.kind == "cut":
                yield "[too many files to search: choose a smaller folder with path]"
            elif entry.kind == "file" and (entry.path == "." or self.matches_path(entry.path)):
                yield from self._file_matches(entry, search, deadline)
            if time.monotonic() > deadline:
                raise TimeoutError

    def _file_matches(self, entry: FileEntry, search: LineSearch, deadline: float) -> Iterator[str]:
        """Yield the matches of one file; a file that was deleted or may not be read has none."""
        try:
            data = self.files.read(entry.real_path, max_bytes=MAX_FILE_BYTES).data
        except RetinueError:
            return
        if is_binary(data):
            return
        name = workspace_path(entry.real_path, self.root)
        text = data.decode(errors="replace").replace("\r\n", "\n")
        if search.may_match(text, deadline - time.monotonic()):
            for number, line in enumerate(text.split("\n"), 1):
                column = search.find_in_line(line, deadline - time.monotonic())
                if column >= 0:
                    yield f"{name}:{number}: {clip_line(line.rstrip(), column)}"
        if entry.size > MAX_FILE_BYTES:
            yield f"[only the first {MAX_FILE_BYTES // 1_000_000} MB of {name} were searched]"


def compile_search(pattern: str) -> LineSearch:
    """Compile a pattern: plain text is searched directly, an expression with a timeout."""
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise Failed(f"The pattern must have 1 to {MAX_PATTERN_CHARS:,} characters.")
    if not _REGEX_SYNTAX.search(pattern):
        return LineSearch(
            may_match=lambda text, _: pattern in text, find_in_line=lambda line, _: line.find(pattern)
        )
    import regex  # noqa: PLC0415  (30 ms, needed only for regular expressions)

    try:
        expression = regex.compile(pattern, regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise Failed(f"The pattern is not a valid regular expression: {error}") from error

    def find_in_line(line: str, timeout_s: float) -> int:
        found = expression.search(line, timeout=max(timeout_s, 0.001), concurrent=True)
        return found.start() if found else -1

    def may_match(text: str, timeout_s: float) -> bool:
        return find_in_line(text, timeout_s) >= 0

    return LineSearch(
        may_match=_always_true if _LINE_BY_LINE_SYNTAX.search(pattern) else may_match,
        find_in_line=find_in_line,
    )


def _always_true(_text: str, _seconds: float) -> bool:
    return True


def _match_any_path(_: str) -> bool:
    return True
