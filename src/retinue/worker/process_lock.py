"""An owner: a process that works runs, known to be alive by the lock that the kernel holds for it."""

import fcntl
import os
import socket
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from retinue.errors import Failed, NoRoom

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TRIES = 100
_ADVICE = "make room, or let this folder be written to, or choose another home with RETINUE_HOME"


class Owner:
    """Holds `<home>/owners/<id>` locked until it is closed or its process dies, however it dies."""

    def __init__(self, home: Path) -> None:
        try:
            self.path, self._descriptor = _claimed(_folder(home))
        except OSError as error:
            raise NoRoom(
                f"{_folder(home)}: owners cannot be kept here: {error.strerror}; {_ADVICE}"
            ) from error
        self.id = self.path.name

    def close(self) -> None:
        """The file goes while it is still locked, so nobody ever sees it unlocked. Where the disk does not let it go,
        it is a dead owner's, and a later sweep takes it."""
        if self._descriptor < 0:
            return
        with suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def alive(home: Path, owner_id: str) -> bool:
        """Whether that process still lives. A name that cannot be an owner's is nobody."""
        if not _is_id(owner_id):
            return False
        try:
            with _opened(_folder(home) / owner_id) as descriptor:
                return not _locked(descriptor, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    @staticmethod
    def described(home: Path, owner_id: str) -> str:
        """Who that is, for messages; empty when nothing is known."""
        if not _is_id(owner_id):
            return ""
        try:
            return (_folder(home) / owner_id).read_text("utf-8", "replace").strip()
        except OSError:
            return ""


class Onlooker:
    """Stands for an owner where none can be kept: it works no run, so nobody need know whether it lives."""

    id = "onlooker"

    def close(self) -> None:
        """There is nothing to let go of."""


def sweep(home: Path) -> list[str]:
    """Removes the files of dead owners and names them. A file goes only while the sweeper holds its lock."""
    gone: list[str] = []
    folder = _folder(home)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in filter(_is_id, names):
        # Another sweep may be faster: then there is nothing left to do.
        with suppress(FileNotFoundError), _opened(folder / name) as descriptor:
            if _locked(descriptor, fcntl.LOCK_SH):
                (folder / name).unlink()
                gone.append(name)
    return gone


def _claimed(folder: Path) -> tuple[Path, int]:
    """A sweep may take the file away before it is locked. Each try has a new name, so that no name ever means
    two files and a sweep cannot remove the wrong one."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    for _ in range(_TRIES):
        path = folder / str(uuid.uuid4())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if _locked(descriptor, fcntl.LOCK_EX) and os.fstat(descriptor).st_nlink:
            # The words decide nothing, so a full disk may cost them.
            with suppress(OSError):
                os.write(descriptor, _words().encode())
            return path, descriptor
        os.close(descriptor)
    raise Failed(f"{folder}: no file here can be locked; choose a home on a file system that has flock")


@contextmanager
def _opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _words() -> str:
    try:
        boot = _BOOT.read_text("ascii").strip()
    except OSError:
        boot = "unknown"
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"process {os.getpid()} on {socket.gethostname()} since {started} (boot {boot})\n"


def _folder(home: Path) -> Path:
    return home / "owners"


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False
