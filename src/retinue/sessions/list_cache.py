"""A cache of the session list: ten thousand unchanged sessions are listed without reading them."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH102, PTH105, PTH108, PTH118

import gc
import math
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

import msgspec
from msgspec.structs import fields

from retinue import __version__
from retinue.domain.session import Session
from retinue.domain.workspace import Workspace
from retinue.sessions import session_tree
from retinue.storage import file_names
from retinue.storage.file_io import FileStamp, create_file, file_stamp, open_regular_file

STAMP_SETTLE_NS = 50_000_000
"""Stamps this young are not trusted.

The kernel's file clock ticks every few milliseconds, and of two changes within a tick the second leaves no
trace.
"""
_MIN_CHANGED = 64
"""Fewer changed folders are read faster than the cache file is written."""
_MAX_CHANGED = 4096
_SAVE_RATIO = 64
"""The cache is saved if the number of listed folders, divided by that of changed folders, is at most this."""


class PathStamp(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A path below the root with its stamp."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class CachedTree(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """A top-level folder: its sessions, and the stamps that show that they are unchanged."""

    stamps: tuple[PathStamp, ...]
    """Empty if the folder must be scanned in any case."""
    sessions: tuple[Session, ...]


class _CacheFile(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    format: str
    root: str
    trees: dict[str, CachedTree]


_FORMAT = f"2 {__version__} {' '.join(each.name for kind in (Session, Workspace) for each in fields(kind))}"
"""Identifies the writer of a cache file. Another release, or other session fields, start a new cache."""
_DECODER = msgspec.msgpack.Decoder(_CacheFile)
_ENCODER = msgspec.msgpack.Encoder()


class SessionListCache:
    """List cache derived from the folders, used only for lists; work in a session always reads its files.

    The cache file may be deleted at any time; failing to read or write it only costs time.
    """

    def __init__(self, root: str, token: Callable[[], str]) -> None:
        self._root = root
        self._token = token
        self._trees: Mapping[str, CachedTree] | None = None
        self._unsaved: frozenset[str] = frozenset()
        self._last_list: list[Session] = []
        """The last list. Never changed in place; a new list is made when anything differs."""
        self._unsettled: set[str] = set()
        """Trees that changed so recently that a second change might not show."""
        self._checked_at = 0.0
        """Monotonic time of the last full check."""
        self._root_stamp: FileStamp | None = None
        self._list_lock = threading.Lock()
        """Ensures that one list is made at a time, so that an older list cannot replace a newer one."""
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        """Trees that this process changed since they were last checked."""
        self._in_use: Counter[str] = Counter()
        """Trees in which this process may change something at any time, with a count of users."""

    def mark_changed(self, path: str) -> None:
        """Record that this process changed something in a session's folder."""
        if tree := self._tree_name(path):
            with self._lock:
                self._add_changed(tree)

    def track_work(self, path: str, *, change: int) -> None:
        """Record that this process started (1) or stopped (-1) working in a session's folder."""
        if tree := self._tree_name(path):
            with self._lock:
                self._add_changed(tree)
                self._in_use[tree] += change
                if not self._in_use[tree]:
                    del self._in_use[tree]

    def _add_changed(self, tree: str) -> None:
        """Record a changed tree; after very many without a list, the next list checks all trees instead."""
        if len(self._changed) >= _MAX_CHANGED:
            self._changed.clear()
            self._checked_at = -math.inf
        self._changed.add(tree)

    def list_sessions(self, read: Callable[[str], Session], *, max_age_s: float = 0.0) -> list[Session]:
        """List every session below the root.

        Args:
            read: Loads a session whose folder has changed.
            max_age_s: Changes that other processes made within this many seconds may be missing.
        """
        requested_at = time.monotonic()
        with self._list_lock:
            # A check that began after this request, for another one, is as good as a new one.
            if self._trees is not None and self._checked_at > requested_at - max_age_s:
                return self._list_recent_changes(self._trees, read)
            return self._list_all(read)

    def _list_all(self, read: Callable[[str], Session]) -> list[Session]:
        try:
            root_fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            with _pause_gc():
                return self._refresh(root_fd, read)
        finally:
            os.close(root_fd)

    def _list_recent_changes(
        self, trees: Mapping[str, CachedTree], read: Callable[[str], Session]
    ) -> list[Session]:
        """Update the last list for sessions that came, went or were changed by this process."""
        stamp_before, changed = self._root_stamp, self._take_changed_trees(trees)
        self._root_stamp = file_stamp(self._root)
        if stamp_before == self._root_stamp and not changed:
            return self._last_list
        tops = (
            trees.keys()
            if stamp_before == self._root_stamp
            else dict.fromkeys(session_tree.top_level_names(self._root))
        )
        with _pause_gc():
            found = {
                name: _scan_tree(self._root, name, read)
                if name in changed or name not in trees
                else trees[name]
                for name in (*tops, *(each for each in changed if each not in tops))
            }
            self._unsettled = {name for name, tree in found.items() if not tree.stamps}
            self._trees = {name: tree for name, tree in found.items() if tree.sessions or name in tops}
            self._last_list = [session for tree in self._trees.values() for session in tree.sessions]
        return self._last_list

    def _take_changed_trees(self, trees: Mapping[str, CachedTree]) -> set[str]:
        """Return the trees to scan: changed by this process, or just before the last check."""
        with self._lock:
            changed, self._changed = self._changed, set()
            changed |= self._in_use.keys()
        return changed | {name for name in self._unsettled if name in trees and not trees[name].stamps}

    def _tree_name(self, path: str) -> str:
        return path[len(self._root) + 1 :].partition("/")[0] if path.startswith(f"{self._root}/") else ""

    def _refresh(self, root_fd: int, read: Callable[[str], Session]) -> list[Session]:
        trees = self._load() if self._trees is None else self._trees
        self._checked_at, self._root_stamp = time.monotonic(), file_stamp(self._root)
        self._take_changed_trees(trees)
        found: dict[str, CachedTree] = {}
        changed: set[str] = set()
        for name in session_tree.top_level_names(self._root):
            tree = trees.get(name)
            if tree is None or not _is_tree_unchanged(tree, root_fd):
                tree = _scan_tree(self._root, name, read)
                changed.add(name)
            found[name] = tree
        if changed or self._trees is None or found.keys() != trees.keys():
            self._last_list = [session for tree in found.values() for session in tree.sessions]
        self._trees = found
        self._unsettled = {name for name in changed if not found[name].stamps}
        self._save_if_worthwhile(found, self._unsaved | changed, removed=trees.keys() - found.keys())
        return self._last_list

    def _load(self) -> Mapping[str, CachedTree]:
        try:
            with open(
                os.path.join(self._root, file_names.LIST_CACHE),
                "rb",
                opener=lambda path, _: open_regular_file(path),
            ) as file:
                data = memoryview(file.read())
            if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
                return {}
            cache = _DECODER.decode(data[4:])
        except (OSError, ValueError):
            return {}
        return cache.trees if (cache.format, cache.root) == (_FORMAT, self._root) else {}

    def _save_if_worthwhile(
        self, found: Mapping[str, CachedTree], unsaved: frozenset[str], *, removed: set[str]
    ) -> None:
        """Save the cache if that is cheaper than reading changed folders again, or if folders are gone."""
        savable = {name for name in unsaved if name in found and found[name].stamps}
        is_worthwhile = len(savable) >= _MIN_CHANGED and len(savable) * _SAVE_RATIO >= len(found)
        self._unsaved = unsaved
        if not is_worthwhile and not (
            removed and os.path.lexists(os.path.join(self._root, file_names.LIST_CACHE))
        ):
            return
        staging = os.path.join(self._root, file_names.STAGING)
        temporary = os.path.join(staging, self._token())
        try:
            with suppress(FileExistsError):
                os.mkdir(staging, 0o700)
            create_file(temporary, _encode_cache(self._root, found))
            os.replace(temporary, os.path.join(self._root, file_names.LIST_CACHE))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
        self._unsaved = unsaved - savable


