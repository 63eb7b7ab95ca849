"""grep: lines of files that match a regular expression, within a bounded time."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Annotated

from retinue.domain.io_results import Found
from retinue.domain.tool import Effect
from retinue.domain.value import value
from retinue.errors import Failed, RetinueError
from retinue.interfaces import Call, Files
from retinue.tools.define import tool
from retinue.tools.file_patterns import matcher
from retinue.tools.output_text import is_binary, placed, shown_line

MAX_MATCHES = 500
MAX_SECONDS = 10.0
MAX_EXPRESSION = 1_000
MAX_FILE = 8_000_000

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()\n]")
_BY_LINE = re.compile(r"\(\?(?!:|i\))|[*+?}]\+|\\[AZzGKBWD]|\[\^")
"""What can fail on a text and yet match one of its lines, or crawls over many: look-around, atomic groups,
ends of the text, and all that runs on over line ends."""


@value
class Search:
    """How a pattern is looked for. Both are given the seconds left, and raise TimeoutError when they are over."""

    may_be_in: Callable[[str, float], bool]
    """False only for a text of which no line matches."""
    find: Callable[[str, float], int]
    """Where in a line the first match starts, or -1."""


@tool(effect=Effect.READ, category="files", touches=("read", "path"))
async def grep(
    call: Call,
    pattern: Annotated[
        str, "A regular expression, matched within each line; (?i) at its start ignores case."
    ],
    path: Annotated[str | None, "The folder or file to search; the workspace if not given."] = None,
    glob: Annotated[str | None, "Only files that fit, for example *.py or src/**/*.ts."] = None,
) -> str:
    """Search in files. The answer has one line per match, as `file:line: text`, with paths relative to the
    workspace. Binary files are left out. Use read to see what is around a match."""
    hunt = Hunt(
        files=call.files,
        root=call.session.workspace.root,
        pattern=pattern,
        path=path or ".",
        fits=_anywhere if glob is None else matcher(glob if "/" in glob else f"**/{glob}"),
    )
    return await asyncio.to_thread(hunt.run)


@value
class Hunt:
    """One search, made in a thread of its own."""

    files: Files
    root: str
    pattern: str
    path: str
    fits: Callable[[str], bool]
    seconds: float = MAX_SECONDS

    def run(self) -> str:
        search = searcher(self.pattern)
        deadline = time.monotonic() + self.seconds
        lines: list[str] = []
        try:
            for line in self._matches(search, deadline):
                lines.append(line)
                if len(lines) > MAX_MATCHES:
                    lines[-1] = f"[more than {MAX_MATCHES} matches: use a narrower pattern, path or glob]"
                    break
        except TimeoutError:
            lines.append(f"[stopped after {self.seconds:g} seconds: use a simpler pattern, or path and glob]")
        return "\n".join(lines) or "[nothing matches]"

    def _matches(self, search: Search, deadline: float) -> Iterator[str]:
        for one in self.files.walk(self.path):
            if one.kind == "cut":
                yield "[there are too many files to search: start from a folder further down with path]"
            elif one.kind == "file" and (one.path == "." or self.fits(one.path)):
                yield from self._in_file(one, search, deadline)
            if time.monotonic() > deadline:
                raise TimeoutError

    def _in_file(self, one: Found, search: Search, deadline: float) -> Iterator[str]:
        """A file that went away or may not be read by this user is as if it were not there."""
        try:
            data = self.files.read(one.real, max_bytes=MAX_FILE).data
        except RetinueError:
            return
        if is_binary(data):
            return
        name = placed(one.real, self.root)
        text = data.decode(errors="replace").replace("\r\n", "\n")
        if search.may_be_in(text, deadline - time.monotonic()):
            for number, line in enumerate(text.split("\n"), 1):
                at = search.find(line, deadline - time.monotonic())
                if at >= 0:
                    yield f"{name}:{number}: {shown_line(line.rstrip(), at)}"
        if one.size > MAX_FILE:
            yield f"[of {name} only the first {MAX_FILE // 1_000_000} MB were searched]"


def searcher(pattern: str) -> Search:
    """Plain words are looked for as they are; expressions by an engine that can be stopped."""
    if not pattern or len(pattern) > MAX_EXPRESSION:
        raise Failed(f"the pattern must be between 1 and {MAX_EXPRESSION:,} characters long")
    if not _SPECIAL.search(pattern):
        return Search(may_be_in=lambda text, _: pattern in text, find=lambda line, _: line.find(pattern))
    import regex  # noqa: PLC0415  (30 ms that only a search by expression needs)

    try:
        expression = regex.compile(pattern, regex.MULTILINE)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise Failed(f"the pattern is not a regular expression: {error}") from error

    def find(line: str, seconds: float) -> int:
        found = expression.search(line, timeout=max(seconds, 0.001), concurrent=True)
        return found.start() if found else -1

    def may_be_in(text: str, seconds: float) -> bool:
        return find(text, seconds) >= 0

    return Search(may_be_in=_always if _BY_LINE.search(pattern) else may_be_in, find=find)


def _always(_text: str, _seconds: float) -> bool:
    return True


def _anywhere(_: str) -> bool:
    return True
