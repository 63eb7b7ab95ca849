"""Worktrees made by the real git in the real sandbox: whole or not at all, and never taken away with work in them."""

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Failed, Refused
from retinue.interfaces import Shell
from retinue.sandbox.git.repository import find_repository
from retinue.sandbox.git.worktrees import Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory

ME = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(at: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(at), "GIT_CONFIG_GLOBAL": "/dev/null", **ME}
    done = subprocess.run(["git", *words], cwd=at, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Ground:
    """A repository, and worktrees beside it."""

    def __init__(self, root: Path) -> None:
        self.repo = root / "repo"
        (self.repo / "src").mkdir(parents=True)
        (self.repo / "src" / "a.txt").write_text("one\n")
        git(self.repo, "init", "-q", "-b", "main")
        self.commit()
        self.folder = root / "home" / "worktrees"
        self.trees = self.with_level(None)

    def commit(self, at: Path | None = None) -> None:
        git(at or self.repo, "add", "-A")
        git(at or self.repo, "commit", "-q", "-m", "x")

    def with_level(
        self,
        level: SandboxLevel | None,
        *,
        trusted: bool = False,
        held: Callable[[Scope], Shell] | None = None,
    ) -> Worktrees:
        probe = SandboxProbe()

        async def said() -> SandboxLevel:
            return level or await probe.level()

        return Worktrees(
            self.folder,
            shell_for_scope=held or make_shell_factory(probe, os.environ),
            find_sandbox_level=said,
            is_trusted=lambda _: trusted,
        )

    async def made(self, name: str, at: Path | None = None) -> Path:
        made = await self.trees.create(str(at or self.repo), name)
        assert made is not None
        return Path(made[0])

    def left(self) -> list[str]:
        """Everything that a worktree leaves traces in."""
        trees = sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []
        notes = self.repo / ".git" / "worktrees"
        known = sorted(path.name for path in notes.iterdir()) if notes.exists() else []
        return [*trees, *known, *git(self.repo, "branch", "--list", "retinue/*").split()]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


async def test_a_worktree_holds_what_was_committed_on_a_branch_of_its_own(ground: Ground):
    """Shows: L026."""
    (ground.repo / "src" / "a.txt").write_text("not committed\n")
    place = await ground.made("one")
    assert place == ground.folder / "one"
    assert (place / "src" / "a.txt").read_text() == "one\n"
    assert git(place, "branch", "--show-current") == "retinue/one"
    assert git(place, "status", "--porcelain") == ""
    assert git(ground.repo, "status", "--porcelain") == "M src/a.txt"
    assert place.stat().st_mode & 0o777 == 0o700


async def test_a_folder_in_a_repository_is_the_same_folder_in_the_worktree(ground: Ground):
    made = await ground.trees.create(str(ground.repo / "src"), "one")
    assert made == (str(ground.folder / "one" / "src"), str(ground.repo))
    (ground.repo / "new" / "deep").mkdir(parents=True)
    assert (await ground.made("two", ground.repo / "new" / "deep")).is_dir()


async def test_where_no_repository_is_there_is_no_worktree(ground: Ground, tmp_path: Path):
    assert await ground.trees.create(str(tmp_path), "one") is None
    assert not ground.folder.exists()


async def test_many_at_once_each_get_their_own(ground: Ground):
    """Shows: L026."""
    names = [f"n{number}" for number in range(8)]
    places = await asyncio.gather(*(ground.made(name) for name in names))
    assert len(set(places)) == 8
    assert {git(place, "branch", "--show-current") for place in places} == {
        f"retinue/{name}" for name in names
    }


async def test_git_is_at_one_repository_once_at_a_time_whichever_process_asks(ground: Ground):
    """Git gives up over the notes that it is just writing on another worktree."""
    other = os.open(ground.repo / ".git", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    making = asyncio.ensure_future(ground.made("one"))
    async with asyncio.timeout(30):
        while not (ground.folder / "one").exists():  # noqa: ASYNC110  (a folder tells nobody)
            await asyncio.sleep(0.01)
    await asyncio.wait({making}, timeout=0.2)
    assert (making.done(), ground.left()) == (False, ["one"])
    os.close(other)
    assert (await making / "src" / "a.txt").read_text() == "one\n"


async def test_a_clean_one_goes_with_its_branch_and_leaves_nothing(ground: Ground):
    """Shows: L026."""
    place, other = await ground.made("one"), await ground.made("two")
    assert await ground.trees.remove(str(place / "src"), str(ground.repo))
    assert not place.exists()
    assert ground.left() == ["two", "two", "+", "retinue/two"]
    assert git(other, "status", "--porcelain") == ""
    assert await ground.trees.remove(str(place), str(ground.repo))
    assert not await ground.trees.remove(str(other), str(ground.folder))


@pytest.mark.parametrize("work", ["changed", "new", "deleted", "new in a folder", "staged"])
async def test_one_that_holds_work_stays(ground: Ground, work: str):
    """Shows: L026."""
    place = await ground.made("one")
    if work in ("changed", "staged"):
        (place / "src" / "a.txt").write_text("two\n")
    if work == "staged":
        git(place, "add", "-A")
    if work == "deleted":
        (place / "src" / "a.txt").unlink()
    if work.startswith("new"):
        (place / "x").mkdir()
        (place / "x" / "y" if "folder" in work else place / "y").write_text("")
    before = git(place, "status", "--porcelain")
    assert not await ground.trees.remove(str(place), str(ground.repo))
    assert git(place, "status", "--porcelain") == before != ""


async def test_work_of_the_same_length_in_the_second_of_the_checkout_is_work(ground: Ground):
    """Git believes the size and the time that its index has noted, once that is younger than the file."""
    git(ground.repo, "config", "core.trustctime", "false")
    place = await ground.made("one")
    file, index = place / "src" / "a.txt", ground.repo / ".git" / "worktrees" / "one" / "index"
    before = file.stat()
    file.write_text("two\n")
    os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.utime(index, (before.st_mtime + 10, before.st_mtime + 10))
    assert not await ground.trees.remove(str(place), str(ground.repo))
    assert file.read_text() == "two\n"


async def test_the_commits_of_one_that_goes_stay_on_its_branch(ground: Ground):
    place = await ground.made("one")
    (place / "b.txt").write_text("work\n")
    ground.commit(place)
    assert await ground.trees.remove(str(place), str(ground.repo))
    assert not place.exists()
    assert git(ground.repo, "show", "retinue/one:b.txt") == "work"


async def test_other_worktrees_of_the_person_are_not_forgotten(ground: Ground, tmp_path: Path):
    """They are out of sight where git runs for us: nothing there may take them for gone."""
    git(ground.repo, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    place = await ground.made("one")
    assert await ground.trees.remove(str(place), str(ground.repo))
    assert git(tmp_path / "mine", "status", "--porcelain") == ""


async def test_a_worktree_is_made_from_a_worktree(ground: Ground, tmp_path: Path):
    git(ground.repo, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    (tmp_path / "mine" / "b.txt").write_text("mine\n")
    ground.commit(tmp_path / "mine")
    made = await ground.trees.create(str(tmp_path / "mine"), "one")
    assert made == (str(ground.folder / "one"), str(ground.repo))
    assert (ground.folder / "one" / "b.txt").read_text() == "mine\n"
    inner = await ground.made("two", ground.folder / "one")
    assert (inner / "b.txt").read_text() == "mine\n"
    assert await ground.trees.remove(str(ground.folder / "one"), str(ground.repo))
    assert await ground.trees.remove(str(inner), str(ground.repo))


@pytest.mark.parametrize(
    "trouble", ["no commits", "bad HEAD", "no objects", "branch in the way", "filter fails"]
)
async def test_when_git_fails_there_is_an_error_and_nothing_else(ground: Ground, trouble: str):
    """Shows: L026."""
    says = "no worktree of .* could be made, and the agent is not to work outside of one: "
    if trouble == "no commits":
        git(ground.repo, "checkout", "-q", "--orphan", "fresh")
        says += r"it has no commit to begin with .*: commit something first"
    if trouble == "bad HEAD":
        (ground.repo / ".git" / "HEAD").write_text("0" * 40 + "\n")
    if trouble == "no objects":
        (ground.repo / ".git" / "objects").rename(ground.repo / ".git" / "gone")
    if trouble == "branch in the way":
        git(ground.repo, "branch", "retinue")
    if trouble == "filter fails":
        (ground.repo / ".gitattributes").write_text("*.txt filter=x\n")
        ground.commit()
        git(ground.repo, "config", "filter.x.smudge", "false")
        git(ground.repo, "config", "filter.x.required", "true")
    with pytest.raises(Failed, match=says):
        await ground.trees.create(str(ground.repo), "one")
    if trouble == "no objects":
        (ground.repo / ".git" / "gone").rename(ground.repo / ".git" / "objects")
    assert [each for each in ground.left() if "one" in each] == []
    assert list(ground.folder.iterdir()) == []


async def test_whoever_is_cancelled_meanwhile_leaves_nothing(ground: Ground):
    begun = asyncio.Event()
    real = make_shell_factory(SandboxProbe(), os.environ)

    def slow(scope: Scope) -> Shell:
        async def run(command: str, seconds: float) -> CommandResult:
            ran = await real(scope)(command, seconds)
            if "worktree add" in command:
                begun.set()
                await asyncio.Event().wait()
            return ran

        return run

    task = asyncio.create_task(ground.with_level(None, held=slow).create(str(ground.repo), "one"))
    await begun.wait()
    assert (ground.folder / "one" / ".git").exists()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ground.left() == []


async def test_hooks_do_not_run_and_filters_reach_nothing_outside(ground: Ground, tmp_path: Path):
    """Judged by files outside the sandbox, with a control that shows that both would.

    Shows: S27.
    """
    marks = tmp_path / "marks"
    marks.mkdir()
    hook = ground.repo / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {marks}/hook\n")
    hook.chmod(0o755)
    reach = f"touch {marks}/filter; touch {ground.repo}/inside; echo x >{ground.repo}/.git/hooks/pre-commit"
    reach += f"; echo '[core]' >>{ground.repo}/.git/config; echo x >{ground.repo}/.git/refs/heads/main"
    (ground.repo / ".gitattributes").write_text("*.txt filter=x\n")
    ground.commit()
    git(ground.repo, "config", "filter.x.smudge", f"sh -c 'cat; ({reach}) 2>/dev/null; echo smudged'")
    git(ground.repo, "config", "core.fsmonitor", f"touch {marks}/monitor")
    head, config = git(ground.repo, "rev-parse", "main"), (ground.repo / ".git" / "config").read_bytes()
    place = await ground.made("one")
    assert (place / "src" / "a.txt").read_text() == "one\nsmudged\n"
    await ground.trees.remove(str(place), str(ground.repo))
    assert list(marks.iterdir()) == []
    assert not (ground.repo / "inside").exists()
    assert not (ground.repo / ".git" / "hooks" / "pre-commit").exists()
    assert (git(ground.repo, "rev-parse", "main"), (ground.repo / ".git" / "config").read_bytes()) == (
        head,
        config,
    )
    git(ground.repo, "config", "--unset", "core.fsmonitor")
    git(ground.repo, "worktree", "add", "-q", str(tmp_path / "control"), "HEAD")
    assert sorted(path.name for path in marks.iterdir()) == ["filter", "hook"]


async def test_a_filter_cannot_reach_the_worktrees_of_others(ground: Ground):
    other = await ground.made("other")
    (ground.repo / ".gitattributes").write_text("*.txt filter=x\n")
    ground.commit()
    git(ground.repo, "config", "filter.x.smudge", f"sh -c 'cat; cat {other}/src/a.txt; touch {other}/x'")
    place = await ground.made("one")
    assert (place / "src" / "a.txt").read_text() == "one\n"
    assert not (other / "x").exists()


async def test_git_is_run_below_the_strict_level_only_in_trusted_projects(ground: Ground):
    """Shows: S27."""
    for level in (SandboxLevel.LANDLOCK, SandboxLevel.NONE):
        with pytest.raises(
            Refused, match=f"git is not run in {ground.repo}: .*`retinue trust {ground.repo}`"
        ):
            await ground.with_level(level).create(str(ground.repo), "one")
        assert ground.left() == []
    made = await ground.with_level(SandboxLevel.LANDLOCK, trusted=True).create(str(ground.repo), "one")
    assert made is not None


async def test_a_folder_does_not_say_whose_repository_it_is(ground: Ground, tmp_path: Path):
    """Shows: S27, F15."""
    liar = tmp_path / "liar"
    liar.mkdir()
    (liar / ".git").write_text(f"gitdir: {ground.repo}/.git\n")
    git(ground.repo, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    for says in (
        f"gitdir: {ground.repo}/.git",
        f"gitdir: {ground.repo}/.git/worktrees/mine",
        "gitdir:",
        "x",
        "",
    ):
        (liar / ".git").write_text(says)
        with pytest.raises(Failed, match="does not know this folder"):
            await ground.trees.create(str(liar), "one")
    (liar / ".git").unlink()
    (liar / ".git").symlink_to(ground.repo / ".git")
    with pytest.raises(Failed, match="is a link, which is not followed"):
        await ground.trees.create(str(liar), "one")
    assert not ground.folder.exists()


@pytest.mark.parametrize("name", ["worktrees", "refs", "logs/refs/heads/retinue"])
async def test_links_in_gits_own_folder_lead_nowhere(ground: Ground, tmp_path: Path, name: str):
    outside = tmp_path / "outside"
    outside.mkdir()
    place = ground.repo / ".git" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(outside / "refs")
    place.symlink_to(outside / "refs" if name == "refs" else outside)
    before = sorted(outside.rglob("*"))
    with pytest.raises(Failed):
        await ground.trees.create(str(ground.repo), "one")
    assert sorted(outside.rglob("*")) == before
    assert list(ground.folder.iterdir()) == []


async def test_a_link_in_the_commit_does_not_lead_the_workspace_away(ground: Ground, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (ground.repo / "lib").symlink_to(outside)
    ground.commit()
    (ground.repo / "lib").unlink()
    (ground.repo / "lib" / "deep").mkdir(parents=True)
    with pytest.raises(Failed, match="is a link there"):
        await ground.trees.create(str(ground.repo / "lib" / "deep"), "one")
    assert list(outside.iterdir()) == []
    assert ground.left() == []


def test_the_repository_around_a_submodule_is_not_taken_for_it(ground: Ground):
    (ground.repo / "sub").mkdir()
    (ground.repo / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    with pytest.raises(Failed, match="a submodule"):
        find_repository(str(ground.repo / "sub"))


async def test_what_an_agent_wrote_into_the_worktrees_pointer_is_not_believed(ground: Ground, tmp_path: Path):
    """Shows: F15."""
    place = await ground.made("one")
    evil = place / "evil"
    git(place, "init", "-q", "--bare", str(evil))
    git(evil, "config", "core.fsmonitor", f"touch {tmp_path}/mark")
    git(evil, "config", "core.bare", "false")
    (place / ".git").write_text(f"gitdir: {evil}\n")
    assert not await ground.trees.remove(str(place), str(ground.repo))
    assert place.exists()
    assert not (tmp_path / "mark").exists()
