"""Find what git needs for a commit in the worktree that Retinue created for a session."""

# Paths are joined and compared as text here, as in git.
# ruff: noqa: PTH112, PTH113, PTH114, PTH118, PTH208

import os
import re
from collections.abc import Iterator

from msgspec import Struct

from retinue.domain.permissions import git_paths
from retinue.domain.permissions.scope import Scope
from retinue.errors import Failed
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.git.repository import read_first_line
from retinue.sandbox.git.safe_config import read_safe_config

BRANCH_PREFIX = "retinue"
"""First component of the branch names of worktrees: `retinue/<name>`."""

_PACKED_REFS = "packed-refs"
_USERS_BRANCH = re.compile(rf"ref: (refs/heads/(?!{BRANCH_PREFIX}/)[^\0\n]+)")


class OwnWorktree(Struct, frozen=True, kw_only=True):
    """The git folders of a session's own worktree."""

    pointer: str
    """The worktree's file `.git`."""
    git_dir: str
    common_dir: str
    is_writable: bool

    def trees(self) -> dict[str, bool]:
        """Return the folders that a command sees, and whether it may change them."""
        live = dict.fromkeys(self._live_folders(), self.is_writable)
        read_only = (f"{self.common_dir}/refs", f"{self.common_dir}/info")
        return {path: False for path in read_only if os.path.isdir(path)} | live

    def shared_files(self) -> Iterator[str]:
        """Yield the files next to these folders that git reads."""
        for name in ("HEAD", "shallow", _PACKED_REFS):
            if os.path.isfile(path := f"{self.common_dir}/{name}") and not os.path.islink(path):
                yield path

    def generated_files(self) -> dict[str, bytes]:
        """Return the files that a command sees with another content, by path.

        Git must not remove objects: it does not see the other worktrees that need them. Without `packed-refs`, it
        would move the branches into a new one.
        """
        config = f"{self.common_dir}/config"
        packed_refs = f"{self.common_dir}/{_PACKED_REFS}"
        files = {config: read_safe_config(config) + b"[extensions]\n\tpreciousobjects = true\n"}
        return files if os.path.lexists(packed_refs) else files | {packed_refs: b""}

    def is_intact(self, root: str) -> bool:
        """Return whether the worktree and its repository still refer to each other as recorded."""
        return (
            all(
                os.path.isdir(folder) and os.path.realpath(folder) == folder
                for folder in self._live_folders()
            )
            and _resolve(root, (read_first_line(self.pointer) or "").removeprefix("gitdir: ")) == self.git_dir
            and _resolve(self.git_dir, read_first_line(f"{self.git_dir}/gitdir")) == self.pointer
            and _resolve(self.git_dir, read_first_line(f"{self.git_dir}/commondir")) == self.common_dir
        )

    def _live_folders(self) -> tuple[str, ...]:
        return (self.git_dir, *(f"{self.common_dir}/{name}" for name in git_paths.SHARED_LIVE_FOLDERS))

    def branches_in_use(self) -> Iterator[str]:
        """Yield the files of the branches that are checked out in the user's own folders, and of their logs.

        Changing one would make the files there look modified. Worktrees that Retinue created are left out: there
        may be thousands.
        """
        worktrees_folder = f"{self.common_dir}/{git_paths.WORKTREES_FOLDER}"
        others = (f"{worktrees_folder}/{name}" for name in os.listdir(worktrees_folder))
        for folder in (self.common_dir, *(other for other in others if other != self.git_dir)):
            match = _USERS_BRANCH.match(read_first_line(f"{folder}/HEAD") or "")
            for path in (
                (f"{self.common_dir}/{match[1]}", f"{self.common_dir}/logs/{match[1]}") if match else ()
            ):
                if os.path.realpath(path) == path and os.path.isfile(path):
                    yield path


def find_own_worktree(scope: Scope) -> OwnWorktree | None:
    """Return the git folders that were recorded when Retinue created the worktree; None if there are none.

    The worktree and the repository must still refer to each other. What the worktree's `.git` says is compared
    with the record, never followed. Raises Failed if they differ.
    """
    git_dir, common_dir, pointer = scope.git_dir, scope.common_git_dir, f"{scope.root}/{git_paths.GIT_FOLDER}"
    if not common_dir or not scope.check_path(git_dir).ok:
        return None
    found = OwnWorktree(
        pointer=pointer,
        git_dir=git_dir,
        common_dir=common_dir,
        is_writable=scope.check_path(f"{git_dir}/index", "write").ok,
    )
    if not found.is_intact(scope.root):
        raise Failed(
            f"the worktree {printable_path(scope.root)} and its repository {printable_path(common_dir)} do not refer to "
            "each other as they did when it was created"
        )
    return found


def _resolve(folder: str, line: str | None) -> str:
    return os.path.realpath(os.path.join(folder, line)) if line else ""
