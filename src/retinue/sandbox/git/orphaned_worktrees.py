"""Record worktrees before they are created, so that a crash leaves none without a session."""

# Paths are joined as text here, as in the worktree module.
# ruff: noqa: PTH103, PTH108, PTH116, PTH118, PTH119, PTH208

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

SESSION_GRACE_S = 60.0
"""Seconds after the worktree's creation by which its session must exist."""
_POSTPONE_S = 86_400.0
_MAX_PATH_BYTES = 4096


class UnclaimedWorktrees(Struct, frozen=True, kw_only=True):
    """Records of worktrees that no session refers to yet.

    One file per worktree, named after it, containing the repository path.
    """

    folder: str

    def record(self, name: str, repository: str) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        fd = os.open(
            self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(fd, os.fsencode(repository))
        finally:
            os.close(fd)

    def mark_created(self, name: str) -> None:
        """Restart the grace period: the worktree is complete and its session may follow."""
        with suppress(OSError):
            os.utime(self._path(name))

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._path(name))

    def postpone(self, name: str) -> None:
        """Try again tomorrow: the worktree holds work or cannot be inspected."""
        with suppress(OSError):
            later = time.time() + _POSTPONE_S
            os.utime(self._path(name), (later, later))

    def overdue(self) -> Iterator[tuple[str, str, float]]:
        """Yield name, repository and age in seconds of each worktree that should have a session by now."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return
        for name in names:
            with suppress(OSError):
                age_s = time.time() - os.stat(self._path(name)).st_mtime
                if age_s > SESSION_GRACE_S:
                    raw = Path(self._path(name)).read_bytes()[:_MAX_PATH_BYTES]
                    yield name, os.fsdecode(raw), age_s

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, os.path.basename(name))
