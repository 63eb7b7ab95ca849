"""Which files of the folders that are brought in have names elsewhere: a rule may close them there."""

import os
import re
import stat
from collections.abc import Iterable

from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import literal
from retinue.sandbox.files.closed_path_scan import Kind, Look
from retinue.sandbox.files.guarded_files import LINKED

_INSTALLED = "|".join(re.escape(pattern.split("/")[1]) for pattern in LINKED if pattern.startswith("**/"))
SHARED = re.compile(rf"/(?:{_INSTALLED}|\.git/objects)(?:/|\Z)")
"""Installers' folders; and git's objects: a clone on the same disk shares them with the first one, and git itself never
changes one."""


def denies(scope: Scope) -> bool:
    """Whether somebody closed more than what is always closed."""
    return bool(scope.deny) or any(ceiling.deny for ceiling in scope.ceilings)


def may_be_denied(scope: Scope, path: str) -> bool:
    """Whether another name of this file could be one that is denied. Who named the file outright knows what is in it."""
    return denies(scope) and literal(path) not in scope.read and first_match(LINKED, path) is None


def known_elsewhere(look: Look, trees: Iterable[str]) -> list[str]:
    """Files with more names than were found. Those whose names are all in here, and open, give nothing away. The number
    of names changes without a trace in the folder, so every file is asked each time. Installers' folders are left out."""
    names: dict[tuple[int, int], list[str]] = {}
    counts: dict[tuple[int, int], int] = {}
    tops = tuple(f"{top}/" for top in trees if first_match(LINKED, f"{top}/any") is None)
    for folder, held in look.folders.items():
        if not held.written or not f"{folder}/".startswith(tops) or SHARED.search(folder):
            continue
        for name, status in _several(folder, held.files()):
            path = f"{folder}/{name}"
            if look.sight.get(path, Kind.POINTER) is Kind.POINTER:
                which = (status.st_dev, status.st_ino)
                names.setdefault(which, []).append(path)
                counts[which] = status.st_nlink
    return [path for which, paths in names.items() if len(paths) < counts[which] for path in paths]


def _several(folder: str, names: list[str]) -> list[tuple[str, os.stat_result]]:
    """The files with several names. Through no link, and each by its short name, which costs less than the way from
    the root. What cannot be reached is hidden from a command anyway."""
    found: list[tuple[str, os.stat_result]] = []
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        for name in names:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                found.append((name, status))
    finally:
        os.close(fd)
    return found
