"""SIGKILL between a worktree and its session: a later start takes away what nobody came to work in, and nothing else."""

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

from retinue.sandbox.git.worktrees import GIT_TIMEOUT_S, Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory

STEPS = ("os.mkdir", "subprocess.Popen", "os.rename")

MAKER = f"""
import asyncio, os, signal, sys
from pathlib import Path
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.sandbox.git.worktrees import Worktrees

repo, folder = sys.argv[1:]
left = 0

def step(event, args):
    global left
    if event in {STEPS!r} and left:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

async def make(number):
    global left
    probe = SandboxProbe()
    trees = Worktrees(
        Path(folder), shell_for_scope=make_shell_factory(probe, os.environ),
        find_sandbox_level=probe.level, is_trusted=lambda _: False)
    await probe.level()
    left = number
    await trees.create(repo, f"n{{number}}")
    os.kill(os.getpid(), signal.SIGKILL if left else signal.SIGTERM)

sys.addaudithook(step)
for number in range(1, 60):
    child = os.fork()
    if not child:
        asyncio.run(make(number))
    _, status = os.waitpid(child, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        break
    if os.path.isdir(f"{{folder}}/n{{number}}/.git") or os.path.isfile(f"{{folder}}/n{{number}}/.git"):
        print("whole", number)
        break
"""


def git(at: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(at), "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=at, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Ground:
    def __init__(self, root: Path) -> None:
        self.repo = root / "repo"
        self.folder = root / "home/worktrees"
        self.repo.mkdir()
        (self.repo / "a.txt").write_text("one\n")
        git(self.repo, "init", "-q", "-b", "main")
        git(self.repo, "add", "-A")
        git(self.repo, "commit", "-q", "-m", "x")
        probe = SandboxProbe()
        self.trees = Worktrees(
            self.folder,
            shell_for_scope=make_shell_factory(probe, os.environ),
            find_sandbox_level=probe.level,
            is_trusted=lambda _: False,
        )

    def maker(self, script: str = MAKER) -> WarmProcess:
        return WarmProcess(["-c", script, str(self.repo), str(self.folder)], stdout=subprocess.PIPE)

    def left(self) -> list[str]:
        notes = self.repo / ".git/worktrees"
        found = [*self.folder.iterdir(), *(notes.iterdir() if notes.exists() else ())]
        return [*(path.name for path in found), *git(self.repo, "branch", "--list", "retinue/*").split()]

    def time_passes(self, seconds: float = GIT_TIMEOUT_S + 120) -> None:
        then = time.time() - seconds
        notes = self.repo / ".git/worktrees"
        for path in (
            *(self.folder.parent / "unclaimed").iterdir(),
            *(notes.iterdir() if notes.exists() else ()),
        ):
            os.utime(path, (then, then))

    async def sweep(self, *inhabited: str) -> list[str]:
        async def told() -> Collection[str]:
            return inhabited

        return await self.trees.remove_abandoned(told)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path.resolve())


async def test_whatever_step_it_is_killed_at_nothing_is_left_after_the_next_start(ground: Ground):
    """Shows: P32."""
    out, _ = await asyncio.to_thread(ground.maker().communicate)
    assert out.startswith(b"whole ")
    before = ground.left()
    assert len(before) > 4
    assert await ground.sweep() == []
    assert ground.left() == before
    ground.time_passes()
    assert await ground.sweep() != []
    assert ground.left() == []
    assert list((ground.folder.parent / "unclaimed").iterdir()) == []


async def test_one_that_git_was_still_filling_goes_too(ground: Ground):
    """Git waits for a filter of the repository when it is killed."""
    (ground.repo / ".gitattributes").write_text("*.txt filter=slow\n")
    git(ground.repo, "add", "-A")
    git(ground.repo, "commit", "-q", "-m", "y")
    git(ground.repo, "config", "filter.slow.smudge", "touch begun; sleep 60")
    script = MAKER.replace("make(number))", "make(999))")
    maker = ground.maker(script)
    place = ground.folder / "n999"
    while not (place / "begun").exists():
        await asyncio.sleep(0.01)
        assert maker.poll() is None
    for child in Path(f"/proc/{maker.pid}/task/{maker.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    maker.kill()
    await asyncio.to_thread(maker.communicate)
    ground.time_passes(seconds=120)
    assert await ground.sweep() == []
    assert place.exists()
    ground.time_passes()
    assert await ground.sweep() == [str(place)]
    assert ground.left() == []


@pytest.mark.parametrize("why", ["work", "session", "young"])
async def test_what_holds_work_or_has_a_session_or_is_young_stays(ground: Ground, why: str):
    """Shows: L026."""
    made = await ground.trees.create(str(ground.repo), "one")
    assert made is not None
    if why == "work":
        Path(made[0], "new.txt").write_text("mine\n")
    if why != "young":
        ground.time_passes()
    before = ground.left()
    assert await ground.sweep(*([f"{made[0]}/src"] if why == "session" else [])) == []
    assert ground.left() == before
    assert (ground.folder.parent / "unclaimed/one").exists() is (why != "session")


async def test_nobody_is_asked_who_works_where_when_there_is_nothing_to_sweep(ground: Ground):
    async def never() -> Any:
        raise AssertionError("asked")

    assert await ground.trees.remove_abandoned(never) == []
    await ground.trees.create(str(ground.repo), "one")
    assert await ground.trees.remove_abandoned(never) == []
