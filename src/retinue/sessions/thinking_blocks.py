"""What a provider wants back unchanged, kept beside session.md so that the conversation stays readable."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH118

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retinue.domain.transcript import Entry, Said
from retinue.storage import file_names
from retinue.storage.file_io import no_room, open_file, read_at, write_all

_BLOCK = 1 << 20


def add(folder: str, directory: int, entries: Iterable[Entry]) -> None:
    """On disk before the entries that name them."""
    lines = [
        json.dumps({"id": entry.id, "blocks": entry.thoughts})
        for entry in entries
        if isinstance(entry, Said) and entry.thoughts
    ]
    if not lines:
        return
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        file = os.open(
            file_names.THOUGHTS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=directory
        )
        try:
            size = os.fstat(file).st_size
            whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            write_all(file, data if whole else b"\n" + data)
            os.fsync(file)
            if not size:
                os.fsync(directory)  # its name is new, too
        finally:
            os.close(file)
    except OSError as error:
        raise no_room(os.path.join(folder, file_names.THOUGHTS), error) from error


def restored(entries: Sequence[Entry], thoughtful: Collection[str], directory: int) -> list[Entry]:
    """The entries with their blocks; an entry whose blocks are lost goes on without them."""
    try:
        file = open_file(file_names.THOUGHTS, directory=directory)
    except OSError:
        return list(entries)
    try:
        known = _blocks(_lines_back(file, os.fstat(file).st_size), set(thoughtful))
    finally:
        os.close(file)
    return [
        replace(entry, thoughts=known[entry.id])
        if isinstance(entry, Said) and entry.by == "agent" and entry.id in known
        else entry
        for entry in entries
    ]


def _blocks(lines: Iterator[bytes], wanted: set[str]) -> Mapping[str, tuple[str, ...]]:
    """Of several lines for one entry the last holds, so the first from the end; when all are found, nothing more is read."""
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        try:
            record: Any = json.loads(line)
            if record["id"] in wanted:
                found[record["id"]] = tuple(map(str, record["blocks"]))
                wanted.discard(record["id"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # A line that a crash cut short belongs to an entry that was never written.
        if not wanted:
            break
    return found


def _lines_back(file: int, end: int) -> Iterator[bytes]:
    """A file's lines from its last to its first, a block at a time."""
    pieces: list[bytes] = []
    while end > 0:
        start = max(0, end - _BLOCK)
        first, *lines = read_at(file, start, end - start).split(b"\n")
        if lines:
            pieces.append(lines.pop())
            yield b"".join(reversed(pieces))
            yield from reversed(lines)
            pieces = []
        pieces.append(first)
        end = start
    yield b"".join(reversed(pieces))
