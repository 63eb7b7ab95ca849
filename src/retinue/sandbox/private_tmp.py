"""Files that an agent left in its private /tmp."""

import asyncio
import os
import re
from stat import S_ISREG

from retinue.domain.run import ResultFile
from retinue.domain.sanitize import safe_name

MAX_NAMES = 2_000
"""Names looked at in one folder tree."""
_SAVED_OUTPUT = re.compile(r"output-[0-9a-f]{8}\.txt")
"""Files in which the shell saves the long output of a command."""


async def list_tmp_files(folder: str) -> list[ResultFile]:
    """Return the regular files below a private /tmp, by name, with their real paths.

    Left out are hidden files, the saved output of commands, and names that cannot be shown as they are.
    """
    if not os.path.isdir(folder):  # noqa: PTH112  (called at the end of every child)
        return []
    return await asyncio.to_thread(_list_files, os.path.realpath(folder))


def _list_files(folder: str) -> list[ResultFile]:
    found: list[ResultFile] = []
    names_left = MAX_NAMES
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if _is_listed(each))
        for name in sorted(names):
            names_left -= 1
            if names_left < 0:
                return found
            path = f"{parent}/{name}"
            if _is_listed(name) and S_ISREG((status := _stat(path)).st_mode):
                found.append(ResultFile(path=path, size=status.st_size))
    return found


def _is_listed(name: str) -> bool:
    return not name.startswith(".") and not _SAVED_OUTPUT.fullmatch(name) and safe_name(name) == name


def _stat(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except OSError:  # removed in the meantime
        return os.stat_result((0,) * 10)
