"""Data that providers want back with replies, unchanged, stored next to session.md to keep it readable."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH118

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from retinue.domain.transcript import Entry, Message
from retinue.storage import file_names
from retinue.storage.file_io import open_regular_file, read_at, write_all, write_error

_READ_BLOCK_BYTES = 1 << 20


def append_provider_data(folder: str, dir_fd: int, entries: Iterable[Entry]) -> None:
    """Write the entries' provider data to disk. Must happen before the entries themselves are written."""
    lines = [
        json.dumps({"id": entry.id, "blocks": entry.provider_data})
        for entry in entries
        if isinstance(entry, Message) and entry.provider_data
    ]
    if not lines:
        return
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        file = os.open(
            file_names.PROVIDER_DATA,
            os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
            dir_fd=dir_fd,
        )
        try:
            size = os.fstat(file).st_size
            ends_with_newline = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            write_all(file, data if ends_with_newline else b"\n" + data)
            os.fsync(file)
            if not size:
                os.fsync(dir_fd)  # the file's name is new, too
        finally:
            os.close(file)
    except OSError as error:
        raise write_error(os.path.join(folder, file_names.PROVIDER_DATA), error) from error


def restore_provider_data(
    entries: Sequence[Entry], ids_with_provider_data: Collection[str], dir_fd: int
) -> list[Entry]:
    """Return the entries with their provider data; an entry whose data is lost has none."""
    try:
        file = open_regular_file(file_names.PROVIDER_DATA, dir_fd=dir_fd)
    except OSError:
        return list(entries)
    try:
        blocks = _find_blocks(_lines_backwards(file, os.fstat(file).st_size), set(ids_with_provider_data))
    finally:
        os.close(file)
    return [
        replace(entry, provider_data=blocks[entry.id])
        if isinstance(entry, Message) and entry.role == "agent" and entry.id in blocks
        else entry
        for entry in entries
    ]


def _find_blocks(lines: Iterator[bytes], wanted_ids: set[str]) -> Mapping[str, tuple[str, ...]]:
    """Find the blocks of the wanted entries in lines read backwards.

    If an entry has several lines, the last one is used. Reading stops when all entries are found.
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        try:
            record: Any = json.loads(line)
            if record["id"] in wanted_ids:
                found[record["id"]] = tuple(map(str, record["blocks"]))
                wanted_ids.discard(record["id"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # A line truncated by a crash belongs to an entry that was never written.
        if not wanted_ids:
            break
    return found


def _lines_backwards(file: int, end: int) -> Iterator[bytes]:
    """Yield a file's lines from last to first, reading block by block."""
    chunks: list[bytes] = []
    while end > 0:
        start = max(0, end - _READ_BLOCK_BYTES)
        first, *lines = read_at(file, start, end - start).split(b"\n")
        if lines:
            chunks.append(lines.pop())
            yield b"".join(reversed(chunks))
            yield from reversed(lines)
            chunks = []
        chunks.append(first)
        end = start
    yield b"".join(reversed(chunks))
