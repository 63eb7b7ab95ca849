"""read: the text of a file, in pieces a model can take."""

import asyncio
from typing import Annotated

from msgspec import Meta

from retinue.domain.io_results import Opened
from retinue.domain.sanitize import without_escapes
from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call, Files
from retinue.tools.define import tool
from retinue.tools.output_text import is_binary, shown_name, size

Count = Annotated[int, Meta(ge=1)]

MAX_LINES = 2_000
MAX_TEXT = 200_000
SMALL = 64_000
"""Bytes that are read on the spot: a thread would cost more."""

_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
)


@tool(effect=Effect.READ, category="files", touches=("read", "path"))
async def read(
    call: Call,
    path: Annotated[str, "The file, relative to the workspace or absolute."],
    offset: Annotated[Count | None, "The first line wanted; 1 is the first."] = None,
    limit: Annotated[Count | None, "How many lines; 2,000 if not given."] = None,
) -> str:
    """Read a text file. Long files come in pieces: the last line of the answer says how to read on with
    offset. Use ls for folders, and grep to find the place in a large file."""
    first, most = offset or 1, limit or MAX_LINES
    opened = call.files.read(path, max_bytes=SMALL)
    if opened.size > len(opened.data):
        return await asyncio.to_thread(_read_whole, call.files, path, first, most)
    return answer(path, opened, first=first, limit=most)


def _read_whole(files: Files, path: str, first: int, limit: int) -> str:
    return answer(path, files.read(path), first=first, limit=limit)


def answer(path: str, opened: Opened, *, first: int, limit: int) -> str:
    """The lines asked for, as they stand in the file, and a note on everything that is missing."""
    if is_binary(opened.data):
        kind = next((kind for magic, kind in _MAGIC if opened.data.startswith(magic)), "not text")
        return f"[{shown_name(path)} is {kind}, {size(opened.size)}: it is not shown]"
    text, broken = _decoded(opened)
    lines = _lines(text)
    if not lines:
        return "[the file is empty]"
    if first > len(lines):
        raise Failed(f"{shown_name(path)} has {len(lines):,} lines: offset {first:,} is past its end")
    taken = _fitting(lines[first - 1 : first - 1 + limit])
    body = "".join(taken)
    clean = without_escapes(body[:MAX_TEXT])
    last = first + len(taken) - 1
    cut = opened.size > len(opened.data)
    notes = (
        (
            len(body) > MAX_TEXT,
            f"[line {first:,} is {len(body):,} characters long; the first {MAX_TEXT:,} are shown]",
        ),
        (broken, "[some bytes are not UTF-8 and are shown as \ufffd]"),
        (len(clean) < min(len(body), MAX_TEXT), "[escape sequences are left out]"),
        (cut, f"[the file is {size(opened.size)}; only its first {size(len(opened.data))} can be read]"),
        (
            last < len(lines),
            f"[lines {first:,}\u2013{last:,} of {len(lines):,}; read on with offset={last + 1}]",
        ),
    )
    said = [note for true, note in notes if true]
    return "\n".join([clean.removesuffix("\n"), *said]) if said else clean


def _decoded(opened: Opened) -> tuple[str, bool]:
    """The text, and whether bytes had to be replaced. A file that was cut ends with its last whole line."""
    data = opened.data
    if opened.size > len(data):
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def _lines(text: str) -> list[str]:
    """Only a line feed ends a line; it and a carriage return before it stay."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _fitting(lines: list[str]) -> list[str]:
    """As many as fit, and always one."""
    room = MAX_TEXT
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return lines[: max(1, count)]
    return lines
