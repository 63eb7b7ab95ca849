"""The agent's private /tmp: tell its patterns from those of real paths below /tmp."""

from functools import lru_cache

from retinue.domain.rules import Globs, literal_components

TMP = "/tmp"  # noqa: S108  (the path under which an agent sees its private folder)
_TMP_COMPONENTS = ("tmp",)


def is_under_tmp(path: str) -> bool:
    return path == TMP or path.startswith(f"{TMP}/")


@lru_cache(maxsize=1024)
def without_private_tmp(patterns: Globs) -> Globs:
    """Return the patterns that refer to the machine's files.

    `/tmp/**` and similar patterns mean only the agent's private folder; files of other programs in /tmp stay
    out of reach.
    """
    return tuple(pattern for pattern in patterns if literal_components(pattern) != _TMP_COMPONENTS)


def is_named_tmp_path(path: str, root: str, patterns: Globs) -> bool:
    """Return True if a path below /tmp is in the workspace, or in a path that a pattern names beyond /tmp."""
    return any(
        path == named_path or path.startswith(f"{named_path}/")
        for named_path in _named_tmp_paths(root, patterns)
    )


@lru_cache(maxsize=1024)
def _named_tmp_paths(root: str, patterns: Globs) -> tuple[str, ...]:
    paths = [
        "/" + "/".join(parts)
        for parts in map(literal_components, patterns)
        if parts[:1] == _TMP_COMPONENTS and parts != _TMP_COMPONENTS
    ]
    return (*((root,) if is_under_tmp(root) else ()), *paths)
