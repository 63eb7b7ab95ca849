"""File patterns as models write them: the glob language of scopes, and `{a,b}` for either."""

import re
from collections.abc import Callable

from retinue.domain.glob import MAX_PATTERN, compiled
from retinue.errors import Failed

MAX_ALTERNATIVES = 64

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_GLOB = re.compile(r"[*?\[\\{]")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a path, relative to the folder that is searched, fits the whole pattern."""
    compiled_ones = [compiled(one) for one in alternatives(pattern)]

    def fits(path: str) -> bool:
        return any(one.match(path) for one in compiled_ones)

    return fits


def alternatives(pattern: str) -> list[str]:
    """`*.{py,toml}` is `*.py` and `*.toml`."""
    if not pattern or len(pattern) > MAX_PATTERN:
        raise Failed(f"the pattern must be between 1 and {MAX_PATTERN:,} characters long")
    done: list[str] = []
    todo = [pattern]
    while todo:
        one = todo.pop(0)
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            todo += [one[: braces.start()] + word + one[braces.end() :] for word in braces[1].split(",")]
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise Failed(f"the pattern has more than {MAX_ALTERNATIVES} alternatives: use fewer braces")
    return done


def split_literal(pattern: str) -> tuple[str, str]:
    """The folder that a pattern names outright, and the rest: only that folder need be walked."""
    at = _GLOB.search(pattern)
    end = pattern.rfind("/", 0, at.start() if at else len(pattern))
    return (pattern[:end], pattern[end + 1 :]) if end > 0 else ("", pattern)
