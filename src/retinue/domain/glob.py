"""Globs: one small language for paths, tools, capabilities and agents, compiled once per pattern.

`**` is anything, `/` included; `*` is anything within one component; `?` is one character of a
component; `[ab]`, `[a-z]` and `[!ab]` are classes; a backslash takes the next character literally. A pattern is
anchored at both ends, a leading dot is a character like any other, and `X/**` covers X itself.
"""

import re
from functools import lru_cache

MAX_PATTERN = 1024


@lru_cache(maxsize=4096)
def compiled(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Never fails: a pattern that is too long or damaged matches only itself, letter by letter."""
    if len(pattern) > MAX_PATTERN:
        return re.compile(re.escape(pattern) + r"\Z")
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    return re.compile(_translated(pattern) + r"\Z", flags)


def matches(pattern: str, value: str, *, ignore_case: bool = False) -> bool:
    return compiled(pattern, ignore_case=ignore_case).match(value) is not None


def first_match(patterns: tuple[str, ...], value: str, *, ignore_case: bool = False) -> str | None:
    """The pattern that decides, so that a verdict can name it."""
    for pattern in patterns:
        if compiled(pattern, ignore_case=ignore_case).match(value):
            return pattern
    return None


def _translated(pattern: str) -> str:
    """Runs of stars are folded, so that no pattern can make the matcher crawl."""
    pieces: list[str] = []
    at = 0
    while at < len(pattern):
        piece, at = _piece(pattern, at)
        if pieces and piece in _STARS and pieces[-1] in _STARS:
            pieces[-1] = _ANY if _ANY in (piece, pieces[-1]) else piece
        else:
            pieces.append(piece)
    return "".join(pieces)


_ANY = ".*"
_WITHIN = "[^/]*"
_STARS = (_ANY, _WITHIN)


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """One piece of the regular expression, and where the next one starts."""
    char = pattern[at]
    if pattern.startswith("/**/", at):
        return "/(?:.*/)?", at + 4
    if pattern.startswith("/**", at) and at + 3 == len(pattern):
        return "(?:/.*)?", at + 3
    if at == 0 and pattern.startswith("**/"):
        return "(?:.*/)?", 3
    if pattern.startswith("**", at):
        return _ANY, at + 2
    if char == "*":
        return _WITHIN, at + 1
    if char == "?":
        return "[^/]", at + 1
    if char == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    if char == "[":
        return _class(pattern, at)
    return re.escape(char), at + 1


def _class(pattern: str, at: int) -> tuple[str, int]:
    """A bracket without its partner is a bracket."""
    start = at + 1
    negated = pattern.startswith("!", start) or pattern.startswith("^", start)
    first = start + 1 if negated else start
    end = pattern.find("]", first + 1)
    if end < 0:
        return re.escape("["), at + 1
    inside = (
        pattern[first:end].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^").replace("]", "\\]")
    )
    piece = f"(?!/)[{'^' if negated else ''}{inside}]"
    try:
        re.compile(piece)
    except re.error:
        return re.escape("["), at + 1
    return piece, end + 1
