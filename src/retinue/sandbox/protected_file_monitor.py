"""Rename files that other programs act on as soon as a running command creates them."""

import os
import select
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import BoundedSemaphore, Thread

from msgspec.structs import replace

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescape_component
from retinue.sandbox.cleanup import FileSnapshot, limit_notes, make_listable, restore_path
from retinue.sandbox.command import CleanUp, no_clean_up
from retinue.sandbox.files.closed_path_scan import FolderScan, build_name_filter, folder_stamp
from retinue.sandbox.files.hardlinks import SHARED_FOLDERS
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import unicode_forms
from retinue.sandbox.inotify import IS_FOLDER, QUEUE_OVERFLOW, WATCH_REMOVED, Inotify

MAX_REMOVALS = 8
"""Maximum number of removals of one name; the next one ends the command."""
MAX_MONITORS = 16
"""Maximum number of commands of one process that are monitored at the same time."""
MAX_WATCHED_FOLDERS = 2_048

_WATCH_LIMIT_DIVISOR = 64
"""A command uses at most this fraction of the user's inotify watches: editors need the rest."""
_MAX_USER_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")
_MAX_NOTES = 256
_GIT = ".git"

_monitor_slots = BoundedSemaphore(MAX_MONITORS)


def start_monitor(
    snapshot: FileSnapshot, folders: Mapping[str, FolderScan], end_command: Callable[[], None]
) -> CleanUp:
    """Start a monitor thread; return the function that stops it and reports what was removed.

    If no monitor can be started, closed paths are restored after the command has ended, as always.
    """
    if (
        not snapshot.writable
        or not _protected_patterns(snapshot.scope)
        or not _monitor_slots.acquire(blocking=False)
    ):
        return no_clean_up
    try:
        monitor = _ProtectedFileMonitor(snapshot, folders, end_command)
    except OSError:
        _monitor_slots.release()
        return no_clean_up
    thread = Thread(target=monitor.run, name="file-monitor", daemon=True)
    thread.start()

    def stop_monitor() -> tuple[str, ...]:
        monitor.stop()
        thread.join()
        monitor.close()
        _monitor_slots.release()
        return limit_notes([*monitor.notes.values()])

    return stop_monitor


