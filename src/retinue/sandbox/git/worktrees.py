"""Create and remove git worktrees: a workspace of its own for one session."""

# Paths are joined and compared as text here, as in git and in the scope's patterns.
# ruff: noqa: PTH102, PTH106, PTH112, PTH114, PTH116, PTH118, PTH119

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.git_paths import program_settings
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed, Refused, RetinueError
from retinue.interfaces import NewWorktree, Shell
from retinue.sandbox.git.orphaned_worktrees import SESSION_GRACE_S, UnclaimedWorktrees
from retinue.sandbox.git.own_worktree import BRANCH_PREFIX
from retinue.sandbox.git.repository import Repository, find_repository, is_on_branch

GIT_TIMEOUT_S = 300.0
_GIT_ENVIRONMENT = (
    "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
    "GIT_LFS_SKIP_SMUDGE=1", "GIT_OPTIONAL_LOCKS=0", "GIT_PAGER=cat", "GIT_EDITOR=false", "GIT_ASKPASS=false",
    "GIT_SSH_COMMAND=false", "LC_ALL=C",
)  # fmt: skip
_GIT_COMMAND = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*",
    "-c", "protocol.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "submodule.recurse=false",
    "-c", "advice.detachedHead=false", "-c", "core.pager=cat", "-c", "core.ignoreStat=false",
    "-c", "core.untrackedCache=false", "-c", "core.attributesFile=/dev/null", "-c", "core.excludesFile=/dev/null",
    "-c", "diff.external=", "-c", "credential.helper=", "-c", "commit.gpgSign=false", "-c", "gpg.program=false",
)  # fmt: skip
"""Nothing is run on the repository's behalf and nothing is fetched.

In the sandbox, git sees of the repository's configuration only what it needs to read it: no filters, drivers,
monitors and helpers. Its hooks are hidden.
"""

UNCLAIMED_FOLDER = "unclaimed"
"""Folder next to the worktrees that records those which no session may refer to yet."""

_LOCK_FILE, _INITIALIZING = "locked", b"initializing"
"""Git's own marker on a worktree that is still being created."""

_INDEX_FILE, _OLD_MTIME = "index", 1
"""Git's list of files. An mtime of 0 would mean to git that the age is unknown."""

IsTrusted = Callable[[str], bool]


