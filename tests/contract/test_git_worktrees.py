"""Worktrees created by the real git in the real sandbox: complete or not at all, and never removed with unsaved work."""

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from git_repository import commit_all, create_repository, run_git

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed, Refused
from retinue.interfaces import NewWorktree, Shell
from retinue.sandbox.git.repository import find_repository
from retinue.sandbox.git.worktrees import Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory


class RepositoryFixture:
    """A repository with one commit, and a folder for its worktrees beside it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "repo"
        (self.path / "src").mkdir(parents=True)
        (self.path / "src" / "a.txt").write_text("one\n")
        create_repository(self.path)
        self.worktrees_folder = root / "home" / "worktrees"
        self.worktrees = self.worktrees_at(None)

    def worktrees_at(
        self,
        level: SandboxLevel | None,
        *,
        trusted: bool = False,
        shell_for_scope: Callable[[Scope], Shell] | None = None,
    ) -> Worktrees:
        probe = SandboxProbe()

        async def find_level() -> SandboxLevel:
            return level or await probe.level()

        return Worktrees(
            self.worktrees_folder,
            shell_for_scope=shell_for_scope or make_shell_factory(probe, os.environ),
            find_sandbox_level=find_level,
            is_trusted=lambda _: trusted,
        )

    async def create_worktree(self, name: str, source: Path | None = None) -> Path:
        created = await self.worktrees.create(str(source or self.path), name)
        assert created is not None
        return Path(created.folder)

    def traces(self) -> list[str]:
        """Return the names of all worktree folders, git's records of them, and their branches."""
        folders = (
            sorted(path.name for path in self.worktrees_folder.iterdir())
            if self.worktrees_folder.exists()
            else []
        )
        records = self.path / ".git" / "worktrees"
        recorded = sorted(path.name for path in records.iterdir()) if records.exists() else []
        return [*folders, *recorded, *run_git(self.path, "branch", "--list", "retinue/*").split()]


@pytest.fixture
def repository(tmp_path: Path) -> RepositoryFixture:
    return RepositoryFixture(tmp_path)


async def test_a_worktree_contains_the_last_commit_on_a_branch_of_its_own(repository: RepositoryFixture):
    """Shows: L026."""
    (repository.path / "src" / "a.txt").write_text("not committed\n")
    worktree = await repository.create_worktree("one")
    assert worktree == repository.worktrees_folder / "one"
    assert (worktree / "src" / "a.txt").read_text() == "one\n"
    assert run_git(worktree, "branch", "--show-current") == "retinue/one"
    assert run_git(worktree, "status", "--porcelain") == ""
    assert run_git(repository.path, "status", "--porcelain") == "M src/a.txt"
    assert worktree.stat().st_mode & 0o777 == 0o700


async def test_a_subfolder_of_a_repository_maps_to_the_same_subfolder_of_the_worktree(
    repository: RepositoryFixture,
):
    created = await repository.worktrees.create(str(repository.path / "src"), "one")
    assert created == NewWorktree(
        folder=str(repository.worktrees_folder / "one" / "src"), repository=str(repository.path)
    )
    (repository.path / "new" / "deep").mkdir(parents=True)
    assert (await repository.create_worktree("two", repository.path / "new" / "deep")).is_dir()


async def test_no_worktree_is_created_outside_a_repository(repository: RepositoryFixture, tmp_path: Path):
    assert await repository.worktrees.create(str(tmp_path), "one") is None
    assert not repository.worktrees_folder.exists()


async def test_worktrees_created_concurrently_have_separate_folders_and_branches(
    repository: RepositoryFixture,
):
    """Shows: L026."""
    names = [f"n{number}" for number in range(8)]
    worktrees = await asyncio.gather(*(repository.create_worktree(name) for name in names))
    assert len(set(worktrees)) == 8
    assert {run_git(worktree, "branch", "--show-current") for worktree in worktrees} == {
        f"retinue/{name}" for name in names
    }


