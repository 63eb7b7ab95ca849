"""Device files for commands that root starts: the machine's own belong to root, and whoever owns one may change its mode."""

import os
import stat
from contextlib import suppress

from retinue.errors import Failed

NAMES = ("null", "zero", "full", "random", "urandom", "tty")

_FOLDER = "/dev/.retinue"
"""On the one file system where devices surely work; gone with the next start of the machine."""
_NOBODY = 65534


def lent() -> dict[str, str]:
    """Name → a device of the same kind that belongs to nobody. Empty for an ordinary user, who owns none of them."""
    if os.geteuid() != 0:
        return {}
    try:
        with suppress(FileExistsError):
            os.mkdir(_FOLDER, 0o755)  # noqa: PTH102
        return {name: _made(name) for name in NAMES}
    except OSError as error:
        raise Failed(
            f"devices of their own for commands cannot be made in {_FOLDER} ({error.strerror}): "
            "run Retinue as an ordinary user"
        ) from error


def _made(name: str) -> str:
    """Made complete under a name of its own and then renamed, so that nobody meets it half made."""
    path, kind = f"{_FOLDER}/{name}", os.stat(f"/dev/{name}").st_rdev  # noqa: PTH116
    with suppress(FileNotFoundError):
        there = os.lstat(path)
        if stat.S_ISCHR(there.st_mode) and (there.st_rdev, there.st_uid) == (kind, _NOBODY):
            return path
    new = f"{path}.{os.getpid()}"
    os.mknod(new, stat.S_IFCHR, kind)
    os.chown(new, _NOBODY, _NOBODY)
    os.chmod(new, 0o666)  # noqa: PTH101, S103  (a device that everyone may use, as the machine's own)
    os.rename(new, path)  # noqa: PTH104
    return path
