"""Find the lines of a text that are most similar to a text that was not found."""

import difflib

from retinue.tools.text_format import clip_line

LINES_COMPARED = 5_000
LINES_SHOWN = 8
_COMPARED_CHARS = 160
_MIN_SIMILARITY = 0.6


def nearest_lines_hint(text: str, wanted: str) -> str:
    """Return a hint with the most similar lines and their numbers; empty for a blank text."""
    lines = text.split("\n")
    wanted_lines = [line for line in wanted.split("\n") if line.strip()]
    if not wanted_lines:
        return ""
    index = _match_ignoring_whitespace(lines, wanted_lines[0])
    if index is not None:
        heading = "These lines differ only in whitespace:"
    elif (index := _most_similar_line(lines, wanted_lines[0])) is not None:
        heading = "The most similar lines are:"
    else:
        return " Read the file again: no line is similar to the first line of old."
    last = min(len(lines), index + min(wanted.strip("\n").count("\n") + 1, LINES_SHOWN))
    return "\n".join(
        [f" {heading}", *(f"{each + 1}: {_clip_line(lines[each])}" for each in range(index, last))]
    )


def _match_ignoring_whitespace(lines: list[str], wanted: str) -> int | None:
    compact = "".join(wanted.split())
    return next((index for index, line in enumerate(lines) if compact in "".join(line.split())), None)


def _most_similar_line(lines: list[str], wanted: str) -> int | None:
    """Return the most similar of the first lines.

    Each is compared only up to a fixed width, to bound the time.
    """
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted.strip()[:_COMPARED_CHARS])
    best, best_index = _MIN_SIMILARITY, None
    for index, line in enumerate(lines[:LINES_COMPARED]):
        matcher.set_seq1(line.strip()[:_COMPARED_CHARS])
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, best_index = ratio, index
    return best_index


def _clip_line(line: str) -> str:
    return clip_line(line.rstrip("\r"))
