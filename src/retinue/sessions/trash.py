"""Remove what crashes and deletions left behind, a little at a time."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH208

import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from stat import S_ISDIR

from retinue.domain.session import DELETED_SESSION_RETENTION_DAYS, slug_timestamp
from retinue.sessions import session_tree
from retinue.storage import file_names

_INTERVAL_S = 24 * 3600
_STALE_AFTER_S = 3600
"""No folder takes this long to build, so its builder must have crashed."""
_MAX_TREES_PER_SWEEP = 300
_MAX_REMOVED = 200


def sweep_trash(root: str, now: datetime) -> list[str]:
    """Remove unfinished and long-deleted files, at most once a day, and return the removed paths.

    Each sweep is short and continues among the sessions where the last one stopped.
    """
    marker = os.path.join(root, file_names.SWEEP_MARKER)
    if not _is_due(marker):
        return []
    try:
        last_name = _start_sweep(marker)
        top_level_names = session_tree.top_level_names(root)
        first = bisect_right(top_level_names, last_name)
        batch = top_level_names[first : first + _MAX_TREES_PER_SWEEP]
        removals = (path for path in _iter_leftovers(root, batch) if _remove_if_expired(path, now))
        removed = list(islice(removals, _MAX_REMOVED))
        _record_progress(marker, batch[-1] if first + len(batch) < len(top_level_names) else "")
    except OSError:
        return []  # A process without write permission sweeps nothing.
    return removed


def find_leftovers(root: str, now: datetime) -> list[str]:
    """Return everything that sweeps would remove, searched for everywhere at once."""
    try:
        return [
            path
            for path in _iter_leftovers(root, session_tree.top_level_names(root))
            if _is_expired(path, now)
        ]
    except OSError:
        return []


def remove_path(path: str) -> bool:
    """Remove a file or folder; return False if that fails, for example because another sweep was faster."""
    with suppress(OSError):
        shutil.rmtree(path) if S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
        return True
    return False


def _is_due(marker: str) -> bool:
    try:
        return not 0 <= time.time() - os.stat(marker).st_mtime < _INTERVAL_S
    except FileNotFoundError:
        return os.path.isdir(os.path.dirname(marker))
    except OSError:
        return False


def _start_sweep(marker: str) -> str:
    """Claim this sweep for this process and return the last name that the previous sweep processed."""
    descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.read(descriptor, 4096).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)


def _record_progress(marker: str, last_name: str) -> None:
    descriptor = os.open(marker, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, last_name.encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)


def _iter_leftovers(root: str, top_level_names: Sequence[str]) -> Iterator[str]:
    """Yield leftovers only where sessions are built and stored; other files belong to people or agents."""
    staging = os.path.join(root, file_names.STAGING)
    yield from (os.path.join(staging, name) for name in _list_names(staging))
    for folder in (
        root,
        *(each for top in top_level_names for each in _folders_to_sweep(os.path.join(root, top))),
    ):
        yield from (
            os.path.join(folder, name) for name in _list_names(folder) if file_names.is_leftover(name)
        )


def _folders_to_sweep(top: str) -> list[str]:
    paths = [top]
    for _ in session_tree.walk_session_tree(top, paths.append):
        pass
    return [path for path in paths if not path.endswith(f"/{file_names.SESSION}")]


def _list_names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _remove_if_expired(path: str, now: datetime) -> bool:
    return _is_expired(path, now) and remove_path(path)


def _is_expired(path: str, now: datetime) -> bool:
    """Return True if nobody can still be using the path or may want it restored."""
    with suppress(OSError):
        deleted = file_names.deletion_time(os.path.basename(path))
        if deleted is None:
            return time.time() - os.lstat(path).st_mtime > _STALE_AFTER_S
        if os.path.lexists(os.path.join(path, file_names.PURGED_IDS)):
            return True
        return deleted < slug_timestamp(now - timedelta(days=DELETED_SESSION_RETENTION_DAYS))
    return False
