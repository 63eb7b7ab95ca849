"""Find programs by name, independently of the current folder."""

import os
import shutil
from collections.abc import Mapping


def absolute_entries(search_path: str) -> str:
    """Return a PATH without its empty and relative entries.

    They depend on the current folder, which may be a repository that somebody else wrote.
    """
    return os.pathsep.join(entry for entry in search_path.split(os.pathsep) if entry.startswith("/"))


def find_executable(command: str, env: Mapping[str, str]) -> str | None:
    """Find an executable by absolute path, or by name on this environment's PATH.

    Relative paths are never used: the result must not depend on the current folder.
    """
    if "/" in command:
        return command if os.path.isabs(command) and os.access(command, os.X_OK) else None  # noqa: PTH117  (a string)
    return shutil.which(command, path=absolute_entries(env.get("PATH", os.defpath)))
