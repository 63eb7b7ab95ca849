"""What crashes and deletions left behind, removed a little at a time, so that no start waits for it."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
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

from retinue.domain.session import stamp
from retinue.sessions import session_tree
from retinue.storage import file_names

_EVERY_SECONDS = 24 * 3600
_STALE_SECONDS = 3600
"""Nobody takes so long to build a folder: whoever began it is dead."""
_DELETED_KEPT = timedelta(days=30)
_TOPS_AT_ONCE = 300
_REMOVED_AT_ONCE = 200


def sweep(root: str, now: datetime) -> list[str]:
    """Removes what was never finished and what was deleted long ago, and says what it removed: at most once a day, and
    then so much that it takes a moment. Inside the sessions it goes on where it stopped the last time."""
    marker = os.path.join(root, file_names.SWEPT)
    if not _due(marker):
        return []
    try:
        reached = _begin(marker)
        tops = session_tree.tops(root)
        first = bisect_right(tops, reached)
        chosen = tops[first : first + _TOPS_AT_ONCE]
        gone = (path for path in _leftovers(root, chosen) if _removed(path, now))
        removed = list(islice(gone, _REMOVED_AT_ONCE))
        _end(marker, chosen[-1] if first + len(chosen) < len(tops) else "")
    except OSError:
        return []  # Whoever may not write here sweeps nothing.
    return removed


def leftovers(root: str, now: datetime) -> list[str]:
    """All that a sweep would remove sooner or later, looked for everywhere at once."""
    try:
        return [path for path in _leftovers(root, session_tree.tops(root)) if _over(path, now)]
    except OSError:
        return []


def remove(path: str) -> bool:
    """Another sweep may be faster: then there is nothing left to do."""
    with suppress(OSError):
        shutil.rmtree(path) if S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
        return True
    return False


def _due(marker: str) -> bool:
    try:
        return not 0 <= time.time() - os.stat(marker).st_mtime < _EVERY_SECONDS
    except FileNotFoundError:
        return os.path.isdir(os.path.dirname(marker))
    except OSError:
        return False


def _begin(marker: str) -> str:
    """From now on it is nobody else's turn. Says how far the last one came."""
    descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.read(descriptor, 4096).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)


def _end(marker: str, last: str) -> None:
    descriptor = os.open(marker, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, last.encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)


def _leftovers(root: str, tops: Sequence[str]) -> Iterator[str]:
    """Only where sessions are built and kept: what else a person or an agent put there is theirs."""
    staging = os.path.join(root, file_names.STAGING)
    yield from (os.path.join(staging, name) for name in _inside(staging))
    for place in (root, *(each for top in tops for each in _places(os.path.join(root, top)))):
        yield from (os.path.join(place, name) for name in _inside(place) if file_names.left_over(name))


def _places(top: str) -> list[str]:
    seen = [top]
    for _ in session_tree.family(top, seen.append):
        pass
    return [path for path in seen if not path.endswith(f"/{file_names.SESSION}")]


def _inside(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _removed(path: str, now: datetime) -> bool:
    return _over(path, now) and remove(path)


def _over(path: str, now: datetime) -> bool:
    """Whether nobody is at it or may want it back any more."""
    with suppress(OSError):
        deleted = file_names.deleted_at(os.path.basename(path))
        if deleted is None:
            return time.time() - os.lstat(path).st_mtime > _STALE_SECONDS
        return deleted < stamp(now - _DELETED_KEPT)
    return False
