"""The vigil over a command that lasts: a name that other programs obey is taken away the moment the command makes it."""

import os
import select
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import BoundedSemaphore, Thread

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs, unescaped
from retinue.sandbox.cleanup import Before, listable, put_right_at, some
from retinue.sandbox.command import Aftermath, nothing_left
from retinue.sandbox.files.closed_path_scan import Held, stamp_of, worth
from retinue.sandbox.files.hardlinks import SHARED
from retinue.sandbox.files.messages import shown
from retinue.sandbox.files.pattern_roots import forms
from retinue.sandbox.inotify import ENDED, IS_FOLDER, LOST, Inotify

AGAIN = 8
"""So often one name is taken away; a command that makes it once more is ended."""
AT_ONCE = 16
"""Commands of one process that are watched at the same time."""
MAX_FOLDERS = 2_048

_SHARE = 64
"""Of all folders that the user's programs may watch, a command takes at most this part: editors need the others."""
_MOST = Path("/proc/sys/fs/inotify/max_user_watches")
_SAID = 256
_GIT = ".git"

_places = BoundedSemaphore(AT_ONCE)


def attend(before: Before, folders: Mapping[str, Held], end: Callable[[], None]) -> Aftermath:
    """Begins the vigil, in a thread of its own, and gives what ends it and says what was taken away. Where none can be
    kept, things are put right when the command has ended, as ever."""
    if not before.writable or not _obeyed_patterns(before.scope) or not _places.acquire(blocking=False):
        return nothing_left
    try:
        vigil = _Vigil(before, folders, end)
    except OSError:
        _places.release()
        return nothing_left
    thread = Thread(target=vigil.keep, name="vigil", daemon=True)
    thread.start()

    def over() -> tuple[str, ...]:
        vigil.stop()
        thread.join()
        vigil.close()
        _places.release()
        return some([*vigil.notes.values()])

    return over


class _Vigil:
    """Folders that were there before the command are watched, the outer ones first; of those it makes, the ones whose
    names lead to a place that others obey. What it makes in a repository of its own is git's to work with: that is put
    right at the end."""

    def __init__(self, before: Before, folders: Mapping[str, Held], end: Callable[[], None]) -> None:
        self.notes: dict[str, str] = {}
        self._before = before
        self._folders = folders
        self._end = end
        self._bare = replace(before.scope, deny=())
        patterns = _obeyed_patterns(before.scope)
        self._means = worth(patterns).means
        self._ways = _ways(patterns)
        self._taken = Counter[str]()
        self._watched: dict[int, str] = {}
        self._attended: set[str] = set()
        self._pending = deque[str]()
        self._most = _share()
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._kernel = Inotify()
        except OSError:
            os.close(self._stopped)
            raise

    def keep(self) -> None:
        """Until it is stopped. What goes wrong ends it, and nothing else."""
        with suppress(OSError):
            known = [path for path in self._folders if _within(path, self._before.writable)]
            for path in sorted(known, key=_depth):
                if not SHARED.search(path):
                    self._attend(path)
            self._follow()
            heard = select.poll()
            heard.register(self._kernel.fd, select.POLLIN)
            heard.register(self._stopped, select.POLLIN)
            while all(fd != self._stopped for fd, _ in heard.poll()):
                self._hear()

    def stop(self) -> None:
        os.eventfd_write(self._stopped, 1)

    def close(self) -> None:
        self._kernel.close()
        os.close(self._stopped)

    def _hear(self) -> None:
        for told in self._kernel.read():
            if told.what & LOST:
                for path in sorted(self._watched.values(), key=_depth):
                    self._look(path)
            elif told.what & ENDED:
                self._watched.pop(told.watch, None)
            elif folder := self._watched.get(told.watch):
                is_folder = bool(told.what & IS_FOLDER)
                if is_folder:
                    self._attended.discard(f"{folder}/{told.name}")
                self._judge(folder, told.name, is_folder)
        self._follow()

    def _follow(self) -> None:
        while self._pending:
            self._attend(self._pending.popleft())

    def _attend(self, path: str) -> None:
        """Watched first and then looked into, so that nothing appears in between. What did not change since it was
        looked at before the command need not be."""
        if path in self._attended or len(self._watched) >= self._most:
            return
        self._attended.add(path)
        try:
            self._watched[self._watch(path)] = path
        except OSError:  # gone, closed to us for good, or one too many: the end of the command puts it right
            return
        held = self._folders.get(path)
        with suppress(OSError):
            if held is None or not held.settled or stamp_of(os.lstat(path)) != held.stamp:
                self._look(path)

    def _watch(self, path: str) -> int:
        try:
            return self._kernel.watch(path)
        except PermissionError:
            listable(path, self._before.writable)
            return self._kernel.watch(path)

    def _look(self, folder: str) -> None:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                self._judge(folder, entry.name, entry.is_dir(follow_symlinks=False))

    def _judge(self, folder: str, name: str, is_folder: bool) -> None:
        if not is_folder and not self._means(name):
            return
        path = f"{folder}/{name}"
        is_repository = is_folder and name.lower() == _GIT
        if self._means(name) and not is_repository and self._is_obeyed(path):
            self._take(path)
        elif is_folder and (path in self._folders or (name.lower() in self._ways and not is_repository)):
            self._pending.append(path)

    def _is_obeyed(self, path: str) -> bool:
        return any(self._bare.shut(form) is not None for form in forms(path)) or self._before.scope.guards(
            path
        )

    def _take(self, path: str) -> None:
        note = put_right_at(path, self._before)
        if note is None:
            return
        if len(self.notes) < _SAID:
            self.notes[path] = note
        self._taken[path] += 1
        if self._taken[path] > AGAIN:
            self.notes[path] = (
                f"the command was ended: it made {shown(path)} again and again, which is closed"
            )
            self._end()


def _obeyed_patterns(scope: Scope) -> Globs:
    """What is only denied is nobody's to obey."""
    return (*scope.closed, *scope.house, *scope.guarded)


@lru_cache(maxsize=64)
def _ways(patterns: Globs) -> frozenset[str]:
    """The names of folders that lead to such places."""
    parts = (unescaped(part) for pattern in patterns for part in pattern.split("/")[:-1])
    return frozenset(part.lower() for part in parts if part)


def _share() -> int:
    try:
        return min(MAX_FOLDERS, int(_MOST.read_text(encoding="ascii")) // _SHARE)
    except (OSError, ValueError):
        return 0


def _depth(path: str) -> int:
    return path.count("/")


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
