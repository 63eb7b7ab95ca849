"""Find mounted files that have hard links elsewhere, where a rule may close them."""

import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import escape_glob
from retinue.sandbox.files.closed_path_scan import PathKind, ScanResult
from retinue.sandbox.files.guarded_files import SHARED_FILE_PATTERNS

_INSTALLER_FOLDERS = "|".join(
    re.escape(pattern.split("/")[1]) for pattern in SHARED_FILE_PATTERNS if pattern.startswith("**/")
)
SHARED_FOLDERS = re.compile(rf"/(?:{_INSTALLER_FOLDERS}|\.git/objects)(?:/|\Z)")
"""Installers' folders, and git's objects.

A clone on the same disk shares its objects, and git never changes one.
"""


def has_deny_rules(scope: Scope) -> bool:
    """Return whether a rule denies more than what is always closed."""
    return bool(scope.deny) or any(ceiling.deny for ceiling in scope.ceilings)


def can_be_denied(scope: Scope, path: str) -> bool:
    """Return whether another name of this file could be denied.

    A scope that names the file literally means exactly this content.
    """
    return (
        has_deny_rules(scope)
        and escape_glob(path) not in scope.read
        and first_match(SHARED_FILE_PATTERNS, path) is None
    )


class LinkedFile(NamedTuple):
    """A file with several names."""

    paths: list[str]
    """Its names that were found open."""
    is_linked_elsewhere: bool
    """Whether it has more names than these."""


def linked_files(scan: ScanResult, trees: Iterable[str]) -> list[LinkedFile]:
    """Return the files in these trees that have several names.

    The number of names changes without a trace in the folder, so every file is checked each time. Installers'
    folders are skipped.
    """
    paths_by_inode: dict[tuple[int, int], list[str]] = {}
    link_counts: dict[tuple[int, int], int] = {}
    prefixes = tuple(f"{top}/" for top in trees if first_match(SHARED_FILE_PATTERNS, f"{top}/any") is None)
    for folder, folder_scan in scan.folders.items():
        if (
            not folder_scan.joined_files
            or not f"{folder}/".startswith(prefixes)
            or SHARED_FOLDERS.search(folder)
        ):
            continue
        for name, status in _hard_linked_files(folder, folder_scan.file_names()):
            path = f"{folder}/{name}"
            if scan.closed_paths.get(path, PathKind.PROTECTED) is PathKind.PROTECTED:
                inode = (status.st_dev, status.st_ino)
                paths_by_inode.setdefault(inode, []).append(path)
                link_counts[inode] = status.st_nlink
    return [LinkedFile(paths, len(paths) < link_counts[inode]) for inode, paths in paths_by_inode.items()]


def _hard_linked_files(folder: str, names: list[str]) -> list[tuple[str, os.stat_result]]:
    """Return the files with several names.

    Links are not followed. Each file is checked by its short name, which costs less than its path from the
    root. Unreachable files are hidden from a command anyway.
    """
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
