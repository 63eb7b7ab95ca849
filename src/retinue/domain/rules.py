"""Rules: allow and deny globs of one kind, and the verdict that names the one that decided."""

from functools import lru_cache

from retinue.domain.glob import first_match
from retinue.domain.value import value

Globs = tuple[str, ...]


@value
class Verdict:
    ok: bool
    rule: str
    """The rule that decided, in words."""


NO_LIST = Verdict(ok=True, rule="no list")


@value
class Rule:
    """Allow and deny globs of one kind. Absent allow: no restriction. Deny wins."""

    allow: Globs | None = None
    deny: Globs = ()

    def verdict(self, value: str) -> Verdict:
        hit = first_match(self.deny, value)
        if hit is not None:
            return Verdict(ok=False, rule=f"deny {hit}")
        if self.allow is None:
            return NO_LIST
        hit = first_match(self.allow, value)
        return Verdict(ok=hit is not None, rule=f"allow {hit}" if hit else "nothing allows it")

    def permits(self, value: str) -> bool:
        return self.verdict(value).ok

    def facts(self) -> list[list[str] | None]:
        """What a hash is made of: the order of a list says nothing."""
        return [None if self.allow is None else sorted(self.allow), sorted(self.deny)]


def absolute(patterns: Globs, root: str) -> Globs:
    """A pattern that starts neither with / nor with ** is relative to the workspace; one that ends in / is a
    folder and all that is in it."""
    return tuple(_absolute(pattern, root) for pattern in patterns)


def _absolute(pattern: str, root: str) -> str:
    if pattern == ".":
        return literal(root)
    if not pattern.startswith(("/", "**")):
        pattern = f"{literal(root).rstrip('/')}/{pattern.removeprefix('./')}"
    return f"{pattern}**" if pattern.endswith("/") else pattern


def below(root: str) -> str:
    """The pattern of a folder and all that is in it."""
    return "/**" if root == "/" else f"{literal(root)}/**"


@lru_cache(maxsize=4096)
def literal(path: str) -> str:
    """A real path as a pattern that means only itself: file names may hold `*` and `[`."""
    return "".join(f"\\{char}" if char in "*?[\\" else char for char in path)


def named(pattern: str) -> tuple[str, ...]:
    """The components that a pattern names outright, up to the first that holds a glob."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if (plain := unescaped(part)) is None:
            break
        if plain:
            parts.append(plain)
    return tuple(parts)


def unescaped(part: str) -> str | None:
    """One component without its backslashes, or None if it holds a glob."""
    out: list[str] = []
    chars = iter(part)
    for char in chars:
        if char in "*?[":
            return None
        out.append(next(chars, "\\") if char == "\\" else char)
    return "".join(out)
