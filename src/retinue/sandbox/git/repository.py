"""A git repository as its files say it is: found without running git, and believed only where both sides agree."""

# Names are joined and compared as text here, as git has them.
# ruff: noqa: PTH112, PTH114, PTH118, PTH119, PTH120, PTH208

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

from retinue.domain.value import value
from retinue.errors import Failed

_NOTES = "worktrees"
_MOST = 4096
_LOOK = 0.02


@value
class Repository:
    top: str
    """The folder that holds the files."""
    git: str
    """Git's own folder, shared by all worktrees."""
    here: str
    """Git's notes on this very folder: the same, or a part of it when this is a worktree itself."""

    @property
    def main(self) -> str:
        """Where the repository itself lies, however many worktrees it has."""
        return os.path.dirname(self.git) if os.path.basename(self.git) == ".git" else self.top

    def rooms(self, branches: str) -> tuple[str, ...]:
        """Where git writes when it makes a worktree whose branch begins with this word."""
        return tuple(
            os.path.join(self.git, *parts)
            for parts in ((_NOTES,), ("refs", "heads", branches), ("logs", "refs", "heads", branches))
        )

    def make_room(self, branches: str) -> None:
        for place in self.rooms(branches):
            if os.path.islink(place) or os.path.realpath(os.path.dirname(place)) != os.path.dirname(place):
                raise Failed(f"{place} is a link, which is not followed: git's own folder must be one piece")
            os.makedirs(place, exist_ok=True)  # noqa: PTH103

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """One at a time, in all processes: git reads its notes on every worktree when it makes one, and gives up over
        those that it is just writing for another. Where nothing can be locked, nobody waits."""
        handle = os.open(self.git, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # No thread is kept for it: whoever has the turn may need one.
            while not _locked(handle):  # noqa: ASYNC110  (a lock of the kernel's tells nobody)
                await asyncio.sleep(_LOOK)
            yield
        finally:
            os.close(handle)

    def notes_on(self, place: str) -> str | None:
        """The folder in which git keeps what it knows of a worktree, if it knows it."""
        above = os.path.join(self.git, _NOTES)
        try:
            names = sorted(os.listdir(above))
        except OSError:
            return None
        for name in names:
            notes = os.path.join(above, name)
            said = None if os.path.islink(notes) else _first_line(os.path.join(notes, "gitdir"))
            if said and os.path.realpath(os.path.dirname(os.path.join(notes, said))) == place:
                return notes
        return None


def repository(root: str) -> Repository | None:
    """The one around a folder; None where there is none. Failed when what is there is no whole repository: working on
    in the next one around it would be somewhere else."""
    for place in _upward(os.path.realpath(root)):
        git = os.path.join(place, ".git")
        if not os.path.lexists(git):
            continue
        if os.path.islink(git):
            raise Failed(f"{git} is a link, which is not followed: put git's own folder there")
        if os.path.isdir(git):
            return Repository(top=place, git=git, here=git)
        return _linked(place, git)
    return None


def _linked(place: str, pointer: str) -> Repository:
    """A worktree of another repository, which must know it: else any folder could name any repository as its own."""
    said = (_first_line(pointer) or "").removeprefix("gitdir:").strip()
    here = os.path.realpath(os.path.join(place, said))
    git = os.path.realpath(os.path.join(here, _first_line(os.path.join(here, "commondir")) or ""))
    known = said and Repository(top=place, git=git, here=here).notes_on(place) == here
    if not known or not os.path.isdir(os.path.join(git, "objects")):
        raise Failed(
            f"{pointer} leads to a repository that does not know this folder (a submodule, or a moved worktree): "
            "start in the repository itself, or run `git worktree repair`"
        )
    return Repository(top=place, git=git, here=here)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _upward(place: str) -> Iterator[str]:
    while True:
        yield place
        above = os.path.dirname(place)
        if above == place:
            return
        place = above


def _first_line(path: str) -> str | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(handle, _MOST)).split("\n", 1)[0].rstrip("\r")
    except OSError:
        return None
    finally:
        os.close(handle)
