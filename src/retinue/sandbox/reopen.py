"""Restore the owner's access to folders that a command closed, without following links."""

import errno
import os
import stat

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: str, trees: tuple[str, ...]) -> int:
    """Open a folder that is one of the trees or inside one.

    Restore owner permissions on inaccessible parent folders that this user owns. Each folder is opened from
    its parent, because other processes may be moving folders meanwhile.
    """
    tree = containing_tree(path, trees)
    folder = os.open(tree, _FOLDER_FLAGS)
    for name in filter(None, path[len(tree) :].split("/")):
        parent = folder
        try:
            folder = _open_subfolder(parent, name)
        finally:
            os.close(parent)
    return folder


def containing_tree(path: str, trees: tuple[str, ...]) -> str:
    """Return the innermost of the trees that contains a path."""
    return max((each for each in trees if path == each or path.startswith(f"{each}/")), key=len)


def restore_owner_access(folder: int) -> bool:
    """Give the owner every right to an open folder.

    Returns False if we do not own it or its mode is not the reason.
    """
    status = os.fstat(folder)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & stat.S_IRWXU == stat.S_IRWXU:
        return False
    os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101
    return True


def _open_subfolder(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.EACCES or not restore_owner_access(parent):
            raise
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
