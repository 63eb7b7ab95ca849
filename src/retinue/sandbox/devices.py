"""Device files for commands that root starts: the machine's own belong to root, and whoever owns one may change its mode."""

import fcntl
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace

from retinue.domain.value import value
from retinue.errors import Failed

NAMES = ("null", "zero", "full", "random", "urandom", "tty")
FOLDER = "/dev/.retinue"
"""On the one file system where devices surely work."""

_NOBODY = 65534
_TRIES = 64


@value
class Lent:
    """Devices for one command. The folder is locked by everybody who uses it."""

    at: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name → a device of the same kind that belongs to nobody. Empty for an ordinary user, who owns none of them."""
    folder: str = ""
    descriptor: int = -1

    def over(self) -> None:
        """Whoever is the last to use them takes them away. After a kill they stay until the next command ends."""
        if self.descriptor < 0:
            return
        try:
            with suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for name in os.listdir(self.descriptor):  # noqa: PTH208
                    os.unlink(name, dir_fd=self.descriptor)
                os.rmdir(self.folder)  # noqa: PTH106
        finally:
            os.close(self.descriptor)


def lent(folder: str = FOLDER) -> Lent:
    if os.geteuid() != 0:
        return Lent()
    try:
        empty = Lent(folder=folder, descriptor=_entered(folder))
        try:
            return replace(empty, at={name: f"{folder}/{_made(name, empty.descriptor)}" for name in NAMES})
        except BaseException:
            empty.over()
            raise
    except OSError as error:
        raise Failed(
            f"devices of their own for commands cannot be made in {folder} ({error.strerror}): "
            "run Retinue as an ordinary user"
        ) from error


def _entered(folder: str) -> int:
    """The folder, in use by us from now on: not one that somebody is taking away."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o755)  # noqa: PTH102
        with suppress(FileNotFoundError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)
    raise OSError(0, "it is being removed again and again")


def _made(name: str, folder: int) -> str:
    """Made complete under a name of its own and then renamed, so that nobody meets it half made."""
    kind = os.stat(f"/dev/{name}").st_rdev  # noqa: PTH116
    with suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISCHR(there.st_mode) and (there.st_rdev, there.st_uid) == (kind, _NOBODY):
            return name
    new = f"{name}.{os.getpid()}.{os.urandom(4).hex()}"
    os.mknod(new, stat.S_IFCHR, kind, dir_fd=folder)
    os.chown(new, _NOBODY, _NOBODY, dir_fd=folder)
    os.chmod(new, 0o666, dir_fd=folder)  # noqa: S103  (a device that everyone may use, as the machine's own)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    return name
