"""File patterns as models write them: the glob syntax of scopes, plus `{a,b}` alternatives."""

import re
from collections.abc import Callable

from retinue.domain.glob import MAX_PATTERN_CHARS, compile_glob
from retinue.errors import Failed

MAX_ALTERNATIVES = 64

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_GLOB_CHARACTER = re.compile(r"[*?\[\\{]")


def compile_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a path in the searched folder matches the pattern."""
    globs = [compile_glob(candidate) for candidate in expand_braces(pattern)]

    def matches(path: str) -> bool:
        return any(candidate.match(path) for candidate in globs)

    return matches


def expand_braces(pattern: str) -> list[str]:
    """Expand braces: `*.{py,toml}` becomes `*.py` and `*.toml`."""
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise Failed(f"The pattern must have 1 to {MAX_PATTERN_CHARS:,} characters.")
    expanded: list[str] = []
    pending = [pattern]
    while pending:
        candidate = pending.pop(0)
        braces = _BRACES.search(candidate)
        if braces is None:
            expanded.append(candidate)
        else:
            pending += [
                candidate[: braces.start()] + word + candidate[braces.end() :]
                for word in braces[1].split(",")
            ]
        if len(expanded) + len(pending) > MAX_ALTERNATIVES:
            raise Failed(f"The pattern has more than {MAX_ALTERNATIVES} alternatives. Use fewer braces.")
    return expanded


def split_literal_folder(pattern: str) -> tuple[str, str]:
    """Split a pattern into its literal folder and the rest: only that folder must be searched."""
    glob_start = _GLOB_CHARACTER.search(pattern)
    end = pattern.rfind("/", 0, glob_start.start() if glob_start else len(pattern))
    return (pattern[:end], pattern[end + 1 :]) if end > 0 else ("", pattern)
