"""Worktrees that no session may have come to name: noted before each is made, so that a crash leaves none behind."""

# Names are joined as text here, as in the worktrees themselves.
# ruff: noqa: PTH103, PTH108, PTH116, PTH118, PTH119, PTH208

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retinue.domain.value import value

PATIENCE = 60.0
"""Seconds that a session has to be there after its worktree."""
_LATER = 86_400.0
_LONGEST = 4096


@value
class Unclaimed:
    """One file for each, in a folder of Retinue's own: its name is the worktree's, its text the repository."""

    folder: str

    def note(self, name: str, source: str) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        handle = os.open(
            self._at(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(handle, os.fsencode(source))
        finally:
            os.close(handle)

    def touch(self, name: str) -> None:
        """It is made: from now on its session has a moment to be there."""
        with suppress(OSError):
            os.utime(self._at(name))

    def drop(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._at(name))

    def put_off(self, name: str) -> None:
        """It holds work, or cannot be looked at: tomorrow again."""
        with suppress(OSError):
            later = time.time() + _LATER
            os.utime(self._at(name), (later, later))

    def due(self) -> Iterator[tuple[str, str, float]]:
        """The name, the repository and the age in seconds of each that should have a session by now."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return
        for name in names:
            with suppress(OSError):
                age = time.time() - os.stat(self._at(name)).st_mtime
                if age > PATIENCE:
                    raw = Path(self._at(name)).read_bytes()[:_LONGEST]
                    yield name, os.fsdecode(raw), age

    def _at(self, name: str) -> str:
        return os.path.join(self.folder, os.path.basename(name))
