"""Remove the files of purged sessions."""

# Paths are joined and listed by the thousand here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH104, PTH105, PTH108, PTH112, PTH114, PTH118, PTH120, PTH123, PTH202, PTH208

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress

from retinue.domain.purge import PurgeTarget
from retinue.sessions import folder
from retinue.storage import file_names
from retinue.storage.file_io import create_file, fsync_path, replace_file, write_error

_IDENTITY_FILES = frozenset(
    {file_names.PRESET, file_names.PLAN, file_names.METADATA, file_names.BRANCH_METADATA, file_names.SESSION}
)
"""What a cleared session keeps; its session.md is replaced by an empty file."""


def session_ids_below(path: str) -> frozenset[str]:
    """Return the ids of all sessions in a folder, including deleted ones."""
    return frozenset(folder.load_session(each).session.id for each in _session_folders(path))


def original_folder(root: str, path: str) -> str:
    """Return the path below the root that a folder had before it or a parent was deleted."""
    return "/".join(file_names.name_before_deletion(each) for each in os.path.relpath(path, root).split("/"))


def remove_folder(root: str, path: str, target: PurgeTarget, token: str) -> None:
    """Remove a deleted session's folder.

    A crash may leave any part of it, so the ids are listed in a file that goes last: by each of them, the purge can
    be repeated.
    """
    _remove_derived_files(root, target.session_ids)
    try:
        _list_ids(path, target, token)
        for name in os.listdir(path):
            if name != file_names.PURGED_IDS:
                _remove_any(os.path.join(path, name))
        # The folder's name may contain words of a task. Under its new name it is a leftover.
        emptied = os.path.join(os.path.dirname(path), f"{file_names.NEW_PREFIX}{token}")
        os.rename(path, emptied)
        shutil.rmtree(emptied)
        fsync_path(os.path.dirname(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error) from error


def purged_ids(path: str) -> list[str]:
    """Return the ids of a deleted session whose purge was interrupted, its own first; empty for any other folder."""
    try:
        with open(os.path.join(path, file_names.PURGED_IDS), encoding="utf-8") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def remove_history(root: str, path: str, session_ids: Collection[str], token: str) -> None:
    """Remove everything in a session's folder but what identifies it. The caller holds the session's lock."""
    _remove_derived_files(root, session_ids)
    try:
        temporary = os.path.join(path, f".{file_names.SESSION}.{token}")
        create_file(temporary, b"")
        os.replace(temporary, os.path.join(path, file_names.SESSION))
        for name in os.listdir(path):
            if name not in _IDENTITY_FILES:
                _remove_any(os.path.join(path, name))
        fsync_path(path)
    except OSError as error:
        raise write_error(path, error) from error


def has_history(path: str) -> bool:
    """Return whether a session's folder has more than what identifies it, which may be a copy of messages."""
    if set(os.listdir(path)) - _IDENTITY_FILES:
        return True
    return os.path.getsize(os.path.join(path, file_names.SESSION)) > 0


def _list_ids(path: str, target: PurgeTarget, token: str) -> None:
    ids = dict.fromkeys((target.session, *purged_ids(path), *sorted(target.session_ids)))
    replace_file(os.path.join(path, file_names.PURGED_IDS), "\n".join(ids).encode(), token=token)


def _remove_any(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _remove_derived_files(root: str, session_ids: Collection[str]) -> None:
    """Remove the list cache, which is rebuilt and may be half-written, and half-built folders of the sessions."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(root, file_names.LIST_CACHE))
    half_built = {f"{file_names.NEW_PREFIX}{session_id}" for session_id in session_ids}
    with suppress(FileNotFoundError), os.scandir(os.path.join(root, file_names.STAGING)) as found:
        for each in found:
            if each.name in half_built or not each.is_dir(follow_symlinks=False):
                _remove_any(each.path)


def _session_folders(path: str) -> Iterator[str]:
    for parent, _, names in os.walk(path):
        if file_names.METADATA in names or file_names.SESSION in names:
            yield parent
