"""Process locks: a process that executes runs is alive as long as the kernel holds its file lock or its socket.

The lock is on a file that other processes can find, and whose time shows later when the process died. If the file is
deleted, the lock is still held, but cannot be found. Then a socket shows that the process is alive: its name is in
the kernel only (an abstract Unix socket), so nobody can delete it. The process restores its file at its next heartbeat.
"""

import fcntl
import os
import socket
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from retinue.errors import DiskError, Failed

_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
_MAX_ATTEMPTS = 100
_MAX_DESCRIPTION_BYTES = 4096
KEEP_DEAD_OWNERS = timedelta(days=30)
_ADVICE = "Free some disk space, make the folder writable, or choose another home with RETINUE_HOME."


class ProcessLock:
    """Hold `<home>/owners/<id>` locked until it is closed or its process dies in any way."""

    def __init__(self, home: Path) -> None:
        try:
            self.path, self._fd = _create_lock_file(_owners_dir(home))
        except OSError as error:
            raise DiskError(
                f"Cannot create a lock file in {_owners_dir(home)}: {error.strerror}. {_ADVICE}"
            ) from error
        self.id = self.path.name
        self._socket = _bind_socket(self.id)

    def close(self) -> None:
        """Delete the file while it is still locked, so that it is never seen unlocked.

        If the disk does not allow it, the file counts as a dead owner's and is removed later.
        """
        if self._fd < 0:
            return
        with suppress(OSError):
            self.path.unlink()
        os.close(self._fd)
        self._fd = -1
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record_alive(self) -> None:
        """Store the current time in the file, so that others can tell later when this process died.

        A file that was deleted or replaced is restored.
        """
        with suppress(OSError):
            if self._fd >= 0 and not self._is_file_in_place():
                self._restore_file()
            os.utime(self._fd)

    def _is_file_in_place(self) -> bool:
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _restore_file(self) -> None:
        """Put a locked file in place under the same name."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = self.path.with_name(f".{self.id}")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _try_lock(fd, fcntl.LOCK_EX)
            os.write(fd, os.pread(self._fd, _MAX_DESCRIPTION_BYTES, 0))
            temporary.replace(self.path)
        except OSError:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd = fd

    @staticmethod
    def last_alive_at(home: Path, owner_id: str) -> datetime | None:
        """Return when the process last recorded that it was alive; None if its file is gone."""
        if not _is_owner_id(owner_id):
            return None
        try:
            return datetime.fromtimestamp((_owners_dir(home) / owner_id).stat().st_mtime, UTC)
        except OSError:
            return None

    @staticmethod
    def is_alive(home: Path, owner_id: str) -> bool:
        """Return True if the process with this owner id is alive; False for anything that is not an id."""
        if not _is_owner_id(owner_id):
            return False
        try:
            with _open_lock_file(_owners_dir(home) / owner_id) as fd:
                is_locked = not _try_lock(fd, fcntl.LOCK_SH)
        except FileNotFoundError:
            is_locked = False
        return is_locked or _has_socket(owner_id)

    @staticmethod
    def describe_owner(home: Path, owner_id: str) -> str:
        """Return a description of the process for messages; empty if unknown."""
        if not _is_owner_id(owner_id):
            return ""
        try:
            return (_owners_dir(home) / owner_id).read_text("utf-8", "replace").strip()
        except OSError:
            return ""


class NoProcessLock:
    """Replaces the lock if none can be created; such a process executes no runs."""

    id = "no-lock"

    def close(self) -> None:
        """Do nothing, as there is no lock."""

    def record_alive(self) -> None:
        """Do nothing, as there is no file."""


def remove_dead_owners(home: Path, *, older_than: timedelta = KEEP_DEAD_OWNERS) -> list[str]:
    """Remove the files of processes that died long ago, and return their ids.

    A file is removed only while holding its lock. The files of dead processes record when they died.
    """
    oldest = time.time() - older_than.total_seconds()
    removed: list[str] = []
    folder = _owners_dir(home)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in filter(_is_owner_id, names):
        # Another process may have removed it already.
        with suppress(FileNotFoundError), _open_lock_file(folder / name) as fd:
            if os.fstat(fd).st_mtime <= oldest and _try_lock(fd, fcntl.LOCK_SH):
                (folder / name).unlink()
                removed.append(name)
    return removed


def _create_lock_file(folder: Path) -> tuple[Path, int]:
    """Create and lock a file; each attempt uses a new name.

    Another process may remove the file before it is locked. Because names are never reused, it cannot remove
    the wrong file.
    """
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    for _ in range(_MAX_ATTEMPTS):
        path = folder / str(uuid.uuid4())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if _try_lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_nlink:
            # The description is optional, so a full disk may lose it.
            with suppress(OSError):
                os.write(fd, _process_description().encode())
            return path, fd
        os.close(fd)
    raise Failed(f"No file in {folder} can be locked. Choose a home on a file system that supports flock.")


def _socket_name(owner_id: str) -> str:
    return f"\0retinue-owner-{owner_id}"


def _bind_socket(owner_id: str) -> socket.socket | None:
    """Bind the socket of an owner. Nothing is ever read from it; None where abstract names do not exist."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.bind(_socket_name(owner_id))
    except OSError:
        bound.close()
        return None
    return bound


def _has_socket(owner_id: str) -> bool:
    """Return whether a process holds the socket of an owner, in this network namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_socket_name(owner_id))
        except OSError:
            return False
        return True


@contextmanager
def _open_lock_file(path: Path) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _process_description() -> str:
    try:
        boot = _BOOT_ID_PATH.read_text("ascii").strip()
    except OSError:
        boot = "unknown"
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"process {os.getpid()} on {socket.gethostname()} since {started} (boot {boot})\n"


def _owners_dir(home: Path) -> Path:
    return home / "owners"


def _is_owner_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False
