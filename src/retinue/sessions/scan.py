"""What a session.md holds, read from its first entry to its last without a lock and in little memory."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from retinue.domain.transcript import Entry, Said
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sessions.markdown.chunks import PORTION
from retinue.sessions.markdown.parser import readings
from retinue.sessions.markdown.torn_tail import ends
from retinue.storage.file_io import Stamp, open_file, stamp_of

T = TypeVar("T")
_TRIES = 3


@value
class Survey:
    """A conversation in numbers, and what is wrong with its file."""

    entries: int
    runs: frozenset[str]
    """The runs that any entry is of."""
    replies: Mapping[str, int]
    """How many replies of each run stand there."""
    problems: tuple[str, ...]


def survey(path: str) -> Survey:
    def look(problems: list[str]) -> tuple[int, set[str], Counter[str]]:
        count, runs, replies = 0, set[str](), Counter[str]()
        for entries in entries_of(path, problems):
            count += len(entries)
            runs.update(entry.run for entry in entries if entry.run)
            replies.update(entry.run for entry in entries if isinstance(entry, Said) and entry.by == "agent")
        return count, runs, replies

    (count, runs, replies), problems = _settled(path, look)
    return Survey(entries=count, runs=frozenset(runs), replies=replies, problems=tuple(problems))


def everything(path: str) -> tuple[list[Entry], list[str]]:
    """All entries at once, and what is wrong with the file."""
    return _settled(
        path, lambda problems: [entry for entries in entries_of(path, problems) for entry in entries]
    )


def entries_of(path: str, problems: list[str]) -> Iterator[list[Entry]]:
    """All entries, some at a time, up to the first that cannot be read; what is wrong is added to the problems."""
    try:
        file = open_file(path)
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return
    try:
        size, torn = ends(file)
        if torn is not None:
            problems.append(
                f"{path} has a torn tail of {size - torn} bytes; it is cut off when the session is opened"
            )
        for reading in readings(file, 0, size if torn is None else torn, path, lenient=True):
            if reading.problem is not None:
                problems.append(str(reading.problem))
            yield reading.entries
    finally:
        os.close(file)


def text_of(path: str) -> Iterator[str]:
    """The file's text as it stands, piece by piece."""
    try:
        file = open_file(path)
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(file, encoding="utf-8", errors="replace") as text:
        while piece := text.read(PORTION):
            yield piece


def _settled(path: str, look: Callable[[list[str]], T]) -> tuple[T, list[str]]:
    """What a look finds; a problem that was seen while somebody wrote may be none, so it is looked for again."""
    for _ in range(_TRIES - 1):
        before, problems = _stamp(path), list[str]()
        found = look(problems)
        if not problems or _stamp(path) == before:
            return found, problems
    problems = list[str]()
    return look(problems), problems


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(path)
    except OSError:
        return None
