"""Recognise git folders that are not called `.git`: git obeys them when it is run there."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope

_LOCK = threading.Lock()


@contextmanager
def serialize_repository_writes(real_path: str) -> Generator[None]:
    """Write files one after another that may complete a repository: each check sees the writes before it."""
    if git_paths.REPOSITORY_MARKERS.isdisjoint(real_path.split("/")):
        yield
    else:
        with _LOCK:
            yield


def is_in_guarded_repository(scope: Scope, real_path: str) -> bool:
    """Return whether git would act on this file, once written, because a folder above it is a repository.

    The write itself may complete the repository.
    """
    folder, relative = real_path, ""
    while folder := folder.rpartition("/")[0]:
        relative = real_path[len(folder) + 1 :]
        first_name = relative.partition("/")[0]
        existing = {name for name in git_paths.REPOSITORY_MARKERS if os.path.lexists(f"{folder}/{name}")}
        is_completed = not git_paths.is_repository(existing) and first_name in git_paths.REPOSITORY_MARKERS
        if (
            git_paths.is_repository({*existing, first_name})
            and (is_completed or git_paths.is_git_path(relative))
            and scope.guards_repository(folder)
        ):
            return True
    return False
