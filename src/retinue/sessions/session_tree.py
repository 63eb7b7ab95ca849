"""Find session folders below a root, and report the paths whose change would change the result."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH112, PTH118

import os
from collections.abc import Callable, Iterator

from retinue.storage import file_names

_MAX_DEPTH = 16

PathCallback = Callable[[str], object]
"""Called with each path that could change the result, before the path is read.

For a missing path the callback has already seen its parent folder.
"""


def _ignore_path(_path: str) -> None:
    """Ignore the path."""


def top_level_names(root: str) -> list[str]:
    """Return the names of folders that may be top-level sessions, in order."""
    return _folder_names(root)


def walk_sessions(root: str) -> Iterator[str]:
    """Yield every session folder below the root: branches, their agents, and agents of agents."""
    for name in top_level_names(root):
        yield from walk_session_tree(os.path.join(root, name))


def walk_session_tree(top: str, on_path: PathCallback = _ignore_path) -> Iterator[str]:
    """Yield the session folders of a top-level session.

    A folder directly below the root with a session.md of its own is not a top-level session.
    """
    if os.path.lexists(os.path.join(top, file_names.SESSION)):
        on_path(top)
        return
    yield from walk_subtree(top, on_path)


def walk_subtree(path: str, on_path: PathCallback = _ignore_path) -> Iterator[str]:
    """Yield the session folders in one session's folder, including itself."""
    if os.path.lexists(os.path.join(path, file_names.SESSION)):
        yield path
        yield from _walk_agents(path, 0, on_path)
        return
    parent = os.path.join(path, file_names.BRANCHES)
    if not os.path.isdir(parent):
        on_path(path)
    for branch in _session_folders(parent, on_path):
        yield branch
        yield from _walk_agents(branch, 0, on_path)


def child_folders(path: str, on_path: PathCallback = _ignore_path) -> Iterator[str]:
    """Yield the folders of a session's own children."""
    return _session_folders(os.path.join(path, file_names.AGENTS), on_path)


def branch_folders(top: str) -> Iterator[str]:
    """Yield the folders of a top-level session's branches."""
    return _session_folders(os.path.join(top, file_names.BRANCHES), _ignore_path)


def current_branch(top: str) -> str | None:
    """Return the branch folder that `current` links to, or main if the link is missing."""
    for name in (file_names.CURRENT, os.path.join(file_names.BRANCHES, file_names.MAIN)):
        branch = os.path.realpath(os.path.join(top, name))
        if os.path.lexists(os.path.join(branch, file_names.SESSION)):
            return branch
    return None


def _walk_agents(path: str, depth: int, on_path: PathCallback) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    for child in child_folders(path, on_path):
        yield child
        yield from _walk_agents(child, depth + 1, on_path)


def _session_folders(parent: str, on_path: PathCallback) -> Iterator[str]:
    on_path(parent)
    for name in _folder_names(parent):
        path = os.path.join(parent, name)
        on_path(path)
        if os.path.lexists(os.path.join(path, file_names.SESSION)):
            for file in (file_names.SESSION, file_names.METADATA, file_names.PLAN):
                on_path(os.path.join(path, file))
            yield path


def _folder_names(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(
                each.name
                for each in found
                if file_names.is_listable(each.name) and each.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
