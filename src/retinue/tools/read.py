"""read: return the text of a file, in parts that fit a model's context."""

import asyncio
from typing import Annotated

from msgspec import Meta

from retinue.domain.io_results import FileContent
from retinue.domain.sanitize import strip_escapes
from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call, ScopedFiles
from retinue.tools.define import tool
from retinue.tools.stored_text import load_stored_text
from retinue.tools.text_format import format_size, is_binary, printable_name

Count = Annotated[int, Meta(ge=1)]

MAX_LINES = 2_000
MAX_TEXT_CHARS = 200_000
INLINE_READ_BYTES = 64_000
"""Files up to this size are read without a thread, which would take longer."""

_FILE_SIGNATURES = (
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


@tool(effect=Effect.READ, category="files", access=("read", "path"), inspects_runs=True)
async def read(
    call: Call,
    path: Annotated[
        str,
        "The file, relative to the workspace or absolute. Or entry:ID, an entry of this conversation; or result:RUN, the "
        "whole result of an agent that you started.",
    ],
    offset: Annotated[Count | None, "The first line to return, from 1."] = None,
    limit: Annotated[Count | None, "The number of lines; default 2,000."] = None,
) -> str:
    """Read a text file. Long files are returned in parts: the last line of the result gives the offset of the
    next part. Use ls for folders, and grep to find the right lines of a large file."""
    first_line, max_lines = offset or 1, limit or MAX_LINES
    if (stored := await load_stored_text(path, call)) is not None:
        data = stored.encode(errors="replace")
        content = FileContent(real_path=path, data=data, size=len(data))
        return format_lines(path, content, first_line=first_line, limit=max_lines)
    content = call.files.read(path, max_bytes=INLINE_READ_BYTES)
    if content.size > len(content.data):
        return await asyncio.to_thread(_read_and_format, call.files, path, first_line, max_lines)
    return format_lines(path, content, first_line=first_line, limit=max_lines)


def _read_and_format(files: ScopedFiles, path: str, first_line: int, limit: int) -> str:
    return format_lines(path, files.read(path), first_line=first_line, limit=limit)


def format_lines(path: str, content: FileContent, *, first_line: int, limit: int) -> str:
    """Format the requested lines as they are in the file, with a note on everything missing."""
    if is_binary(content.data):
        kind = next((kind for magic, kind in _FILE_SIGNATURES if content.data.startswith(magic)), "not text")
        return f"[{printable_name(path)} is {kind}, {format_size(content.size)}: not shown]"
    text, has_invalid_utf8 = _decode_text(content)
    lines = _split_lines(text)
    if not lines:
        return "[the file is empty]"
    if first_line > len(lines):
        raise Failed(
            f"Offset {first_line:,} is past the end: {printable_name(path)} has {len(lines):,} lines."
        )
    shown_lines = _lines_that_fit(lines[first_line - 1 : first_line - 1 + limit])
    body = "".join(shown_lines)
    visible = strip_escapes(body[:MAX_TEXT_CHARS])
    last_line = first_line + len(shown_lines) - 1
    is_truncated = content.size > len(content.data)
    notes = (
        (
            len(body) > MAX_TEXT_CHARS,
            f"[line {first_line:,} is {len(body):,} characters long; the first {MAX_TEXT_CHARS:,} are shown]",
        ),
        (has_invalid_utf8, "[some bytes are not UTF-8 and are shown as \ufffd]"),
        (len(visible) < min(len(body), MAX_TEXT_CHARS), "[escape sequences were removed]"),
        (
            is_truncated,
            f"[the file is {format_size(content.size)}; only its first {format_size(len(content.data))} can be read]",
        ),
        (
            last_line < len(lines),
            f"[lines {first_line:,}\u2013{last_line:,} of {len(lines):,}; continue with offset={last_line + 1}]",
        ),
    )
    active_notes = [note for applies, note in notes if applies]
    return "\n".join([visible.removesuffix("\n"), *active_notes]) if active_notes else visible


def _decode_text(content: FileContent) -> tuple[str, bool]:
    """Return the text, and whether bytes had to be replaced.

    A truncated file ends with its last whole line.
    """
    data = content.data
    if content.size > len(data):
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def _split_lines(text: str) -> list[str]:
    """Split at line feeds only; these and preceding carriage returns are kept."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _lines_that_fit(lines: list[str]) -> list[str]:
    """Return as many lines as fit, at least one."""
    chars_left = MAX_TEXT_CHARS
    for count, line in enumerate(lines):
        chars_left -= len(line)
        if chars_left < 0:
            return lines[: max(1, count)]
    return lines
