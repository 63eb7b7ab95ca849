"""edit: replace text in a file and leave everything else unchanged."""

import asyncio
import hashlib
import re
from typing import Annotated
from weakref import WeakKeyDictionary

from msgspec import Struct

from retinue.domain.io_results import FileContent
from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call, ScopedFiles
from retinue.tools.define import tool
from retinue.tools.nearest_lines import nearest_lines_hint
from retinue.tools.text_format import clip_line, format_size, is_binary, printable_name, workspace_path
from retinue.tools.write import encode_text

MAX_FILE_BYTES = 8_000_000
MAX_MATCHES = 10_000
MATCHES_SHOWN = 3
LINES_SHOWN = 12
_LINE_NUMBERS_SHOWN = 10

ALREADY_EDITED = "{name} was already edited as requested; the process ended before it could report that."

_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

_LINE_ENDING = re.compile(r"\r?\n")
_BARE_NEWLINE = re.compile(r"(?<!\r)\n")


@tool(effect=Effect.ONCE, category="files", access=("write", "path"), can_verify_completion=True)
async def edit(
    call: Call,
    path: Annotated[str, "The file, relative to the workspace or absolute."],
    old: Annotated[str, "The text to replace, exactly as in the file, with enough context to be unique."],
    new: Annotated[str, "The replacement; empty to delete the text."],
    all: Annotated[bool, "Replace all occurrences."] = False,  # noqa: A002  (the tool's argument name)
) -> str:
    """Replace a part of a text file. `old` must occur in the file exactly once, unless all=true. Line endings and
    file permissions are preserved. Read the file first; use write to create a new one."""
    replacement = Replacement(old=old, new=new, replace_all=all)
    async with _edit_lock():
        original = await asyncio.to_thread(_read_original, call.files, path, replacement)
        if call.recorded_intent and original.digest == call.recorded_intent:
            return ALREADY_EDITED.format(name=printable_name(path))
        edited = await asyncio.to_thread(_edit_file, original, replacement)
        await call.record_intent(_sha256(edited.data))
        await asyncio.to_thread(call.files.write, path, edited.data, expected=original.content.data)
    return _edit_summary(
        workspace_path(original.content.real_path, call.session.workspace.root), original.text, edited.edits
    )


class Replacement(Struct, frozen=True, kw_only=True):
    old: str
    new: str
    replace_all: bool = False


class OriginalFile(Struct, frozen=True, kw_only=True):
    """The file as it was read."""

    content: FileContent
    text: str
    name: str

    @property
    def digest(self) -> str:
        return _sha256(self.content.data)


class EditedFile(Struct, frozen=True, kw_only=True):
    data: bytes
    edits: "list[TextEdit]"


class TextEdit(Struct, frozen=True, kw_only=True):
    """Replacement of one range of a text."""

    start: int
    end: int
    new: str


def _edit_lock() -> asyncio.Lock:
    """Return the edit lock: several edits of a file in one reply build on each other, in any order."""
    return _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_original(files: ScopedFiles, path: str, replacement: Replacement) -> OriginalFile:
    if not replacement.old:
        raise Failed("old is empty. Give the text to replace, or use write for a whole file.")
    if replacement.old == replacement.new:
        raise Failed("old and new are the same: nothing would change.")
    content = files.read(path, max_bytes=MAX_FILE_BYTES)
    name = printable_name(path)
    if content.size > len(content.data):
        raise Failed(
            f"{name} is {format_size(content.size)}. Only files up to {format_size(MAX_FILE_BYTES)} can be edited."
        )
    return OriginalFile(content=content, text=_decode_text(content.data, name), name=name)


def _edit_file(original: OriginalFile, replacement: Replacement) -> EditedFile:
    edits = find_edits(original.text, replacement, original.name)
    changed = apply_edits(original.text, edits)
    if changed == original.text:
        raise Failed(
            f"old and new differ only in line endings, and {original.name} keeps its own: nothing would change."
        )
    return EditedFile(data=encode_text(changed), edits=edits)


