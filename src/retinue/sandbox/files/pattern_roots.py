"""How far a scope's patterns reach, read off their text alone: where a lookup starts and which folders are worth entering."""

import unicodedata
from functools import lru_cache

from retinue.domain.ceiling import Wish
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import unescaped
from retinue.domain.value import value


@value
class Reach:
    """The folder that a pattern names literally, and how many components may still follow below it."""

    anchor: tuple[str, ...]
    depth: int | None
    """None: any number."""


@lru_cache(maxsize=4096)
def reach(pattern: str) -> Reach:
    """A pattern with no glob at all reaches from the folder that holds the file it names."""
    parts = [part for part in pattern.split("/") if part]
    literal: list[str] = []
    for part in parts[:-1]:
        plain = unescaped(part)
        if plain is None:
            break
        literal.append(plain)
    left = parts[len(literal) :]
    deep = any("**" in part for part in left)
    return Reach(anchor=tuple(literal), depth=None if deep else len(left))


def components(path: str) -> tuple[str, ...]:
    """`..` stays: only the kernel knows what it means."""
    return tuple(part for part in path.split("/") if part not in ("", "."))


def anchor_of(scope: Scope, parts: tuple[str, ...], wish: Wish = "read") -> tuple[str, ...] | None:
    """The workspace if the path stays below it in words, else the longest folder that a pattern names around it. A
    lookup only starts there: what it opens is judged by its real name."""
    root = components(scope.root)
    if _stays_below(parts, root):
        return root
    patterns = scope.patterns(wish, "/" + "/".join(parts))
    around = [found.anchor for found in map(reach, patterns) if _stays_below(parts, found.anchor)]
    return max(around, key=len, default=root if parts[: len(root)] == root else None)


def _stays_below(parts: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    """Whether a path begins with this folder and does not climb out of it again, in words."""
    if parts[: len(folder)] != folder:
        return False
    depth = 0
    for part in parts[len(folder) :]:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def may_hold(scope: Scope, real: str) -> bool:
    """Whether something below this folder can be readable: neither denied nor out of every pattern's reach."""
    if is_denied(scope, real):
        return False
    parts = components(real)
    return any(_meets(found, parts) for found in map(reach, scope.patterns("read", real)))


def is_denied(scope: Scope, real: str) -> bool:
    return any(scope.shut(form) is not None for form in forms(real))


def is_readable(scope: Scope, real: str) -> bool:
    return objection(scope, real, "read") is None


def objection(scope: Scope, real: str, wish: Wish) -> str | None:
    """The rule that refuses a name, or None. It may be allowed in any of its forms, and must be denied in none."""
    verdicts = [scope.path(form, wish) for form in forms(real)]
    refused = next((each.rule for each in verdicts if not each.ok), None)
    if refused is None or len(verdicts) == 1:
        return refused
    return None if any(each.ok for each in verdicts) and not is_denied(scope, real) else refused


def forms(real: str) -> tuple[str, ...]:
    """One name as it stands and in both composed and decomposed form: a rule may be written in either."""
    if real.isascii():
        return (real,)
    return (real, unicodedata.normalize("NFC", real), unicodedata.normalize("NFD", real))


def _meets(found: Reach, parts: tuple[str, ...]) -> bool:
    anchor = found.anchor
    if len(parts) <= len(anchor):
        return anchor[: len(parts)] == parts
    return parts[: len(anchor)] == anchor and (found.depth is None or len(parts) - len(anchor) < found.depth)
