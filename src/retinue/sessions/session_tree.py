"""Where sessions lie below a root, and what must stay as it is for them to stay there."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH112, PTH118

import os
from collections.abc import Callable, Iterator

from retinue.storage import file_names

_DEEPEST = 16

Look = Callable[[str], object]
"""Is told each path whose change could change what is found there, before it is looked at. Some are missing: then the
folder above was told too."""


def _unwatched(_path: str) -> None:
    """Nobody wants to know."""


def tops(root: str) -> list[str]:
    """The names of the folders that may be top-level sessions, in order."""
    return _names(root)


def walk(root: str) -> Iterator[str]:
    """Every session folder below the root: branches, and the agents of each, and theirs."""
    for name in tops(root):
        yield from family(os.path.join(root, name))


def family(top: str, look: Look = _unwatched) -> Iterator[str]:
    """The session folders of a top-level session. A folder with a conversation of its own directly below the root is
    no such session."""
    if os.path.lexists(os.path.join(top, file_names.SESSION)):
        look(top)
        return
    yield from within(top, look)


def within(path: str, look: Look = _unwatched) -> Iterator[str]:
    """The session folders in one session's folder, itself included."""
    if os.path.lexists(os.path.join(path, file_names.SESSION)):
        yield path
        yield from _agents(path, 0, look)
        return
    inside = os.path.join(path, file_names.BRANCHES)
    if not os.path.isdir(inside):
        look(path)
    for branch in _sessions(inside, look):
        yield branch
        yield from _agents(branch, 0, look)


def children(path: str, look: Look = _unwatched) -> Iterator[str]:
    """The folders of a session's own children."""
    return _sessions(os.path.join(path, file_names.AGENTS), look)


def current(top: str) -> str | None:
    """The branch folder that `current` names; main when the link is gone."""
    for name in (file_names.CURRENT, os.path.join(file_names.BRANCHES, file_names.MAIN)):
        branch = os.path.realpath(os.path.join(top, name))
        if os.path.lexists(os.path.join(branch, file_names.SESSION)):
            return branch
    return None


def _agents(path: str, depth: int, look: Look) -> Iterator[str]:
    if depth > _DEEPEST:
        return
    for child in children(path, look):
        yield child
        yield from _agents(child, depth + 1, look)


def _sessions(inside: str, look: Look) -> Iterator[str]:
    look(inside)
    for name in _names(inside):
        path = os.path.join(inside, name)
        look(path)
        if os.path.lexists(os.path.join(path, file_names.SESSION)):
            look(os.path.join(path, file_names.SESSION))
            yield path


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(
                each.name
                for each in found
                if file_names.listed(each.name) and each.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
