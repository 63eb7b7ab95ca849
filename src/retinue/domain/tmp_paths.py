"""The agent's own /tmp: which patterns mean it, and which name a place of the machine below /tmp instead."""

from functools import lru_cache

from retinue.domain.rules import Globs, named

TMP = "/tmp"  # noqa: S108  (the name by which an agent knows its private folder)
_OWN = ("tmp",)


def inside(name: str) -> bool:
    return name == TMP or name.startswith(f"{TMP}/")


@lru_cache(maxsize=1024)
def elsewhere(patterns: Globs) -> Globs:
    """Those that speak of the machine's files. `/tmp/**` and its like mean the agent's own folder, and that alone:
    what other programs keep in /tmp is not reached by them."""
    return tuple(pattern for pattern in patterns if named(pattern) != _OWN)


def is_a_place(name: str, root: str, patterns: Globs) -> bool:
    """Whether a name below /tmp lies where the workspace is, or where a pattern says more than /tmp outright."""
    return any(name == place or name.startswith(f"{place}/") for place in _places(root, patterns))


@lru_cache(maxsize=1024)
def _places(root: str, patterns: Globs) -> tuple[str, ...]:
    found = ["/" + "/".join(parts) for parts in map(named, patterns) if parts[:1] == _OWN and parts != _OWN]
    return (*((root,) if inside(root) else ()), *found)
