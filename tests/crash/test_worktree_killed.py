"""SIGKILL between creating a worktree and its session: a later sweep removes abandoned worktrees and nothing else."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from commands import WarmProcess
from crash_programs import kill_at_step
from git_repository import commit_all, create_repository, run_git

from retinue.sandbox.git.worktrees import GIT_TIMEOUT_S, Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory

STEPS = ("os.mkdir", "subprocess.Popen", "os.rename")

CREATE_WORKTREES = """
import asyncio
from pathlib import Path
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.sandbox.git.worktrees import Worktrees

repo, folder = sys.argv[1:]

async def make(number):
    global steps_left
    probe = SandboxProbe()
    trees = Worktrees(
        Path(folder), shell_for_scope=make_shell_factory(probe, os.environ),
        find_sandbox_level=probe.level, is_trusted=lambda _: False)
    await probe.level()
    steps_left = number
    await trees.create(repo, f"n{number}")
    os.kill(os.getpid(), signal.SIGKILL if steps_left else signal.SIGTERM)

for number in range(1, 60):
    child = os.fork()
    if not child:
        asyncio.run(make(number))
    _, status = os.waitpid(child, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        break
    if os.path.isdir(f"{folder}/n{number}/.git") or os.path.isfile(f"{folder}/n{number}/.git"):
        print("whole", number)
        break
"""


class WorktreeFixture:
    """A repository, and the worktrees created from it."""

    def __init__(self, root: Path) -> None:
        self.repo = root / "repo"
        self.folder = root / "home/worktrees"
        self.repo.mkdir()
        (self.repo / "a.txt").write_text("one\n")
        create_repository(self.repo)
        probe = SandboxProbe()
        self.trees = Worktrees(
            self.folder,
            shell_for_scope=make_shell_factory(probe, os.environ),
            find_sandbox_level=probe.level,
            is_trusted=lambda _: False,
        )

    def start_program(self, script: str = CREATE_WORKTREES) -> WarmProcess:
        return WarmProcess(
            ["-c", kill_at_step(STEPS) + script, str(self.repo), str(self.folder)], stdout=subprocess.PIPE
        )

    def list_leftovers(self) -> list[str]:
        git_worktrees = self.repo / ".git/worktrees"
        paths = [*self.folder.iterdir(), *(git_worktrees.iterdir() if git_worktrees.exists() else ())]
        return [*(path.name for path in paths), *run_git(self.repo, "branch", "--list", "retinue/*").split()]

    def set_age(self, seconds: float = GIT_TIMEOUT_S + 120) -> None:
        mtime = time.time() - seconds
        git_worktrees = self.repo / ".git/worktrees"
        for path in (
            *(self.folder.parent / "unclaimed").iterdir(),
            *(git_worktrees.iterdir() if git_worktrees.exists() else ()),
        ):
            os.utime(path, (mtime, mtime))

    async def sweep(self, *used_folders: str) -> list[str]:
        async def list_used_folders() -> Collection[str]:
            return used_folders

        return await self.trees.remove_abandoned(list_used_folders)


@pytest.fixture
def worktrees(tmp_path: Path) -> WorktreeFixture:
    return WorktreeFixture(tmp_path.resolve())


async def test_a_sweep_removes_worktrees_of_a_process_killed_at_any_step(worktrees: WorktreeFixture):
    """Shows: P32."""
    out, _ = await asyncio.to_thread(worktrees.start_program().communicate)
    assert out.startswith(b"whole ")
    before = worktrees.list_leftovers()
    assert len(before) > 4
    assert await worktrees.sweep() == []
    assert worktrees.list_leftovers() == before
    worktrees.set_age()
    assert await worktrees.sweep() != []
    assert worktrees.list_leftovers() == []
    assert list((worktrees.folder.parent / "unclaimed").iterdir()) == []


async def test_a_sweep_removes_a_worktree_that_git_was_still_checking_out(worktrees: WorktreeFixture):
    """Git is killed while it waits for an object, which is a pipe that nobody writes to."""
    (worktrees.repo / "b.txt").write_text("two\n")
    commit_all(worktrees.repo)
    blob = run_git(worktrees.repo, "rev-parse", "HEAD:b.txt")
    loose_object = worktrees.repo / ".git/objects" / blob[:2] / blob[2:]
    loose_object.unlink()
    os.mkfifo(loose_object)
    script = CREATE_WORKTREES.replace("make(number))", "make(999))")
    program = worktrees.start_program(script)
    worktree = worktrees.folder / "n999"
    while not (worktree / "a.txt").exists():
        await asyncio.sleep(0.01)
        assert program.poll() is None
    for child in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    program.kill()
    await asyncio.to_thread(program.communicate)
    worktrees.set_age(seconds=120)
    assert await worktrees.sweep() == []
    assert worktree.exists()
    worktrees.set_age()
    assert await worktrees.sweep() == [str(worktree)]
    assert worktrees.list_leftovers() == []


@pytest.mark.parametrize("reason", ["work", "session", "young"])
async def test_a_worktree_with_changes_or_a_session_or_a_recent_creation_is_kept(
    worktrees: WorktreeFixture, reason: str
):
    """Shows: L026."""
    created = await worktrees.trees.create(str(worktrees.repo), "one")
    assert created is not None
    if reason == "work":
        Path(created.folder, "new.txt").write_text("mine\n")
    if reason != "young":
        worktrees.set_age()
    before = worktrees.list_leftovers()
    assert await worktrees.sweep(*([f"{created.folder}/src"] if reason == "session" else [])) == []
    assert worktrees.list_leftovers() == before
    assert (worktrees.folder.parent / "unclaimed/one").exists() is (reason != "session")


async def test_used_folders_are_not_listed_if_there_is_nothing_to_sweep(worktrees: WorktreeFixture):
    async def list_used_folders() -> Any:
        raise AssertionError("asked")

    assert await worktrees.trees.remove_abandoned(list_used_folders) == []
    await worktrees.trees.create(str(worktrees.repo), "one")
    assert await worktrees.trees.remove_abandoned(list_used_folders) == []