def _decode_text(data: bytes, name: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Failed(f"{name} is not UTF-8 (byte {error.start:,}). Nothing was changed.") from error
    if is_binary(data):
        raise Failed(f"{name} is not text. Nothing was changed.")
    return text


def find_edits(text: str, replacement: Replacement, name: str) -> list[TextEdit]:
    """Find where the old text occurs, also with the line endings of the file."""
    for old in _line_ending_variants(text, replacement.old):
        starts = _find_all(text, old)
        if starts and not replacement.replace_all:
            _check_unique(text, old, starts[0], name)
        if starts:
            return [_text_edit(text, start, old, replacement.new) for start in starts]
    raise Failed(
        f"old was not found in {name}. Nothing was changed.{nearest_lines_hint(text, replacement.old)}"
    )


def apply_edits(text: str, edits: list[TextEdit]) -> str:
    parts: list[str] = []
    position = 0
    for text_edit in edits:
        parts += (text[position : text_edit.start], text_edit.new)
        position = text_edit.end
    return "".join([*parts, text[position:]])


def _line_ending_variants(text: str, old: str) -> list[str]:
    """Return the text as given, then with the other line endings."""
    variants = [old]
    if "\r\n" in text:
        variants.append(_BARE_NEWLINE.sub("\r\n", old))
    if "\r" in old:
        variants.append(old.replace("\r\n", "\n"))
    return list(dict.fromkeys(variants))


def _find_all(text: str, old: str) -> list[int]:
    positions: list[int] = []
    position = text.find(old)
    while position >= 0:
        positions.append(position)
        if len(positions) > MAX_MATCHES:
            raise Failed(f"old occurs more than {MAX_MATCHES:,} times. Include more context.")
        position = text.find(old, position + len(old))
    return positions


def _check_unique(text: str, old: str, first: int, name: str) -> None:
    """Fail if the text occurs more than once.

    Overlapping matches count too: it is not clear which one is meant.
    """
    lines: list[int] = []
    position, counted_to, line = first, 0, 1
    count = 0
    while position >= 0 and count <= MAX_MATCHES:
        line += text.count("\n", counted_to, position)
        counted_to = position
        count += 1
        if len(lines) < _LINE_NUMBERS_SHOWN:
            lines.append(line)
        position = text.find(old, position + 1)
    if count > 1:
        line_list = ", ".join(f"{each:,}" for each in lines) + (", …" if count > len(lines) else "")
        raise Failed(
            f"old occurs {count:,} times in {name}, at lines {line_list}. Include more of the surrounding lines, "
            "or set all=true. Nothing was changed."
        )


def _text_edit(text: str, start: int, old: str, new: str) -> TextEdit:
    """Make one edit; the new text gets the line endings of its surroundings."""
    end = start + len(old)
    ending = _LINE_ENDING.search(old) or _LINE_ENDING.search(text, end) or _last_line_ending(text)
    if ending is not None:
        unix_text = new.replace("\r\n", "\n")
        new = _BARE_NEWLINE.sub("\r\n", unix_text) if ending[0] == "\r\n" else unix_text
    return TextEdit(start=start, end=end, new=new)


def _last_line_ending(text: str) -> re.Match[str] | None:
    newline = text.rfind("\n")
    return _LINE_ENDING.match(text, newline - (text[newline - 1 : newline] == "\r")) if newline >= 0 else None


def _edit_summary(name: str, text: str, edits: list[TextEdit]) -> str:
    """Summarise the edits as a diff."""
    count = len(edits)
    lines = [f"edited {name}: {'1 place' if count == 1 else f'{count:,} places'}"]
    counted_to, line_number = 0, 1
    for text_edit in edits[:MATCHES_SHOWN]:
        start = text.rfind("\n", 0, text_edit.start) + 1
        end = text.find("\n", max(text_edit.end - 1, start))
        end = len(text) if end < 0 else end
        line_number += text.count("\n", counted_to, start)
        counted_to = start
        new_lines = (
            text[start : text_edit.start] + text_edit.new + text[text_edit.end : max(end, text_edit.end)]
        )
        lines += [f"line {line_number:,}:", *_diff_lines("-", text[start:end]), *_diff_lines("+", new_lines)]
    if count > MATCHES_SHOWN:
        lines.append(f"[and {count - MATCHES_SHOWN:,} more]")
    return "\n".join(lines)


def _diff_lines(mark: str, text_part: str) -> list[str]:
    text_part = text_part.removesuffix("\n")
    if not text_part:
        return []
    lines = text_part.split("\n")
    diff = [f"{mark} {clip_line(line.rstrip())}".rstrip() for line in lines[:LINES_SHOWN]]
    omitted = len(lines) - LINES_SHOWN
    return [*diff, f"{mark} [{omitted:,} more lines]"] if omitted > 0 else diff