class _ProtectedFileMonitor:
    """Watch folders with inotify.

    Folders that existed before the command are watched, outer ones first; of the new ones, only those whose
    names lead to a protected path. A new repository created by the command is left for git to work with and
    is checked at the end.
    """

    def __init__(
        self, snapshot: FileSnapshot, folders: Mapping[str, FolderScan], end_command: Callable[[], None]
    ) -> None:
        self.notes: dict[str, str] = {}
        self._snapshot = snapshot
        self._scanned_folders = folders
        self._end_command = end_command
        self._scope_without_deny = replace(snapshot.scope, deny=())
        patterns = _protected_patterns(snapshot.scope)
        self._may_match = build_name_filter(patterns).may_match
        self._leading_names = _leading_folder_names(patterns)
        self._removal_counts = Counter[str]()
        self._watched_folders: dict[int, str] = {}
        self._seen_folders: set[str] = set()
        self._pending_folders = deque[str]()
        self._max_watches = _watch_limit()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._inotify = Inotify()
        except OSError:
            os.close(self._stop_fd)
            raise

    def run(self) -> None:
        """Watch until stopped. An operating-system error ends the monitor and nothing else."""
        with suppress(OSError):
            known = [path for path in self._scanned_folders if _is_within(path, self._snapshot.writable)]
            for path in sorted(known, key=_path_depth):
                if not SHARED_FOLDERS.search(path):
                    self._watch_folder(path)
            self._watch_pending_folders()
            poller = select.poll()
            poller.register(self._inotify.fd, select.POLLIN)
            poller.register(self._stop_fd, select.POLLIN)
            while all(fd != self._stop_fd for fd, _ in poller.poll()):
                self._read_events()

    def stop(self) -> None:
        os.eventfd_write(self._stop_fd, 1)

    def close(self) -> None:
        self._inotify.close()
        os.close(self._stop_fd)

    def _read_events(self) -> None:
        for event in self._inotify.read_events():
            if event.mask & QUEUE_OVERFLOW:
                for path in sorted(self._watched_folders.values(), key=_path_depth):
                    self._check_folder(path)
            elif event.mask & WATCH_REMOVED:
                self._watched_folders.pop(event.watch_id, None)
            elif folder := self._watched_folders.get(event.watch_id):
                is_folder = bool(event.mask & IS_FOLDER)
                if is_folder:
                    self._seen_folders.discard(f"{folder}/{event.name}")
                self._check_entry(folder, event.name, is_folder)
        self._watch_pending_folders()

    def _watch_pending_folders(self) -> None:
        while self._pending_folders:
            self._watch_folder(self._pending_folders.popleft())

    def _watch_folder(self, path: str) -> None:
        """Add a watch, then check the folder, so that nothing appears in between.

        A folder that has not changed since the scan before the command is not checked.
        """
        if path in self._seen_folders or len(self._watched_folders) >= self._max_watches:
            return
        self._seen_folders.add(path)
        try:
            self._watched_folders[self._add_watch(path)] = path
        except OSError:  # gone, permanently unreadable or over the limit: cleaned up after the command
            return
        scan = self._scanned_folders.get(path)
        with suppress(OSError):
            if scan is None or not scan.is_stable or folder_stamp(os.lstat(path)) != scan.stamp:
                self._check_folder(path)

    def _add_watch(self, path: str) -> int:
        try:
            return self._inotify.add_watch(path)
        except PermissionError:
            make_listable(path, self._snapshot.writable)
            return self._inotify.add_watch(path)

    def _check_folder(self, folder: str) -> None:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                self._check_entry(folder, entry.name, entry.is_dir(follow_symlinks=False))

    def _check_entry(self, folder: str, name: str, is_folder: bool) -> None:
        if not is_folder and not self._may_match(name):
            return
        path = f"{folder}/{name}"
        is_repository = is_folder and name.lower() == _GIT
        if self._may_match(name) and not is_repository and self._is_protected(path):
            self._remove(path)
        elif is_folder and (
            path in self._scanned_folders or (name.lower() in self._leading_names and not is_repository)
        ):
            self._pending_folders.append(path)

    def _is_protected(self, path: str) -> bool:
        return any(
            self._scope_without_deny.closing_rule(form) is not None for form in unicode_forms(path)
        ) or self._snapshot.scope.is_guarded(path)

    def _remove(self, path: str) -> None:
        note = restore_path(path, self._snapshot)
        if note is None:
            return
        if len(self.notes) < _MAX_NOTES:
            self.notes[path] = note
        self._removal_counts[path] += 1
        if self._removal_counts[path] > MAX_REMOVALS:
            self.notes[path] = (
                f"the command was killed: it repeatedly created {printable_path(path)}, which is a closed path"
            )
            self._end_command()


def _protected_patterns(scope: Scope) -> Globs:
    """Return the patterns of files that other programs act on, without merely denied ones."""
    return (*scope.closed_paths, *scope.retinue_paths, *scope.guarded_paths)


@lru_cache(maxsize=64)
def _leading_folder_names(patterns: Globs) -> frozenset[str]:
    """Return the names of folders that lead to protected paths."""
    parts = (unescape_component(part) for pattern in patterns for part in pattern.split("/")[:-1])
    return frozenset(part.lower() for part in parts if part)


def _watch_limit() -> int:
    try:
        return min(
            MAX_WATCHED_FOLDERS, int(_MAX_USER_WATCHES.read_text(encoding="ascii")) // _WATCH_LIMIT_DIVISOR
        )
    except (OSError, ValueError):
        return 0


def _path_depth(path: str) -> int:
    return path.count("/")


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
