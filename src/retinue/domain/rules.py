"""Allow and deny globs, and verdicts that name the deciding rule."""

from functools import lru_cache

from msgspec import Struct

from retinue.domain.glob import first_match

Globs = tuple[str, ...]


class Verdict(Struct, frozen=True, kw_only=True):
    ok: bool
    rule: str
    """The deciding rule, in words."""


UNRESTRICTED_VERDICT = Verdict(ok=True, rule="no list")


class Rule(Struct, frozen=True, kw_only=True):
    """Allow and deny globs of one kind. No allow list: no restriction. Deny wins."""

    allow: Globs | None = None
    deny: Globs = ()

    def check(self, value: str) -> Verdict:
        match = first_match(self.deny, value)
        if match is not None:
            return Verdict(ok=False, rule=f"deny {match}")
        if self.allow is None:
            return UNRESTRICTED_VERDICT
        match = first_match(self.allow, value)
        return Verdict(ok=match is not None, rule=f"allow {match}" if match else "nothing allows it")

    def allows(self, value: str) -> bool:
        return self.check(value).ok

    def sorted_patterns(self) -> list[list[str] | None]:
        """Return the patterns for hashing; their order does not matter."""
        return [None if self.allow is None else sorted(self.allow), sorted(self.deny)]


def absolute_patterns(patterns: Globs, root: str) -> Globs:
    """Make patterns absolute.

    A pattern that starts with neither / nor ** is relative to the workspace; one that ends in / covers a
    folder and everything in it.
    """
    return tuple(_absolute_pattern(pattern, root) for pattern in patterns)


def _absolute_pattern(pattern: str, root: str) -> str:
    if pattern == ".":
        return escape_glob(root)
    if not pattern.startswith(("/", "**")):
        pattern = f"{escape_glob(root).rstrip('/')}/{pattern.removeprefix('./')}"
    return f"{pattern}**" if pattern.endswith("/") else pattern


def subtree_pattern(root: str) -> str:
    """Return the pattern for a folder and everything in it."""
    return "/**" if root == "/" else f"{escape_glob(root)}/**"


@lru_cache(maxsize=4096)
def escape_glob(path: str) -> str:
    """Escape a real path as a pattern that matches only itself: file names may hold `*` and `[`."""
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in path)


def literal_components(pattern: str) -> tuple[str, ...]:
    """Return the components of a pattern up to the first that contains a glob."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if (literal := unescape_component(part)) is None:
            break
        if literal:
            parts.append(literal)
    return tuple(parts)


def unescape_component(part: str) -> str | None:
    """Return one component without its backslashes, or None if it contains a glob."""
    literal: list[str] = []
    chars = iter(part)
    for char in chars:
        if char in "*?[":
            return None
        literal.append(next(chars, "\\") if char == "\\" else char)
    return "".join(literal)
