"""Globs for paths, tools, capabilities and agents, compiled once per pattern.

`**` matches anything, including `/`; `*` matches anything within one component; `?` matches one character of
a component; `[ab]`, `[a-z]` and `[!ab]` are classes; a backslash escapes the next character. A pattern is
anchored at both ends, a leading dot is not special, `**/` as a whole component matches any number of folders
or none, and `X/**` matches X itself.
"""

import re
from functools import lru_cache

MAX_PATTERN_CHARS = 1024
"""The longest pattern that a tool accepts from a model."""

MAX_COMPILED_CHARS = 10_000
"""Longer than any path with every character escaped, so the pattern of a real folder is always compiled."""


@lru_cache(maxsize=4096)
def compile_glob(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a pattern; never fails.

    A pattern that is too long or malformed matches only its own text.
    """
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    if len(pattern) > MAX_COMPILED_CHARS:
        return re.compile(re.escape(pattern) + r"\Z", flags)
    return re.compile(_translate_glob(pattern) + r"\Z", flags)


def matches(pattern: str, value: str, *, ignore_case: bool = False) -> bool:
    return compile_glob(pattern, ignore_case=ignore_case).match(value) is not None


def first_match(patterns: tuple[str, ...], value: str, *, ignore_case: bool = False) -> str | None:
    """Return the first pattern that matches, so that a verdict can name it.

    Usually none matches, so one combined expression is tried first.
    """
    if not patterns or not _compile_union(patterns, ignore_case=ignore_case).match(value):
        return None
    for pattern in patterns:
        if compile_glob(pattern, ignore_case=ignore_case).match(value):
            return pattern
    return None


@lru_cache(maxsize=1024)
def _compile_union(patterns: tuple[str, ...], *, ignore_case: bool) -> re.Pattern[str]:
    """Compile one expression that matches what any of the patterns matches.

    Patterns that start in any folder share that prefix, so they take one pass.
    """
    expressions = [compile_glob(pattern, ignore_case=ignore_case).pattern for pattern in patterns]
    anywhere = [
        expression.removeprefix(_ANY_FOLDERS)
        for expression in expressions
        if expression.startswith(_ANY_FOLDERS)
    ]
    alternatives = [expression for expression in expressions if not expression.startswith(_ANY_FOLDERS)]
    if anywhere:
        alternatives.append(f"{_ANY_FOLDERS}(?:{'|'.join(anywhere)})")
    return re.compile("|".join(alternatives) or r"(?!)", re.DOTALL | (re.IGNORECASE if ignore_case else 0))


_WITHIN_COMPONENT = "[^/]*?"
_ANYTHING = ".*?"
_ANY_FOLDERS = "(?:.*?/)??"
_OPTIONAL_SUBTREE = "(?:/.*)?"
_WILDCARDS = (_WITHIN_COMPONENT, _ANY_FOLDERS, _ANYTHING)

_SUBTREE_SUFFIX = re.compile(r"(?:/\*\*+)+\Z")
_CLASS_MEMBER = re.compile(r"(.)-(.)|(.)", re.DOTALL)


def _translate_glob(pattern: str) -> str:
    """Translate a pattern into an expression without catastrophic backtracking.

    A wildcard matches as little as possible. It is not retried once a wildcard at least as wide follows, because
    the later one can match any difference.
    """
    done, group, chunk = "", "", ""
    for piece in _parse_pieces(pattern):
        if piece == _WITHIN_COMPONENT:
            group, chunk = group + _make_atomic(chunk), piece
        elif piece in _WILDCARDS:
            done, group, chunk = done + _make_atomic(group + _make_atomic(chunk)), piece, ""
        else:
            chunk += piece
    return done + group + chunk


def _make_atomic(part: str) -> str:
    return f"(?>{part})" if part.startswith(_WILDCARDS) else part


def _parse_pieces(pattern: str) -> list[str]:
    """Split a pattern into pieces, merging adjacent wildcards.

    Two of one kind become one; two of different kinds match anything.
    """
    pieces: list[str] = []
    position = 0
    while position < len(pattern):
        piece, position = _parse_piece(pattern, position)
        if pieces and piece in _WILDCARDS and pieces[-1] in _WILDCARDS:
            pieces[-1] = piece if piece == pieces[-1] else _ANYTHING
        else:
            pieces.append(piece)
    return pieces


def _parse_piece(pattern: str, position: int) -> tuple[str, int]:
    """Return one piece of the regular expression and the position of the next one."""
    char = pattern[position]
    if char == "/" and _SUBTREE_SUFFIX.match(pattern, position):
        return _OPTIONAL_SUBTREE, len(pattern)
    if pattern.startswith("**/", position) and (position == 0 or pattern[position - 1] == "/"):
        return _ANY_FOLDERS, position + 3
    if pattern.startswith("**", position):
        return _ANYTHING, position + 2
    if char == "*":
        return _WITHIN_COMPONENT, position + 1
    if char == "?":
        return "[^/]", position + 1
    if char == "\\" and position + 1 < len(pattern):
        return re.escape(pattern[position + 1]), position + 2
    if char == "[":
        return _parse_class(pattern, position)
    return re.escape(char), position + 1


def _parse_class(pattern: str, position: int) -> tuple[str, int]:
    """Parse a character class; an unclosed bracket or a reversed range is a literal bracket."""
    negated = pattern.startswith(("!", "^"), position + 1)
    first = position + 2 if negated else position + 1
    end = pattern.find("]", first + 1)
    members: list[tuple[str, str, str]] = _CLASS_MEMBER.findall(pattern[first:end]) if end > 0 else []
    if not members or any(low > high for low, high, _ in members):
        return re.escape("["), position + 1
    inside = "".join(
        re.escape(one) if one else f"{re.escape(low)}-{re.escape(high)}" for low, high, one in members
    )
    return f"(?!/)[{'^' if negated else ''}{inside}]", end + 1