async def test_processes_run_git_in_one_repository_one_after_the_other(repository: RepositoryFixture):
    """Git fails when it finds its records of another worktree half-written."""
    lock = os.open(repository.path / ".git", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    task = asyncio.ensure_future(repository.create_worktree("one"))
    async with asyncio.timeout(30):
        while not (repository.worktrees_folder / "one").exists():  # noqa: ASYNC110  (a folder: nothing to wait on)
            await asyncio.sleep(0.01)
    await asyncio.wait({task}, timeout=0.2)
    assert (task.done(), repository.traces()) == (False, ["one"])
    os.close(lock)
    assert (await task / "src" / "a.txt").read_text() == "one\n"


async def test_a_worktree_is_created_although_git_removed_the_folders_that_the_last_one_left(
    repository: RepositoryFixture,
):
    folder = os.open(repository.path / ".git", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    async with asyncio.TaskGroup() as group:
        creation = group.create_task(repository.create_worktree("late"))
        while not (repository.worktrees_folder / "late").exists():  # noqa: ASYNC110  (a folder has no notification)
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        for name in ("worktrees", "refs/heads/retinue", "logs/refs/heads/retinue"):
            if (path := repository.path / ".git" / name).exists():
                path.rmdir()
        os.close(folder)
    assert (creation.result() / "src" / "a.txt").read_text() == "one\n"


async def test_a_clean_worktree_is_removed_with_its_branch(repository: RepositoryFixture):
    """Shows: L026."""
    worktree, other_worktree = (
        await repository.create_worktree("one"),
        await repository.create_worktree("two"),
    )
    assert await repository.worktrees.remove(str(worktree / "src"), str(repository.path))
    assert not worktree.exists()
    assert repository.traces() == ["two", "two", "+", "retinue/two"]
    assert run_git(other_worktree, "status", "--porcelain") == ""
    assert await repository.worktrees.remove(str(worktree), str(repository.path))
    assert not await repository.worktrees.remove(str(other_worktree), str(repository.worktrees_folder))


@pytest.mark.parametrize("work", ["changed", "new", "deleted", "new in a folder", "staged"])
async def test_a_worktree_with_uncommitted_work_is_not_removed(repository: RepositoryFixture, work: str):
    """Shows: L026."""
    worktree = await repository.create_worktree("one")
    if work in ("changed", "staged"):
        (worktree / "src" / "a.txt").write_text("two\n")
    if work == "staged":
        run_git(worktree, "add", "-A")
    if work == "deleted":
        (worktree / "src" / "a.txt").unlink()
    if work.startswith("new"):
        (worktree / "x").mkdir()
        (worktree / "x" / "y" if "folder" in work else worktree / "y").write_text("")
    before = run_git(worktree, "status", "--porcelain")
    assert not await repository.worktrees.remove(str(worktree), str(repository.path))
    assert run_git(worktree, "status", "--porcelain") == before != ""


async def test_a_change_with_the_same_size_and_time_counts_as_uncommitted_work(repository: RepositoryFixture):
    """Git trusts the size and time in its index if the index is newer than the file."""
    run_git(repository.path, "config", "core.trustctime", "false")
    worktree = await repository.create_worktree("one")
    file, index = worktree / "src" / "a.txt", repository.path / ".git" / "worktrees" / "one" / "index"
    status = file.stat()
    file.write_text("two\n")
    os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    os.utime(index, (status.st_mtime + 10, status.st_mtime + 10))
    assert not await repository.worktrees.remove(str(worktree), str(repository.path))
    assert file.read_text() == "two\n"


async def test_commits_stay_on_the_branch_when_a_worktree_is_removed(repository: RepositoryFixture):
    worktree = await repository.create_worktree("one")
    (worktree / "b.txt").write_text("work\n")
    commit_all(worktree)
    assert await repository.worktrees.remove(str(worktree), str(repository.path))
    assert not worktree.exists()
    assert run_git(repository.path, "show", "retinue/one:b.txt") == "work"


async def test_removing_a_worktree_keeps_the_users_other_worktrees(
    repository: RepositoryFixture, tmp_path: Path
):
    """The sandboxed git cannot see their folders, and must not prune them as missing."""
    run_git(repository.path, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    worktree = await repository.create_worktree("one")
    assert await repository.worktrees.remove(str(worktree), str(repository.path))
    assert run_git(tmp_path / "mine", "status", "--porcelain") == ""


async def test_a_worktree_can_be_created_from_another_worktree(repository: RepositoryFixture, tmp_path: Path):
    run_git(repository.path, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    (tmp_path / "mine" / "b.txt").write_text("mine\n")
    commit_all(tmp_path / "mine")
    created = await repository.worktrees.create(str(tmp_path / "mine"), "one")
    assert created == NewWorktree(
        folder=str(repository.worktrees_folder / "one"),
        repository=str(repository.path),
        git_dir=str(repository.path / ".git/worktrees/one"),
    )
    assert (repository.worktrees_folder / "one" / "b.txt").read_text() == "mine\n"
    inner = await repository.create_worktree("two", repository.worktrees_folder / "one")
    assert (inner / "b.txt").read_text() == "mine\n"
    assert await repository.worktrees.remove(str(repository.worktrees_folder / "one"), str(repository.path))
    assert await repository.worktrees.remove(str(inner), str(repository.path))


@pytest.mark.parametrize("problem", ["no commits", "bad HEAD", "no objects", "branch in the way"])
async def test_a_git_failure_raises_an_error_and_leaves_no_worktree(
    repository: RepositoryFixture, problem: str
):
    """Shows: L026."""
    error_pattern = "no worktree of .* could be created, and the agent must work in one: "
    if problem == "no commits":
        run_git(repository.path, "checkout", "-q", "--orphan", "fresh")
        error_pattern += r"it has no commit yet .*\. Commit something first"
    if problem == "bad HEAD":
        (repository.path / ".git" / "HEAD").write_text("0" * 40 + "\n")
    if problem == "no objects":
        (repository.path / ".git" / "objects").rename(repository.path / ".git" / "objects-moved")
    if problem == "branch in the way":
        run_git(repository.path, "branch", "retinue")
    with pytest.raises(Failed, match=error_pattern):
        await repository.worktrees.create(str(repository.path), "one")
    if problem == "no objects":
        (repository.path / ".git" / "objects-moved").rename(repository.path / ".git" / "objects")
    assert [name for name in repository.traces() if "one" in name] == []
    assert list(repository.worktrees_folder.iterdir()) == []


async def test_a_cancelled_creation_leaves_no_worktree(repository: RepositoryFixture):
    added = asyncio.Event()
    real_shell_for = make_shell_factory(SandboxProbe(), os.environ)

    def make_blocking_shell(scope: Scope) -> Shell:
        async def run(command: str, seconds: float) -> CommandResult:
            result = await real_shell_for(scope)(command, seconds)
            if "worktree add" in command:
                added.set()
                await asyncio.Event().wait()
            return result

        return run

    task = asyncio.create_task(
        repository.worktrees_at(None, shell_for_scope=make_blocking_shell).create(str(repository.path), "one")
    )
    await added.wait()
    assert (repository.worktrees_folder / "one" / ".git").exists()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert repository.traces() == []


async def test_creating_and_removing_a_worktree_starts_no_program_of_the_repository(
    repository: RepositoryFixture, tmp_path: Path
):
    """As a control, plain git runs them all. Inside the sandbox each would leave its mark in the new worktree.

    Shows: S27.
    """
    marks = tmp_path / "marks"
    marks.mkdir()
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {marks}/hook hook-mark\n")
    hook.chmod(0o755)
    (repository.path / ".gitattributes").write_text("*.txt filter=x diff=x\n*.md filter=y\n")
    (repository.path / "page.md").write_text("page\n")
    commit_all(repository.path)
    (tmp_path / "included").write_text(f'[filter "y"]\nsmudge = touch {marks}/included included-mark; cat\n')
    for key, command in {
        "filter.x.smudge": f"touch {marks}/smudge smudge-mark; cat",
        "filter.x.clean": f"touch {marks}/clean clean-mark; cat",
        "filter.x.required": "true",
        "core.fsmonitor": f"touch {marks}/monitor monitor-mark",
        "include.path": str(tmp_path / "included"),
    }.items():
        run_git(repository.path, "config", key, command)
    worktree = await repository.create_worktree("one")
    assert (worktree / "src" / "a.txt").read_text() == "one\n"
    assert not [path for path in worktree.iterdir() if path.name.endswith("-mark")]
    assert await repository.worktrees.remove(str(worktree), str(repository.path))
    assert list(marks.iterdir()) == []
    run_git(repository.path, "worktree", "add", "-q", str(tmp_path / "control"), "HEAD")
    (tmp_path / "control/src/a.txt").write_text("two\n")
    run_git(tmp_path / "control", "status")
    run_git(tmp_path / "control", "add", "--all")
    assert sorted(path.name for path in marks.iterdir()) == ["clean", "hook", "included", "monitor", "smudge"]


async def test_a_worktree_of_a_repository_with_sha256_objects_can_be_created(
    repository: RepositoryFixture, tmp_path: Path
):
    """Git learns the format from the configuration, of which it sees only what runs nothing."""
    folder = tmp_path / "sha256"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    run_git(folder, "init", "--quiet", "--initial-branch", "main", "--object-format", "sha256")
    commit_all(folder)
    worktree = await repository.create_worktree("one", folder)
    assert (worktree / "a.txt").read_text() == "one\n"
    assert await repository.worktrees.remove(str(worktree), str(folder))


async def test_below_the_strict_level_git_runs_only_in_trusted_projects(repository: RepositoryFixture):
    """Shows: S27."""
    for level in (SandboxLevel.LANDLOCK, SandboxLevel.NONE):
        with pytest.raises(
            Refused, match=f"git was not run in {repository.path}: .*`retinue trust {repository.path}`"
        ):
            await repository.worktrees_at(level).create(str(repository.path), "one")
        assert repository.traces() == []
    trusting = repository.worktrees_at(SandboxLevel.LANDLOCK, trusted=True)
    assert await trusting.create(str(repository.path), "one") is not None


async def test_a_git_pointer_to_a_foreign_repository_is_not_followed(
    repository: RepositoryFixture, tmp_path: Path
):
    """Shows: S27, F15."""
    impostor = tmp_path / "liar"
    impostor.mkdir()
    (impostor / ".git").write_text(f"gitdir: {repository.path}/.git\n")
    run_git(repository.path, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    for pointer in (
        f"gitdir: {repository.path}/.git",
        f"gitdir: {repository.path}/.git/worktrees/mine",
        "gitdir:",
        "x",
        "",
    ):
        (impostor / ".git").write_text(pointer)
        with pytest.raises(Failed, match="does not list this folder"):
            await repository.worktrees.create(str(impostor), "one")
    (impostor / ".git").unlink()
    (impostor / ".git").symlink_to(repository.path / ".git")
    with pytest.raises(Failed, match="is a symbolic link, which is not followed"):
        await repository.worktrees.create(str(impostor), "one")
    assert not repository.worktrees_folder.exists()


@pytest.mark.parametrize("name", ["worktrees", "refs", "logs/refs/heads/retinue"])
async def test_a_link_in_the_git_folder_cannot_redirect_writes(
    repository: RepositoryFixture, tmp_path: Path, name: str
):
    outside = tmp_path / "outside"
    outside.mkdir()
    link = repository.path / ".git" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(outside / "refs")
    link.symlink_to(outside / "refs" if name == "refs" else outside)
    before = sorted(outside.rglob("*"))
    with pytest.raises(Failed):
        await repository.worktrees.create(str(repository.path), "one")
    assert sorted(outside.rglob("*")) == before
    assert list(repository.worktrees_folder.iterdir()) == []


async def test_a_committed_link_cannot_redirect_the_workspace(repository: RepositoryFixture, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository.path / "lib").symlink_to(outside)
    commit_all(repository.path)
    (repository.path / "lib").unlink()
    (repository.path / "lib" / "deep").mkdir(parents=True)
    with pytest.raises(Failed, match="is a symbolic link there"):
        await repository.worktrees.create(str(repository.path / "lib" / "deep"), "one")
    assert list(outside.iterdir()) == []
    assert repository.traces() == []


def test_a_worktree_of_a_submodule_is_refused(repository: RepositoryFixture):
    (repository.path / "sub").mkdir()
    (repository.path / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    with pytest.raises(Failed, match="a submodule"):
        find_repository(str(repository.path / "sub"))


async def test_a_git_pointer_that_an_agent_changed_is_not_followed(
    repository: RepositoryFixture, tmp_path: Path
):
    """Shows: F15."""
    worktree = await repository.create_worktree("one")
    evil = worktree / "evil"
    run_git(worktree, "init", "-q", "--bare", str(evil))
    run_git(evil, "config", "core.fsmonitor", f"touch {tmp_path}/mark")
    run_git(evil, "config", "core.bare", "false")
    (worktree / ".git").write_text(f"gitdir: {evil}\n")
    assert not await repository.worktrees.remove(str(worktree), str(repository.path))
    assert worktree.exists()
    assert not (tmp_path / "mark").exists()


async def test_commits_on_no_branch_keep_a_worktree_and_commits_on_a_branch_keep_the_branch(
    repository: RepositoryFixture,
):
    """Shows: L026."""
    worktrees = [await repository.create_worktree(name) for name in ("detached", "branch")]
    run_git(worktrees[0], "checkout", "-q", "--detach")
    for worktree in worktrees:
        (worktree / "new.txt").write_text("work\n")
        commit_all(worktree)
    removed = [await repository.worktrees.remove(str(each), str(repository.path)) for each in worktrees]
    assert removed == [False, True]
    assert (worktrees[0] / "new.txt").read_text() == "work\n"
    assert run_git(repository.path, "show", "retinue/branch:new.txt") == "work"
