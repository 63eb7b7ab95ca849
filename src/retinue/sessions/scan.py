"""Scan a session.md from its first entry to its last, without a lock and in little memory."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from retinue.domain.transcript import Entry, Message
from retinue.errors import Failed
from retinue.sessions.markdown.chunks import CHUNK_BYTES
from retinue.sessions.markdown.parser import parse_file
from retinue.sessions.markdown.torn_tail import size_and_torn_offset
from retinue.storage.file_io import FileStamp, file_stamp, open_regular_file

T = TypeVar("T")
_MAX_ATTEMPTS = 3


class SessionScan(Struct, frozen=True, kw_only=True):
    """Counts of a conversation's entries, and the problems in its file."""

    entries: int
    run_ids: frozenset[str]
    """Ids of the runs that have entries."""
    replies: Mapping[str, int]
    """Number of replies by run id."""
    problems: tuple[str, ...]


def scan_session(path: str) -> SessionScan:
    def count_entries(problems: list[str]) -> tuple[int, set[str], Counter[str]]:
        count, runs, replies = 0, set[str](), Counter[str]()
        for entries in iter_entry_batches(path, problems):
            count += len(entries)
            runs.update(entry.run for entry in entries if entry.run)
            replies.update(
                entry.run for entry in entries if isinstance(entry, Message) and entry.role == "agent"
            )
        return count, runs, replies

    (count, run_ids, replies), problems = _retry_while_changing(path, count_entries)
    return SessionScan(entries=count, run_ids=frozenset(run_ids), replies=replies, problems=tuple(problems))


def read_all_entries(path: str) -> tuple[list[Entry], list[str]]:
    """Read all entries at once, and the file's problems."""
    return _retry_while_changing(
        path, lambda problems: [entry for entries in iter_entry_batches(path, problems) for entry in entries]
    )


def iter_entry_batches(path: str, problems: list[str]) -> Iterator[list[Entry]]:
    """Yield all entries in batches up to the first error; append problems to `problems`."""
    try:
        fd = open_regular_file(path)
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return
    try:
        size, torn_offset = size_and_torn_offset(fd)
        if torn_offset is not None:
            problems.append(
                f"{path} has a torn tail of {size - torn_offset} bytes; it is cut off when the session is opened"
            )
        for parsed in parse_file(fd, 0, size if torn_offset is None else torn_offset, path, lenient=True):
            if parsed.error is not None:
                problems.append(str(parsed.error))
            yield parsed.entries
    finally:
        os.close(fd)


def iter_text(path: str) -> Iterator[str]:
    """Yield the file's text in pieces."""
    try:
        fd = open_regular_file(path)
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, encoding="utf-8", errors="replace") as text:
        while piece := text.read(CHUNK_BYTES):
            yield piece


def _retry_while_changing(path: str, read_once: Callable[[list[str]], T]) -> tuple[T, list[str]]:
    """Run a read; repeat it if a problem may be due to a concurrent write."""
    for _ in range(_MAX_ATTEMPTS - 1):
        stamp_before, problems = _stamp_or_none(path), list[str]()
        found = read_once(problems)
        if not problems or _stamp_or_none(path) == stamp_before:
            return found, problems
    problems = list[str]()
    return read_once(problems), problems


def _stamp_or_none(path: str) -> FileStamp | None:
    try:
        return file_stamp(path)
    except OSError:
        return None