def _is_tree_unchanged(tree: CachedTree, root_fd: int) -> bool:
    try:
        for stamp in tree.stamps:
            status = os.stat(stamp.path, dir_fd=root_fd)
            if (
                status.st_ctime_ns != stamp.ctime_ns
                or status.st_mtime_ns != stamp.mtime_ns
                or status.st_size != stamp.size
                or status.st_ino != stamp.inode
            ):
                return False
    except OSError:
        return False
    return bool(tree.stamps)


def _scan_tree(root: str, name: str, read: Callable[[str], Session]) -> CachedTree:
    """Scan a tree, stamping each path before its content is read: a later change shows the next time."""
    started_ns = time.time_ns()
    stamps: list[PathStamp] = []

    def record_stamp(path: str) -> None:
        with suppress(OSError):
            if found := file_stamp(path):
                stamps.append(PathStamp(path[len(root) + 1 :], *found))

    sessions = tuple(
        read(path) for path in session_tree.walk_session_tree(os.path.join(root, name), record_stamp)
    )
    is_settled = all(each.ctime_ns < started_ns - STAMP_SETTLE_NS for each in stamps)
    return CachedTree(stamps=tuple(stamps) if is_settled else (), sessions=sessions)


def _encode_cache(root: str, found: Mapping[str, CachedTree]) -> bytes:
    trees: dict[str, msgspec.Raw] = {}
    for name, tree in found.items():
        if tree.stamps:
            # A tree that cannot be encoded, such as a name that is not valid text, is scanned each time.
            with suppress(ValueError, TypeError, OverflowError):
                _ENCODER.encode(name)
                trees[name] = msgspec.Raw(_ENCODER.encode(tree))
    data = _ENCODER.encode((_FORMAT, root, trees))
    return zlib.crc32(data).to_bytes(4, "big") + data


@contextmanager
def _pause_gc() -> Generator[None]:
    """Pause garbage collection.

    The many new values have no cycles, and collecting would take longer than creating them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
