"""Restore deleted sessions that have not been swept yet."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH104, PTH118, PTH119, PTH120, PTH208

import os
from collections.abc import Iterator

from retinue.domain.session import DELETED_SESSION_RETENTION_DAYS, Session
from retinue.errors import Conflict, NotFound, UsageError
from retinue.sessions import folder, session_tree
from retinue.sessions.purge import purged_ids
from retinue.storage import file_names
from retinue.storage.file_io import MISSING_ERRNOS, fsync_path, move_error


def find_deleted_session(root: str, ref: str) -> str:
    """Find a deleted session's folder; of several with one name, the one deleted last."""
    if not ref.strip():
        raise UsageError("Name a deleted session by its id, slug or folder name.")
    for candidates in (_deleted_top_level(root), _deleted_children(root)):
        matches = [path for path in candidates if _is_match(path, ref)]
        if matches:
            return max(matches, key=_deletion_sort_key)
    raise NotFound(
        f"There is no deleted session {ref!r}. Deleted sessions are kept for {DELETED_SESSION_RETENTION_DAYS} days; use the id, slug or folder name."
    )


def find_deleted_file(root: str, path: str) -> str | None:
    """Return the current path of a file below the root whose folder, or a parent of it, was deleted.

    Returns None if the file no longer exists. Only folders on the way to the file are searched.
    """
    if os.path.lexists(path):
        return path
    parent, name = os.path.split(path)
    parent_now = find_deleted_file(root, parent) if parent.startswith(f"{root}/") or parent == root else None
    if parent_now is None:
        return None
    if os.path.lexists(os.path.join(parent_now, name)):
        return os.path.join(parent_now, name)
    deleted = [
        each
        for each in _deleted_folders(parent_now)
        if file_names.name_before_deletion(os.path.basename(each)) == name
    ]
    return max(deleted, key=_deletion_sort_key, default=None)


def sessions_in_folder(path: str) -> list[Session]:
    """Return the sessions that a folder would restore."""
    return [folder.load_session(each).session for each in session_tree.walk_subtree(path)]


def restore_folder(path: str) -> str:
    """Rename a deleted folder back to its original name and return that path."""
    original_path = file_names.name_before_deletion(path)
    if os.path.lexists(original_path):
        raise Conflict(f"{original_path} already exists. Rename or delete that session first.")
    try:
        os.rename(path, original_path)
        fsync_path(os.path.dirname(original_path))
    except OSError as error:
        raise move_error(path if error.errno in MISSING_ERRNOS else original_path, error) from error
    return original_path


def _is_match(path: str, ref: str) -> bool:
    name = os.path.basename(path)
    if ref in (name, path, file_names.name_before_deletion(name)):
        return True
    return ref in purged_ids(path) or any(
        ref in (each.id, each.slug, *each.aliases) for each in sessions_in_folder(path)
    )


def _deletion_sort_key(path: str) -> tuple[str, str]:
    return file_names.deletion_time(os.path.basename(path)) or "", path


def _deleted_top_level(root: str) -> Iterator[str]:
    return _deleted_folders(root)


def _deleted_children(root: str) -> Iterator[str]:
    """Yield deleted children of existing sessions."""
    for path in session_tree.walk_sessions(root):
        yield from _deleted_folders(os.path.join(path, file_names.AGENTS))


def _deleted_folders(path: str) -> Iterator[str]:
    try:
        folder_names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    yield from (
        os.path.join(path, name) for name in folder_names if file_names.deletion_time(name) is not None
    )
