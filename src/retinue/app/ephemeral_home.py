"""A home that is forgotten when its process ends: at once if that can, else at the next start."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "retinue-forget-"
LOCK = "forget.lock"
"""Held by the process whose home it is: the kernel lets go of it however that process ends."""
MEMORY = "/dev/shm"  # noqa: S108  (a folder of our own is made there, for this user alone)
"""Where files are kept in memory: what is to be forgotten need not reach a disk."""
ROOM = 1 << 30
"""Bytes that must be free there: a small one, as containers have, would soon be full."""


@contextmanager
def forgotten() -> Generator[Path]:
    """A home of its own, for as long as this lasts. It is locked until nothing of it is left."""
    place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_places()[0]))
    descriptor = -1
    try:
        descriptor = _locked(place)
        yield place
    finally:
        with suppress(OSError):
            _emptied(place)
        if descriptor >= 0:
            os.close(descriptor)


def sweep() -> list[str]:
    """Removes what killed processes of this user could not, and names it. A name alone says nothing: it must be this
    user's folder, with the lock that such a home has, and nobody may hold that."""
    gone: list[str] = []
    for place in _places():
        with suppress(OSError), os.scandir(place) as found:
            gone += [each.path for each in found if each.name.startswith(PREFIX) and _left(each.path)]
    return gone


def _places() -> list[str]:
    """Where such homes may be, the best first; whoever says where temporary things belong is heeded."""
    usual = tempfile.gettempdir()
    if os.environ.get("TMPDIR"):
        return [usual]
    with suppress(OSError):
        free = os.statvfs(MEMORY)
        if os.access(MEMORY, os.W_OK | os.X_OK):
            return [MEMORY, usual] if free.f_bavail * free.f_frsize >= ROOM else [usual, MEMORY]
    return [usual]


def _locked(place: Path) -> int:
    """The lock gets its name when it is held: nobody ever finds it free while its process lives."""
    descriptor = os.open(place / f".{LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (place / f".{LOCK}").rename(place / LOCK)
    return descriptor


def _left(path: str) -> bool:
    """Whether it was a dead process's, and is gone now."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _ours(folder) and _removed(path, folder)
        finally:
            os.close(folder)
    return False


def _removed(path: str, folder: int) -> bool:
    lock = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not _ours(lock) or not stat.S_ISREG(os.fstat(lock).st_mode):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(folder), os.lstat(path)):
            return False
        _emptied(Path(path))
        return True
    finally:
        os.close(lock)


def _emptied(place: Path) -> None:
    """The lock goes last, so that whatever stops this leaves a folder that the next start knows."""
    for each in place.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != LOCK:
            each.unlink()
    (place / LOCK).unlink(missing_ok=True)
    place.rmdir()


def _ours(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid()
