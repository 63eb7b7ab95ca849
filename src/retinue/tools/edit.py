"""edit: one text in a file replaced by another, and everything else left as it stands."""

import asyncio
import hashlib
import re
from typing import Annotated
from weakref import WeakKeyDictionary

from retinue.domain.io_results import Opened
from retinue.domain.tool import Effect
from retinue.domain.value import value
from retinue.errors import Failed
from retinue.interfaces import Call, Files
from retinue.tools.define import tool
from retinue.tools.nearest_lines import nearest
from retinue.tools.output_text import is_binary, placed, shown_line, shown_name, size
from retinue.tools.write import encoded

MAX_FILE = 8_000_000
MAX_PLACES = 10_000
PLACES_SHOWN = 3
LINES_SHOWN = 12
_NUMBERS_SHOWN = 10

DONE = "{name} was changed as asked: the process ended before it could say so."

_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

_ENDING = re.compile(r"\r?\n")
_BARE = re.compile(r"(?<!\r)\n")


@tool(effect=Effect.ONCE, category="files", touches=("write", "path"), decides=True)
async def edit(
    call: Call,
    path: Annotated[str, "The file, relative to the workspace or absolute."],
    old: Annotated[
        str, "The text to replace, exactly as it stands in the file, with enough around it to be unique."
    ],
    new: Annotated[str, "The text to put in its place; empty to take it away."],
    all: Annotated[bool, "Replace it wherever it stands."] = False,  # noqa: A002  (the model's word)
) -> str:
    """Change a part of a text file. `old` must stand in the file exactly once, or give all=true. Line endings and
    the rights of the file stay as they are. Read the file first; use write to make a new one."""
    change = Change(old=old, new=new, everywhere=all)
    async with _in_turn():
        planned = await asyncio.to_thread(_planned, call.files, path, change)
        if call.recorded and planned.before == call.recorded:
            return DONE.format(name=shown_name(path))
        after = await asyncio.to_thread(_applied, planned, change)
        await call.record(_digest(after.data))
        await asyncio.to_thread(call.files.write, path, after.data, instead_of=planned.opened.data)
    return _told(placed(planned.opened.real, call.session.workspace.root), planned.text, after.pieces)


@value
class Change:
    old: str
    new: str
    everywhere: bool = False


@value
class Before:
    """The file as it was found."""

    opened: Opened
    text: str
    name: str

    @property
    def before(self) -> str:
        return _digest(self.opened.data)


@value
class After:
    data: bytes
    pieces: "list[Piece]"


@value
class Piece:
    """One place in a text, and what comes there."""

    start: int
    end: int
    new: str


def _in_turn() -> asyncio.Lock:
    """Several edits of one file in one reply build on each other, in whichever order they come."""
    return _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _planned(files: Files, path: str, change: Change) -> Before:
    if not change.old:
        raise Failed("old is empty: give the text that is to be replaced, or use write for a whole file")
    if change.old == change.new:
        raise Failed("old and new are the same: nothing would change")
    opened = files.read(path, max_bytes=MAX_FILE)
    name = shown_name(path)
    if opened.size > len(opened.data):
        raise Failed(f"{name} is {size(opened.size)}: only files up to {size(MAX_FILE)} can be edited")
    return Before(opened=opened, text=_decoded(opened.data, name), name=name)


def _applied(file: Before, change: Change) -> After:
    pieces = pieces_of(file.text, change, file.name)
    changed = applied(file.text, pieces)
    if changed == file.text:
        raise Failed(
            f"old and new differ only in line endings, and those of {file.name} stay: nothing would change"
        )
    return After(data=encoded(changed), pieces=pieces)


