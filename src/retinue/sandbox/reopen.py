"""Folders that a command closed by their mode: who owns them opens them again, reached through no link."""

import errno
import os
import stat

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def opened(path: str, trees: tuple[str, ...]) -> int:
    """A descriptor of this folder, which is one of the trees or in one. Whatever on the way is ours and does not let us
    pass is mended: others may be moving folders meanwhile, so each is reached from the one above it."""
    tree = max((one for one in trees if path == one or path.startswith(f"{one}/")), key=len)
    folder = os.open(tree, _FOLDER)
    for name in filter(None, path[len(tree) :].split("/")):
        above = folder
        try:
            folder = _inner(above, name)
        finally:
            os.close(above)
    return folder


def mended(folder: int) -> bool:
    """Gives the owner every right to an open folder, if that is us; False when it is not its mode that closes it."""
    status = os.fstat(folder)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & stat.S_IRWXU == stat.S_IRWXU:
        return False
    os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101
    return True


def _inner(above: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno != errno.EACCES or not mended(above):
            raise
    return os.open(name, _FOLDER, dir_fd=above)
