"""Which files of the folders that are brought in have names elsewhere: a rule may close them there."""

import os
from collections.abc import Container, Iterable

from retinue.domain.glob import first_match
from retinue.domain.rule import literal
from retinue.domain.scope import Scope
from retinue.sandbox.fileguard import LINKED

_INSTALLED = frozenset(pattern.split("/")[1] for pattern in LINKED if pattern.startswith("**/"))
_OBJECTS = "/.git/objects"
"""A clone on the same disk shares them with the first one; git itself never changes one."""


def denies(scope: Scope) -> bool:
    """Whether somebody closed more than what is always closed."""
    return bool(scope.deny) or any(ceiling.deny for ceiling in scope.ceilings)


def may_be_denied(scope: Scope, path: str) -> bool:
    """Whether another name of this file could be one that is denied. Who named the file outright knows what is in it."""
    return denies(scope) and literal(path) not in scope.read and first_match(LINKED, path) is None


def known_elsewhere(trees: Iterable[str], closed: Container[str]) -> list[str]:
    """Files with more names than were found. Those whose names are all in here, and open, give nothing away. The number
    of names changes without a trace in the folder, so every file is asked each time. Installers' folders are left out."""
    names: dict[tuple[int, int], list[str]] = {}
    counts: dict[tuple[int, int], int] = {}
    pending = [top for top in trees if first_match(LINKED, f"{top}/any") is None]
    while pending:
        folder = pending.pop()
        folders, several = _looked_into(folder)
        pending += [
            path for name in folders if (path := f"{folder}/{name}") not in closed and not _is_shared(path)
        ]
        for name, status in several:
            if (path := f"{folder}/{name}") not in closed:
                which = (status.st_dev, status.st_ino)
                names.setdefault(which, []).append(path)
                counts[which] = status.st_nlink
    return [path for which, paths in names.items() if len(paths) < counts[which] for path in paths]


def _looked_into(folder: str) -> tuple[list[str], list[tuple[str, os.stat_result]]]:
    """The folders in it that may be entered, and the files with several names. Through no link, and each file by its
    short name, which costs less than the way from the root. What cannot be listed is hidden from a command anyway."""
    folders: list[str] = []
    several: list[tuple[str, os.stat_result]] = []
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return folders, several
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if status.st_nlink > 1:
                        several.append((entry.name, status))
                elif entry.is_dir(follow_symlinks=False) and entry.name not in _INSTALLED:
                    folders.append(entry.name)
    finally:
        os.close(fd)
    return folders, several


def _is_shared(folder: str) -> bool:
    return folder.endswith(_OBJECTS)