def _decoded(data: bytes, name: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Failed(f"{name} is not UTF-8 (byte {error.start:,}): it was left as it is") from error
    if is_binary(data):
        raise Failed(f"{name} is not text: it was left as it is")
    return text


def pieces_of(text: str, change: Change, name: str) -> list[Piece]:
    """Where the old text stands. Asked for with the other line endings, it is found with those the file has."""
    for old in _spellings(text, change.old):
        starts = _starts(text, old)
        if starts and not change.everywhere:
            _check_unique(text, old, starts[0], name)
        if starts:
            return [_piece(text, start, old, change.new) for start in starts]
    raise Failed(f"old does not stand in {name}: nothing was changed.{nearest(text, change.old)}")


def applied(text: str, pieces: list[Piece]) -> str:
    out: list[str] = []
    at = 0
    for piece in pieces:
        out += (text[at : piece.start], piece.new)
        at = piece.end
    return "".join([*out, text[at:]])


def _spellings(text: str, old: str) -> list[str]:
    """As it was given, then with the other line endings."""
    ways = [old]
    if "\r\n" in text:
        ways.append(_BARE.sub("\r\n", old))
    if "\r" in old:
        ways.append(old.replace("\r\n", "\n"))
    return list(dict.fromkeys(ways))


def _starts(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0:
        found.append(at)
        if len(found) > MAX_PLACES:
            raise Failed(f"old stands there more than {MAX_PLACES:,} times: give more of what is around it")
        at = text.find(old, at + len(old))
    return found


def _check_unique(text: str, old: str, first: int, name: str) -> None:
    """Places that overlap are two as well: which one is meant cannot be told."""
    lines: list[int] = []
    at, counted, line = first, 0, 1
    count = 0
    while at >= 0 and count <= MAX_PLACES:
        line += text.count("\n", counted, at)
        counted = at
        count += 1
        if len(lines) < _NUMBERS_SHOWN:
            lines.append(line)
        at = text.find(old, at + 1)
    if count > 1:
        where = ", ".join(f"{each:,}" for each in lines) + (", …" if count > len(lines) else "")
        raise Failed(
            f"old stands {count:,} times in {name}, at lines {where}: give more of the lines around the one you mean, "
            "or all=true. Nothing was changed"
        )


def _piece(text: str, start: int, old: str, new: str) -> Piece:
    """The new text gets the line endings of the place it comes to."""
    end = start + len(old)
    ending = _ENDING.search(old) or _ENDING.search(text, end) or _last_ending(text)
    if ending is not None:
        plain = new.replace("\r\n", "\n")
        new = _BARE.sub("\r\n", plain) if ending[0] == "\r\n" else plain
    return Piece(start=start, end=end, new=new)


def _last_ending(text: str) -> re.Match[str] | None:
    at = text.rfind("\n")
    return _ENDING.match(text, at - (text[at - 1 : at] == "\r")) if at >= 0 else None


def _told(name: str, text: str, pieces: list[Piece]) -> str:
    """What changed, as a reader of differences knows it."""
    count = len(pieces)
    lines = [f"edited {name}: {'1 place' if count == 1 else f'{count:,} places'}"]
    counted, number = 0, 1
    for piece in pieces[:PLACES_SHOWN]:
        start = text.rfind("\n", 0, piece.start) + 1
        stop = text.find("\n", max(piece.end - 1, start))
        stop = len(text) if stop < 0 else stop
        number += text.count("\n", counted, start)
        counted = start
        now = text[start : piece.start] + piece.new + text[piece.end : max(stop, piece.end)]
        lines += [f"line {number:,}:", *_marked("-", text[start:stop]), *_marked("+", now)]
    if count > PLACES_SHOWN:
        lines.append(f"[and {count - PLACES_SHOWN:,} more]")
    return "\n".join(lines)


def _marked(mark: str, part: str) -> list[str]:
    part = part.removesuffix("\n")
    if not part:
        return []
    lines = part.split("\n")
    shown = [f"{mark} {shown_line(line.rstrip())}".rstrip() for line in lines[:LINES_SHOWN]]
    more = len(lines) - LINES_SHOWN
    return [*shown, f"{mark} [{more:,} more lines]"] if more > 0 else shown
