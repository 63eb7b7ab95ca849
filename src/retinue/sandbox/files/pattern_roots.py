"""Roots of a scope's patterns: where a lookup starts and which folders are worth entering.

Everything here is computed from the patterns' text.
"""

import unicodedata
from functools import lru_cache

from msgspec import Struct

from retinue.domain.ceiling import FileAccess
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import unescape_component


class PatternRoot(Struct, frozen=True, kw_only=True):
    """Folder that a pattern names literally, and how many components may follow below it."""

    folder: tuple[str, ...]
    max_depth: int | None
    """None: any number."""


@lru_cache(maxsize=4096)
def pattern_root(pattern: str) -> PatternRoot:
    """Return a pattern's root. For a pattern without a glob it is the folder of the named file."""
    parts = [part for part in pattern.split("/") if part]
    folder: list[str] = []
    for part in parts[:-1]:
        literal_part = unescape_component(part)
        if literal_part is None:
            break
        folder.append(literal_part)
    remaining = parts[len(folder) :]
    is_unbounded = any("**" in part for part in remaining)
    return PatternRoot(folder=tuple(folder), max_depth=None if is_unbounded else len(remaining))


def path_components(path: str) -> tuple[str, ...]:
    """Split a path. `..` stays: only the kernel can resolve it."""
    return tuple(part for part in path.split("/") if part not in ("", "."))


def lookup_root(scope: Scope, parts: tuple[str, ...], access: FileAccess = "read") -> tuple[str, ...] | None:
    """Return the folder in which a lookup starts, or None.

    It is the workspace if the path stays below it as text, else the longest folder that a pattern names
    around it. Opened files are checked by their real path.
    """
    root = path_components(scope.root)
    if _stays_below(parts, root):
        return root
    patterns = (*scope.patterns_for(access, "/" + "/".join(parts)), *scope.own_git_patterns)
    enclosing = [found.folder for found in map(pattern_root, patterns) if _stays_below(parts, found.folder)]
    return max(enclosing, key=len, default=root if parts[: len(root)] == root else None)


def _stays_below(parts: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    """Return whether a path begins with this folder and does not climb out of it again, as text."""
    if parts[: len(folder)] != folder:
        return False
    depth = 0
    for part in parts[len(folder) :]:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def can_contain_readable(scope: Scope, real: str) -> bool:
    """Return whether a path below this folder can be readable: not denied, and matched by a pattern."""
    if is_denied(scope, real):
        return False
    parts = path_components(real)
    return any(_reaches_folder(found, parts) for found in map(pattern_root, scope.patterns_for("read", real)))


def is_denied(scope: Scope, real: str) -> bool:
    return any(scope.closing_rule(form) is not None for form in unicode_forms(real))


def is_readable(scope: Scope, real: str) -> bool:
    return refusing_rule(scope, real, "read") is None


def refusing_rule(scope: Scope, real: str, access: FileAccess) -> str | None:
    """Return the rule that refuses a name, or None.

    The name may be allowed in any of its Unicode forms, and must be denied in none.
    """
    verdicts = [scope.check_path(form, access) for form in unicode_forms(real)]
    rule = next((each.rule for each in verdicts if not each.ok), None)
    if rule is None or len(verdicts) == 1:
        return rule
    return None if any(each.ok for each in verdicts) and not is_denied(scope, real) else rule


def unicode_forms(real: str) -> tuple[str, ...]:
    """Return a name as written, composed and decomposed: a rule may be written in either form."""
    if real.isascii():
        return (real,)
    return (real, unicodedata.normalize("NFC", real), unicodedata.normalize("NFD", real))


def _reaches_folder(root: PatternRoot, parts: tuple[str, ...]) -> bool:
    folder = root.folder
    if len(parts) <= len(folder):
        return folder[: len(parts)] == parts
    return parts[: len(folder)] == folder and (
        root.max_depth is None or len(parts) - len(folder) < root.max_depth
    )
