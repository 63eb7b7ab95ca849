"""Device files for commands started by root.

The machine's own devices belong to root, and an owner may change a file's mode.
"""

import fcntl
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from retinue.errors import Failed

DEVICE_NAMES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_FOLDER = "/dev/.retinue"
"""In /dev, because other file systems may not support devices."""

_NOBODY_UID = 65534
_MAX_TRIES = 64


class CommandDevices(Struct, frozen=True, kw_only=True):
    """Devices for one command. Every user of the folder holds a shared lock on it."""

    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a name to a device of the same kind, owned by the user nobody.

    Empty for an ordinary user, who owns none of the machine's devices.
    """
    folder: str = ""
    lock_fd: int = -1

    def release(self) -> None:
        """Release the devices; the last user removes them.

        After a kill they stay until the next command ends.
        """
        if self.lock_fd < 0:
            return
        try:
            with suppress(OSError):
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for name in os.listdir(self.lock_fd):  # noqa: PTH208
                    os.unlink(name, dir_fd=self.lock_fd)
                os.rmdir(self.folder)  # noqa: PTH106
        finally:
            os.close(self.lock_fd)


def acquire_devices(folder: str = DEVICE_FOLDER) -> CommandDevices:
    if os.geteuid() != 0:
        return CommandDevices()
    try:
        devices = CommandDevices(folder=folder, lock_fd=_lock_folder(folder))
        try:
            return replace(
                devices,
                paths={name: f"{folder}/{_make_device(name, devices.lock_fd)}" for name in DEVICE_NAMES},
            )
        except BaseException:
            devices.release()
            raise
    except OSError as error:
        raise Failed(
            f"device files for commands cannot be created in {folder} ({error.strerror}). "
            "Run Retinue as an ordinary user"
        ) from error


def _lock_folder(folder: str) -> int:
    """Create and lock the folder, retrying if another process is removing it."""
    for _ in range(_MAX_TRIES):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o755)  # noqa: PTH102
        with suppress(FileNotFoundError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)
    raise OSError(0, "other processes keep removing it")


def _make_device(name: str, folder: int) -> str:
    """Create a device and rename it into place, so that no other process sees it incomplete."""
    device_number = os.stat(f"/dev/{name}").st_rdev  # noqa: PTH116
    with suppress(FileNotFoundError):
        existing = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISCHR(existing.st_mode) and (existing.st_rdev, existing.st_uid) == (
            device_number,
            _NOBODY_UID,
        ):
            return name
    temp_name = f"{name}.{os.getpid()}.{os.urandom(4).hex()}"
    os.mknod(temp_name, stat.S_IFCHR, device_number, dir_fd=folder)
    os.chown(temp_name, _NOBODY_UID, _NOBODY_UID, dir_fd=folder)
    os.chmod(temp_name, 0o666, dir_fd=folder)  # noqa: S103  (usable by everyone, like the machine's own device)
    os.rename(temp_name, name, src_dir_fd=folder, dst_dir_fd=folder)
    return name