class Worktrees:
    """Create worktrees below one folder, and remove only those that are clean and unused."""

    def __init__(
        self,
        folder: Path,
        *,
        shell_for_scope: Callable[[Scope], Shell],
        find_sandbox_level: Callable[[], Awaitable[SandboxLevel]],
        is_trusted: IsTrusted,
    ) -> None:
        """Create the service.

        `shell_for_scope` runs git under a scope, as every command is run.
        """
        self.folder = folder
        self.unclaimed = UnclaimedWorktrees(folder=os.path.join(folder.parent, UNCLAIMED_FOLDER))
        self._shell_for_scope = shell_for_scope
        self._find_sandbox_level = find_sandbox_level
        self._is_trusted = is_trusted

    async def create(self, root: str, name: str) -> NewWorktree | None:
        """Create a worktree, or return None outside a repository.

        The worktree is complete, or an error is raised and nothing is left behind.
        """
        repo = find_repository(root)
        if repo is None:
            return None
        await self._check_git_allowed(repo.top_level)
        target = os.path.join(os.path.realpath(self.folder), name)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.unclaimed.record(name, repo.main_path)
            os.mkdir(target, 0o700)
        except OSError as error:
            raise _creation_error(repo, str(error)) from error
        try:
            return await self._add_worktree(repo, os.path.realpath(root), target)
        except OSError as error:
            await self._roll_back(repo, target)
            raise _creation_error(repo, str(error)) from error
        except BaseException:
            # A cancellation here must not leave a folder behind that no session refers to.
            await asyncio.shield(self._roll_back(repo, target))
            raise

    async def remove(self, root: str, source: str) -> bool:
        """Remove a worktree; return False if it stays.

        A worktree stays if it holds changes, has no branch to hold its commits, or cannot be inspected. Its branch
        stays if it holds commits that have not been merged elsewhere.
        """
        target = self.containing_worktree(root)
        if target is None or not os.path.isdir(target):
            return True
        try:
            repo = find_repository(source)
            if repo is None or not (git_dir := repo.worktree_git_dir(target)):
                return False
            await self._check_git_allowed(repo.top_level)
            if not is_on_branch(git_dir) or not await self._is_clean(repo, target, git_dir):
                return False
            _remove_tree(target)
            _remove_tree(git_dir)
            await self._delete_branch(repo, "-d", target)
        except (OSError, RetinueError):
            return False
        self.unclaimed.remove(os.path.basename(target))
        return True

    async def remove_abandoned(
        self, list_used_folders: Callable[[], Awaitable[Collection[str]]]
    ) -> list[str]:
        """Remove worktrees that a crash left without a session, and return their paths.

        `list_used_folders` is called only when there is something to remove. A worktree that holds work
        stays.
        """
        removed: list[str] = []
        if not (due := list(self.unclaimed.overdue())):
            return removed
        in_use = {self.containing_worktree(root) for root in await list_used_folders() if root}
        for name, source, age_s in due:
            target = os.path.join(os.path.realpath(self.folder), name)
            if target in in_use or not os.path.lexists(target):
                self.unclaimed.remove(name)
            elif await self._remove_if_abandoned(target, source, age_s):
                removed.append(target)
                self.unclaimed.remove(name)
            else:
                self.unclaimed.postpone(name)
        return removed

    def containing_worktree(self, root: str) -> str | None:
        """Return the Retinue worktree that contains this folder, or None."""
        base = os.path.realpath(self.folder)
        name = os.path.relpath(root, base).split("/")[0]
        return None if name in ("", ".", "..") else os.path.join(base, name)

    async def _remove_if_abandoned(self, target: str, source: str, age_s: float) -> bool:
        """Remove one worktree without a session; return whether it is gone.

        A worktree that git never finished holds no work. Until git's timeout has passed, another process may
        still be creating it.
        """
        try:
            if (repo := find_repository(source)) is None:
                os.rmdir(target)
                return True
            git_dir = repo.worktree_git_dir(target)
            if git_dir is not None and not _is_initializing(git_dir):
                is_old = time.time() - os.stat(git_dir).st_mtime > SESSION_GRACE_S
                return is_old and await self.remove(target, source)
            if age_s < GIT_TIMEOUT_S + SESSION_GRACE_S:
                return False
            await self._check_git_allowed(repo.top_level)
            if git_dir is None:
                os.rmdir(target)
            await self._roll_back(repo, target)
        except (OSError, RetinueError):
            return False
        return not os.path.lexists(target)

    async def _add_worktree(self, repo: Repository, root: str, target: str) -> NewWorktree:
        branch = f"{BRANCH_PREFIX}/{os.path.basename(target)}"
        arguments = ("worktree", "add", "--quiet", "--no-track", "-b", branch, target, "HEAD")
        async with repo.lock():
            # Only under the lock: git removes these folders when another command empties them.
            repo.create_writable_folders(BRANCH_PREFIX)
            result = await self._run_git(repo, target, *arguments)
        git_dir = repo.worktree_git_dir(target)
        if result.exit_code != 0 or git_dir is None:
            raise _creation_error(repo, _git_failure_reason(result))
        workspace = target
        for part in os.path.relpath(root, repo.top_level).split("/"):
            workspace = workspace if part == "." else os.path.join(workspace, part)
            if os.path.islink(workspace):
                raise _creation_error(
                    repo, f"{workspace} is a symbolic link there. Commit the files of {root} first"
                )
            Path(workspace).mkdir(exist_ok=True)
        self.unclaimed.mark_created(os.path.basename(target))
        return NewWorktree(
            folder=workspace,
            repository=repo.main_path,
            git_dir=git_dir if workspace == target else "",
        )

    async def _roll_back(self, repo: Repository, target: str) -> None:
        git_dir = repo.worktree_git_dir(target)
        for folder in (target, git_dir):
            if folder and os.path.isdir(folder):
                _remove_tree(folder)
        self.unclaimed.remove(os.path.basename(target))
        try:
            await self._delete_branch(repo, "-D", target)
        except (OSError, RetinueError):
            return

    async def _is_clean(self, repo: Repository, target: str, git_dir: str) -> bool:
        """Return whether git reports no changes.

        Uses git's own administrative files, not the `.git` file in the worktree, and compares file contents, not
        only sizes and times.
        """
        _backdate_index(git_dir)
        arguments = (
            "--work-tree",
            target,
            "status",
            "--porcelain",
            "--untracked-files=all",
            "--ignore-submodules=none",
        )
        result = await self._run_git(repo, target, *arguments, git_dir=git_dir)
        return result.exit_code == 0 and not result.timed_out and not result.output.strip()

    async def _delete_branch(self, repo: Repository, delete_flag: str, target: str) -> None:
        """Delete the worktree's branch; with -d only if its commits are elsewhere too."""
        scope = Scope(
            read=(subtree_pattern(repo.common_dir),),
            write=(subtree_pattern(repo.common_dir),),
            closed_paths=program_settings(repo.common_dir),
            guarded_paths=(),
            root=repo.common_dir,
        )
        arguments = (
            "--git-dir",
            repo.git_dir,
            "branch",
            "--quiet",
            delete_flag,
            f"{BRANCH_PREFIX}/{os.path.basename(target)}",
        )
        async with repo.lock():
            await self._shell_for_scope(scope)(_git_command_line(*arguments), GIT_TIMEOUT_S)

    async def _run_git(
        self, repo: Repository, target: str, *arguments: str, git_dir: str = ""
    ) -> CommandResult:
        """Run git in the sandbox.

        Git may read its own folder. To create a worktree, it may write the worktree, its administrative files
        and our branches. With the `git_dir` of an existing worktree, it may write nothing.
        """
        writable_folders = () if git_dir else (target, *repo.writable_folders(BRANCH_PREFIX))
        scope = Scope(
            read=(subtree_pattern(repo.common_dir), subtree_pattern(target)),
            write=tuple(subtree_pattern(folder) for folder in writable_folders),
            closed_paths=program_settings(repo.common_dir),
            guarded_paths=(),
            root=target,
        )
        redirect = " 2>/dev/null" if git_dir else ""
        return await self._shell_for_scope(scope)(
            _git_command_line("--git-dir", git_dir or repo.git_dir, *arguments) + redirect, GIT_TIMEOUT_S
        )

    async def _check_git_allowed(self, top_level: str) -> None:
        if await self._find_sandbox_level() is not SandboxLevel.STRICT and not self._is_trusted(top_level):
            raise Refused(
                f"git was not run in {top_level}: its settings can start programs, and the sandbox is not strict. "
                f"Run `retinue trust {shlex.quote(top_level)}` if it is yours, or `retinue doctor` to see what the sandbox lacks"
            )


