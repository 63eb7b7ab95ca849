"""Rename files that other programs act on as soon as a running command creates them."""

import asyncio
import errno
import os
import select
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock, Thread

from msgspec.structs import replace

from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescape_component
from retinue.errors import Failed
from retinue.sandbox.cleanup import FileSnapshot, guards_repository, limit_notes, make_listable, restore_path
from retinue.sandbox.command import CleanUp, no_clean_up
from retinue.sandbox.files.closed_path_scan import FolderScan, build_name_filter, folder_stamp
from retinue.sandbox.files.hardlinks import SHARED_FOLDERS
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.files.pattern_roots import unicode_forms
from retinue.sandbox.inotify import IS_FOLDER, QUEUE_OVERFLOW, WATCH_REMOVED, Inotify

MAX_REMOVALS = 8
"""Maximum number of removals of one name; the next one ends the command."""
MAX_OVERFLOWS = 8
"""Maximum number of overflows of the kernel's queue; the next one ends the command."""
MAX_MONITORS = 64
"""Maximum number of commands of one process that are monitored at the same time."""
MAX_WATCHED_FOLDERS = 2_048

_WATCHES_DIVISOR, _MIN_SHARES = 4, 16
"""All commands together use at most this fraction of the user's inotify watches: editors need the rest.

It is divided among the monitored commands, at least among this many.
"""
_MAX_USER_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")
_MAX_NOTES = 256
_NO_INSTANCES = (
    "the command was not run: no inotify instance is left for watching its files (fs.inotify.max_user_instances). "
    "Close a program that watches files, or raise the limit"
)
_RETRY_S = 0.02

_active_monitors: "set[ReservedMonitor]" = set()
_active_monitors_lock = Lock()


class ReservedMonitor:
    """An inotify instance reserved before a command starts, so that the command cannot take the last one."""

    def __init__(self) -> None:
        self.inotify = Inotify()

    def release(self) -> None:
        """Release the instance; a second call does nothing."""
        with _active_monitors_lock:
            if self not in _active_monitors:
                return
            _active_monitors.discard(self)
        self.inotify.close()


def try_reserve_monitor() -> ReservedMonitor | None:
    """Reserve a monitor; None while other commands of this process hold all there are.

    Raises Failed if none can become free: the command must not run without one.
    """
    with _active_monitors_lock:
        if len(_active_monitors) >= MAX_MONITORS:
            return None
        try:
            reserved = ReservedMonitor()
        except OSError as error:
            if _active_monitors:
                return None
            if error.errno == errno.EMFILE:
                raise Failed(_NO_INSTANCES) from error
            raise Failed(
                f"the command was not run: its files cannot be watched ({error.strerror})"
            ) from error
        _active_monitors.add(reserved)
        return reserved


def reserve_monitor() -> ReservedMonitor:
    """Reserve a monitor now, or raise Failed."""
    if (reserved := try_reserve_monitor()) is None:
        raise Failed("the command was not run: too many other commands are running. Try again")
    return reserved


async def wait_for_monitor() -> ReservedMonitor:
    """Reserve a monitor, waiting for the end of other commands of this process if necessary."""
    while (reserved := try_reserve_monitor()) is None:  # noqa: ASYNC110  (it may be released in any thread)
        await asyncio.sleep(_RETRY_S)
    return reserved


def start_monitor(
    reserved: ReservedMonitor,
    snapshot: FileSnapshot,
    folders: Mapping[str, FolderScan],
    end_command: Callable[[], None],
) -> CleanUp:
    """Start a monitor thread; return the function that stops it and reports what was removed."""
    if not snapshot.writable or not _protected_patterns(snapshot.scope):
        return no_clean_up
    monitor = _ProtectedFileMonitor(reserved.inotify, snapshot, folders, end_command)
    thread = Thread(target=monitor.run, name="file-monitor", daemon=True)
    thread.start()

    def stop_monitor() -> tuple[str, ...]:
        monitor.stop()
        thread.join()
        monitor.close()
        return limit_notes([*monitor.notes.values()])

    return stop_monitor


class _ProtectedFileMonitor:
    """Watch folders with inotify.

    Folders that existed before the command are watched, outer ones first; of the new ones, only those whose
    names lead to a protected path. A new repository created by the command is left for git to work with and
    is checked at the end.
    """

    def __init__(
        self,
        inotify: Inotify,
        snapshot: FileSnapshot,
        folders: Mapping[str, FolderScan],
        end_command: Callable[[], None],
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
        self._overflow_count = 0
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify = inotify

    def run(self) -> None:
        """Watch until stopped. A command that cannot be watched any longer is killed."""
        try:
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
        except OSError as error:
            self._kill_command("", f"its files can no longer be watched ({error.strerror})")

    def stop(self) -> None:
        os.eventfd_write(self._stop_fd, 1)

    def close(self) -> None:
        os.close(self._stop_fd)

    def _read_events(self) -> None:
        for event in self._inotify.read_events():
            if event.mask & QUEUE_OVERFLOW:
                self._overflow_count += 1
                if self._overflow_count > MAX_OVERFLOWS:
                    self._kill_command("", "it creates files faster than they can be checked")
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
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise  # the user's other programs took all watches
            return  # gone or permanently unreadable: cleaned up after the command
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
        path = f"{folder}/{name}"
        if folder in self._snapshot.repositories and self._is_obeyed_by_git(folder, name):
            self._remove(path)
            return
        if not is_folder and not self._may_match(name):
            return
        is_repository = is_folder and git_paths.is_git_folder_name(name)
        if self._may_match(name) and not is_repository and self._is_protected(path):
            self._remove(path)
        elif is_folder and (
            path in self._scanned_folders or (name.lower() in self._leading_names and not is_repository)
        ):
            self._pending_folders.append(path)

    def _is_obeyed_by_git(self, repository: str, name: str) -> bool:
        """Return whether git acts on this name in a git folder at once.

        Git's own temporary files, and the state of an unfinished operation, are checked after the command.
        """
        return (
            git_paths.is_control_path(name)
            and not git_paths.is_operation_state(name)
            and guards_repository(repository, self._snapshot.scope)
        )

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
            self._kill_command(path, f"it repeatedly created {printable_path(path)}, which is a closed path")

    def _kill_command(self, path: str, reason: str) -> None:
        self.notes[path] = f"the command was killed: {reason}"
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
        available = int(_MAX_USER_WATCHES.read_text(encoding="ascii")) // _WATCHES_DIVISOR
    except (OSError, ValueError):
        return 0
    return min(MAX_WATCHED_FOLDERS, available // max(_MIN_SHARES, len(_active_monitors)))


def _path_depth(path: str) -> int:
    return path.count("/")


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
