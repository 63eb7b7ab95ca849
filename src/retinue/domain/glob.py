"""Globs: one small language for paths, tools, capabilities and agents, compiled once per pattern.

`**` is anything, `/` included; `*` is anything within one component; `?` is one character of a
component; `[ab]`, `[a-z]` and `[!ab]` are classes; a backslash takes the next character literally. A pattern is
anchored at both ends, a leading dot is a character like any other, `**/` as a whole component is any number of
folders or none, and `X/**` covers X itself.
"""

import re
from functools import lru_cache

MAX_PATTERN = 1024
"""The longest pattern that a tool takes from a model."""

LONGEST = 10_000
"""Longer than any path with each of its characters escaped: a folder of ours is always a pattern."""


@lru_cache(maxsize=4096)
def compiled(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Never fails: a pattern that is too long or damaged matches only itself, letter by letter."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    if len(pattern) > LONGEST:
        return re.compile(re.escape(pattern) + r"\Z", flags)
    return re.compile(_translated(pattern) + r"\Z", flags)


def matches(pattern: str, value: str, *, ignore_case: bool = False) -> bool:
    return compiled(pattern, ignore_case=ignore_case).match(value) is not None


def first_match(patterns: tuple[str, ...], value: str, *, ignore_case: bool = False) -> str | None:
    """The pattern that decides, so that a verdict can name it. Mostly none does, and that is found out in one go."""
    if not patterns or not _together(patterns, ignore_case=ignore_case).match(value):
        return None
    for pattern in patterns:
        if compiled(pattern, ignore_case=ignore_case).match(value):
            return pattern
    return None


@lru_cache(maxsize=1024)
def _together(patterns: tuple[str, ...], *, ignore_case: bool) -> re.Pattern[str]:
    """Matches what any of them matches. Those that begin in any folder share that beginning: one pass for all."""
    each = [compiled(pattern, ignore_case=ignore_case).pattern for pattern in patterns]
    anywhere = [one.removeprefix(_FOLDERS) for one in each if one.startswith(_FOLDERS)]
    ways = [one for one in each if not one.startswith(_FOLDERS)]
    if anywhere:
        ways.append(f"{_FOLDERS}(?:{'|'.join(anywhere)})")
    return re.compile("|".join(ways) or r"(?!)", re.DOTALL | (re.IGNORECASE if ignore_case else 0))


_WITHIN = "[^/]*?"
_ANY = ".*?"
_FOLDERS = "(?:.*?/)??"
_TAIL = "(?:/.*)?"
_WILD = (_WITHIN, _FOLDERS, _ANY)

_TAIL_TEXT = re.compile(r"(?:/\*\*+)+\Z")
_MEMBER = re.compile(r"(.)-(.)|(.)", re.DOTALL)


def _translated(pattern: str) -> str:
    """No pattern can make the matcher crawl. A wild piece takes the earliest place where what follows it fits,
    and is not reconsidered once a piece comes that is at least as wild: that one takes in any difference."""
    done, group, chunk = "", "", ""
    for piece in _folded(pattern):
        if piece == _WITHIN:
            group, chunk = group + _settled(chunk), piece
        elif piece in _WILD:
            done, group, chunk = done + _settled(group + _settled(chunk)), piece, ""
        else:
            chunk += piece
    return done + group + chunk


def _settled(part: str) -> str:
    return f"(?>{part})" if part.startswith(_WILD) else part


def _folded(pattern: str) -> list[str]:
    """Two wild neighbours of one kind are one; of two kinds, they are anything."""
    pieces: list[str] = []
    at = 0
    while at < len(pattern):
        piece, at = _piece(pattern, at)
        if pieces and piece in _WILD and pieces[-1] in _WILD:
            pieces[-1] = piece if piece == pieces[-1] else _ANY
        else:
            pieces.append(piece)
    return pieces


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """One piece of the regular expression, and where the next one starts."""
    char = pattern[at]
    if char == "/" and _TAIL_TEXT.match(pattern, at):
        return _TAIL, len(pattern)
    if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
        return _FOLDERS, at + 3
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
    """A bracket without its partner, or with a range that runs backwards, is a bracket."""
    negated = pattern.startswith(("!", "^"), at + 1)
    first = at + 2 if negated else at + 1
    end = pattern.find("]", first + 1)
    members: list[tuple[str, str, str]] = _MEMBER.findall(pattern[first:end]) if end > 0 else []
    if not members or any(low > high for low, high, _ in members):
        return re.escape("["), at + 1
    inside = "".join(
        re.escape(one) if one else f"{re.escape(low)}-{re.escape(high)}" for low, high, one in members
    )
    return f"(?!/)[{'^' if negated else ''}{inside}]", end + 1
