"""A temporary home that is removed when its process ends, or else at the next start."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

HOME_PREFIX = "retinue-forget-"
LOCK_NAME = "forget.lock"
"""Locked by the process that uses the home; the kernel releases it however the process ends."""
MEMORY_DIR = "/dev/shm"  # noqa: S108  (a private folder for this user is created there)
"""Folder whose files are kept in memory and need not reach a disk."""
MIN_FREE_BYTES = 1 << 30
"""Free space required in MEMORY_DIR: a small one, as in containers, would soon be full."""


@contextmanager
def ephemeral_home() -> Generator[Path]:
    """Create a temporary home, locked while it exists, and remove it when the context closes."""
    home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX, dir=_candidate_dirs()[0]))
    descriptor = -1
    try:
        descriptor = _create_lock(home)
        yield home
    finally:
        with suppress(OSError):
            _remove_home(home)
        if descriptor >= 0:
            os.close(descriptor)


def remove_stale_homes() -> list[str]:
    """Remove temporary homes that killed processes of this user left behind, and return their paths.

    A matching name is not enough: the folder must belong to this user and contain an unlocked lock file.
    """
    removed: list[str] = []
    for home in _candidate_dirs():
        with suppress(OSError), os.scandir(home) as found:
            removed += [
                each.path
                for each in found
                if each.name.startswith(HOME_PREFIX) and _remove_if_stale(each.path)
            ]
    return removed


def _candidate_dirs() -> list[str]:
    """Return the directories for temporary homes, best first; TMPDIR takes precedence if set."""
    default_dir = tempfile.gettempdir()
    if os.environ.get("TMPDIR"):
        return [default_dir]
    with suppress(OSError):
        stats = os.statvfs(MEMORY_DIR)
        if os.access(MEMORY_DIR, os.W_OK | os.X_OK):
            return (
                [MEMORY_DIR, default_dir]
                if stats.f_bavail * stats.f_frsize >= MIN_FREE_BYTES
                else [default_dir, MEMORY_DIR]
            )
    return [default_dir]


def _create_lock(home: Path) -> int:
    """Create the lock file and return its descriptor.

    It gets its name only after it is locked, so no other process can find it unlocked while this one lives.
    """
    descriptor = os.open(home / f".{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (home / f".{LOCK_NAME}").rename(home / LOCK_NAME)
    return descriptor


def _remove_if_stale(path: str) -> bool:
    """Remove a dead process's home and return whether it was removed."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _is_own_file(folder) and _remove_unlocked(path, folder)
        finally:
            os.close(folder)
    return False


def _remove_unlocked(path: str, folder: int) -> bool:
    lock = os.open(LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not _is_own_file(lock) or not stat.S_ISREG(os.fstat(lock).st_mode):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(folder), os.lstat(path)):
            return False
        _remove_home(Path(path))
        return True
    finally:
        os.close(lock)


def _remove_home(home: Path) -> None:
    """Delete the home, the lock file last.

    An interrupted removal is then still recognised at the next start.
    """
    for each in home.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != LOCK_NAME:
            each.unlink()
    (home / LOCK_NAME).unlink(missing_ok=True)
    home.rmdir()


def _is_own_file(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid()
