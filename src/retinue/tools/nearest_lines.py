"""The lines of a text that come nearest to one that was looked for and is not there."""

import difflib

from retinue.tools.output_text import shown_line

LINES_COMPARED = 5_000
LINES_SHOWN = 8
_WIDTH = 160
_LIKE = 0.6


def nearest(text: str, wanted: str) -> str:
    """A sentence and the lines themselves with their numbers; blank when nothing is like it."""
    lines = text.split("\n")
    asked = [line for line in wanted.split("\n") if line.strip()]
    if not asked:
        return ""
    at = _same_but_for_blanks(lines, asked[0])
    if at is not None:
        said = "The blanks differ from these lines:"
    elif (at := _alike(lines, asked[0])) is not None:
        said = "The nearest lines are:"
    else:
        return " Read it again: no line is like the first one of old."
    last = min(len(lines), at + min(wanted.strip("\n").count("\n") + 1, LINES_SHOWN))
    return "\n".join([f" {said}", *(f"{each + 1}: {_shown(lines[each])}" for each in range(at, last))])


def _same_but_for_blanks(lines: list[str], wanted: str) -> int | None:
    flat = "".join(wanted.split())
    return next((at for at, line in enumerate(lines) if flat in "".join(line.split())), None)


def _alike(lines: list[str], wanted: str) -> int | None:
    """The best of the first lines, none of them compared beyond its width: a file cannot make this crawl."""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted.strip()[:_WIDTH])
    best, found = _LIKE, None
    for at, line in enumerate(lines[:LINES_COMPARED]):
        matcher.set_seq1(line.strip()[:_WIDTH])
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, found = ratio, at
    return found


def _shown(line: str) -> str:
    return shown_line(line.rstrip("\r"))