def _git_command_line(*arguments: str) -> str:
    return f"{' '.join(_GIT_ENVIRONMENT)} {shlex.join((*_GIT_COMMAND, *arguments))}"


def _is_initializing(git_dir: str) -> bool:
    try:
        return Path(git_dir, _LOCK_FILE).read_bytes().strip() == _INITIALIZING
    except OSError:
        return False


def _backdate_index(git_dir: str) -> None:
    """Set the index's mtime far back, so that git compares the content of every file.

    Git considers a file unchanged by its size and the second of its mtime, unless the index is at least as
    old. Otherwise a change of equal length, made in the second of the checkout, would be overlooked.
    """
    os.utime(os.path.join(git_dir, _INDEX_FILE), (_OLD_MTIME, _OLD_MTIME), follow_symlinks=False)


def _remove_tree(folder: str) -> None:
    """Remove a folder. Links inside it are removed, never followed."""
    if os.path.islink(folder) or os.path.realpath(folder) != folder:
        raise OSError(f"{folder} is a symbolic link or inside one")
    shutil.rmtree(folder)


def _creation_error(repo: Repository, reason: str) -> Failed:
    return Failed(
        f"no worktree of {repo.top_level} could be created, and the agent must work in one: {reason}"
    )


def _git_failure_reason(result: CommandResult) -> str:
    if result.timed_out:
        return f"git timed out after {GIT_TIMEOUT_S:g} seconds"
    lines = [line for line in result.output.splitlines() if line.strip()]
    message = next(
        (line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else ""
    )
    if "HEAD" in message and ("invalid reference" in message or "not a valid object name" in message):
        return f"it has no commit yet ({message.strip()}). Commit something first"
    return message.strip() or "git printed no error"
