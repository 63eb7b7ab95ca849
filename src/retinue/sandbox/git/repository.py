"""Find a git repository by reading its files, without running git.

A worktree is accepted only if it and its repository refer to each other.
"""

# Paths are joined and compared as text here, as in git.
# ruff: noqa: PTH112, PTH114, PTH118, PTH119, PTH120, PTH208

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

from msgspec import Struct

from retinue.errors import Failed

_WORKTREES_FOLDER = "worktrees"
_MAX_LINE_BYTES = 4096
_LOCK_POLL_S = 0.02


class Repository(Struct, frozen=True, kw_only=True):
    top_level: str
    """Folder that contains the working files."""
    common_dir: str
    """Git's own folder, shared by all worktrees (git: common dir)."""
    git_dir: str
    """Git's administrative folder for this working folder; for a worktree, part of the common one."""

    @property
    def main_path(self) -> str:
        """Path of the repository itself, also for one of its worktrees."""
        return (
            os.path.dirname(self.common_dir)
            if os.path.basename(self.common_dir) == ".git"
            else self.top_level
        )

    def writable_folders(self, branch_prefix: str) -> tuple[str, ...]:
        """Return the folders that git writes when it creates a worktree with this branch prefix."""
        return tuple(
            os.path.join(self.common_dir, *parts)
            for parts in (
                (_WORKTREES_FOLDER,),
                ("refs", "heads", branch_prefix),
                ("logs", "refs", "heads", branch_prefix),
            )
        )

    def create_writable_folders(self, branch_prefix: str) -> None:
        for folder in self.writable_folders(branch_prefix):
            if os.path.islink(folder) or os.path.realpath(os.path.dirname(folder)) != os.path.dirname(folder):
                raise Failed(
                    f"{folder} is a symbolic link, which is not followed. Replace it with a real folder"
                )
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103

    @asynccontextmanager
    async def lock(self) -> AsyncGenerator[None]:
        """Serialise git commands that create worktrees, across all processes.

        Git reads the administrative files of every worktree when it creates one, and fails on those that are
        just being written. On a file system without locks, this does nothing.
        """
        fd = os.open(self.common_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Poll instead of blocking a thread: the holder of the lock may need one.
            while not _try_lock(fd):  # noqa: ASYNC110  (flock has no notification)
                await asyncio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    def worktree_git_dir(self, worktree: str) -> str | None:
        """Return git's administrative folder for a worktree, or None if git does not know it."""
        worktrees_folder = os.path.join(self.common_dir, _WORKTREES_FOLDER)
        try:
            names = sorted(os.listdir(worktrees_folder))
        except OSError:
            return None
        for name in names:
            git_dir = os.path.join(worktrees_folder, name)
            gitdir_line = (
                None if os.path.islink(git_dir) else read_first_line(os.path.join(git_dir, "gitdir"))
            )
            if (
                gitdir_line
                and os.path.realpath(os.path.dirname(os.path.join(git_dir, gitdir_line))) == worktree
            ):
                return git_dir
        return None


def find_repository(root: str) -> Repository | None:
    """Find the repository around a folder, or None.

    Raises Failed for an incomplete repository, instead of continuing with an outer one.
    """
    for folder in _parent_folders(os.path.realpath(root)):
        dot_git = os.path.join(folder, ".git")
        if not os.path.lexists(dot_git):
            continue
        if os.path.islink(dot_git):
            raise Failed(
                f"{dot_git} is a symbolic link, which is not followed. Replace it with the git folder"
            )
        if os.path.isdir(dot_git):
            return Repository(top_level=folder, common_dir=dot_git, git_dir=dot_git)
        return _linked_repository(folder, dot_git)
    return None


def _linked_repository(folder: str, pointer: str) -> Repository:
    """Resolve a worktree's `.git` file.

    The repository must know the worktree: otherwise any folder could claim any repository as its own.
    """
    gitdir_line = (read_first_line(pointer) or "").removeprefix("gitdir:").strip()
    git_dir = os.path.realpath(os.path.join(folder, gitdir_line))
    common_dir = os.path.realpath(
        os.path.join(git_dir, read_first_line(os.path.join(git_dir, "commondir")) or "")
    )
    is_known = (
        gitdir_line
        and Repository(top_level=folder, common_dir=common_dir, git_dir=git_dir).worktree_git_dir(folder)
        == git_dir
    )
    if not is_known or not os.path.isdir(os.path.join(common_dir, "objects")):
        raise Failed(
            f"{pointer} points to a repository that does not list this folder (a submodule, or a moved worktree). "
            "Start in the repository itself, or run `git worktree repair`"
        )
    return Repository(top_level=folder, common_dir=common_dir, git_dir=git_dir)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _parent_folders(folder: str) -> Iterator[str]:
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def is_on_branch(git_dir: str) -> bool:
    """Return whether new commits in this working folder belong to a branch."""
    return (read_first_line(os.path.join(git_dir, "HEAD")) or "").startswith("ref: refs/heads/")


def read_first_line(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(fd, _MAX_LINE_BYTES)).split("\n", 1)[0].rstrip("\r")
    except OSError:
        return None
    finally:
        os.close(fd)
