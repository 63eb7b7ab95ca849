"""Git in the worktree that Retinue created for a session: commits work, and nothing else of the repository changes."""

from pathlib import Path

import pytest
from git_repository import create_repository, run_git
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.agent import Agent, PathPatterns
from retinue.domain.ceiling import OPERATOR, Ceiling, OperatorPolicy
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.scope_builder import ScopeInputs, build_scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import OutOfScope
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.git.failure_advice import git_failure_advice

COMMIT = "echo two > two.txt && git add -A && git commit -qm two && git log --format=%s"


class WorktreeFixture:
    """A repository with a linked worktree, and the scope of the session that works there."""

    def __init__(self, workspace: Path, *init_options: str, common_dir: str = ".git") -> None:
        self.repository = workspace
        self.common_dir = workspace / common_dir
        run_git(workspace, "init", "-q", "--initial-branch", "main", *init_options)
        run_git(workspace, "add", "-A")
        run_git(workspace, "commit", "-qm", "one")
        self.folder = workspace.parent / "home/worktrees/own"
        run_git(workspace, "worktree", "add", "-q", "-b", "retinue/own", str(self.folder))
        self.git_dir = self.common_dir / "worktrees/own"

    def scope(self, agent: Agent = Agent(name="builder"), **inputs: object) -> Scope:  # noqa: B008
        facts = ScopeInputs(
            root=str(self.folder),
            is_worktree=True,
            git_dir=str(self.git_dir),
            tmp_folder=str(self.folder.parent / "own-tmp"),
        )
        policy = OperatorPolicy(retinue_paths=(subtree_pattern(str(self.folder.parent.parent)),))
        return build_scope(agent, replace(facts, **inputs), policy)

    def subjects(self) -> list[str]:
        return run_git(self.folder, "log", "--format=%s").split()


@pytest.fixture
def worktree(workspace: Path) -> WorktreeFixture:
    return WorktreeFixture(workspace)


def test_git_works_in_a_worktree_as_in_a_repository(worktree: WorktreeFixture, run_in_sandbox: RunInSandbox):
    result = run_in_sandbox(
        worktree.scope(),
        f"{COMMIT} && git checkout -q -b topic && echo three > three.txt && git add . && git commit -qm three && git checkout -q retinue/own"
        " && git merge -q topic && git commit -q --amend -m four && git rebase -q HEAD~1 && git reset -q --hard"
        " && git status --short && git diff HEAD && git branch --list | wc -l",
    )
    assert (result.exit_code, result.output, result.notes) == (0, "two\none\n3\n", ())
    assert worktree.subjects() == ["four", "two", "one"]
    assert run_git(worktree.folder, "status", "--short") == ""
    assert run_git(worktree.repository, "status", "--short") == ""
    assert run_git(worktree.repository, "log", "--format=%s", "main") == "one"
    assert run_git(worktree.repository, "fsck", "--strict") == ""


def test_a_command_in_a_worktree_cannot_destroy_packed_objects(
    worktree: WorktreeFixture, run_in_sandbox: RunInSandbox
):
    run_git(worktree.repository, "gc", "-q")
    result = run_in_sandbox(
        worktree.scope(), f"find {worktree.common_dir}/objects -type f -delete 2>/dev/null; {COMMIT}"
    )
    assert result.output.endswith("two\none\n"), result.output
    assert worktree.subjects() == ["two", "one"]
    assert run_git(worktree.repository, "fsck", "--strict") == ""


def test_git_works_in_a_worktree_with_sha256_objects(workspace: Path, run_in_sandbox: RunInSandbox):
    worktree = WorktreeFixture(workspace, "--object-format=sha256")
    result = run_in_sandbox(worktree.scope(), COMMIT)
    assert (result.output, result.notes) == ("two\none\n", ())
    assert worktree.subjects() == ["two", "one"]


def test_git_works_in_a_worktree_of_a_repository_with_another_name(
    workspace: Path, run_in_sandbox: RunInSandbox
):
    store = workspace.parent / "store"
    worktree = WorktreeFixture(workspace, f"--separate-git-dir={store}", common_dir="../store")
    worktree.git_dir = store / "worktrees/own"
    before = {name: (store / name).read_bytes() for name in ("config", "HEAD", "index", "refs/heads/main")}
    result = run_in_sandbox(
        worktree.scope(),
        f"{COMMIT}; cd {store}; rm -f objects/info; echo x | tee config HEAD objects/info/alternates refs/heads/main"
        " worktrees/own/commondir worktrees/own/config.worktree; mkdir hooks/x; echo y > worktrees/own/x;"
        " ln -s /x refs/heads/link; ln -s /x logs/refs/heads/link; ln -sf /x worktrees/own/logs/HEAD",
    )
    assert result.output.startswith("two\none\n")
    assert {name: (store / name).read_bytes() for name in before} == before
    assert (worktree.git_dir / "commondir").read_text() == "../..\n"
    assert [each for each in ("x", "config.worktree") if (worktree.git_dir / each).exists()] == []
    assert [each for each in ("hooks/x", "objects/info/alternates") if (store / each).exists()] == []
    assert [each for each in store.rglob("*") if each.is_symlink()] == []
    assert worktree.subjects() == ["two", "one"]


@pytest.mark.parametrize(
    "change",
    [
        "echo 'gitdir: {evil}/.git' > {folder}/.git",
        "echo {evil}/.git > {git_dir}/commondir",
        "echo {evil}/.git > {git_dir}/gitdir",
        "mv {git_dir} {git_dir}2 && ln -s {evil}/.git {git_dir}",
        "mv {common}/objects {common}/o && ln -s {evil}/.git/objects {common}/objects",
        "rm {folder}/.git && cp -r {evil}/.git {folder}/.git",
    ],
)
def test_git_is_not_available_once_the_worktree_and_its_repository_refer_to_anything_else(
    worktree: WorktreeFixture, run_in_sandbox: RunInSandbox, change: str
):
    """The recorded folder counts, not what the files in the worktree say."""
    evil = worktree.repository.parent / "evil"
    evil.mkdir()
    (evil / "secret.txt").write_text("SECRET\n")
    create_repository(evil)
    names = {
        "evil": evil,
        "folder": worktree.folder,
        "git_dir": worktree.git_dir,
        "common": worktree.common_dir,
    }
    run_git(evil, "-c", f"alias.change=!{change.format(**names)}", "change")
    before = run_git(evil, "rev-parse", "main")
    result = run_in_sandbox(worktree.scope(), f"{COMMIT}; git show; ls {evil} {worktree.repository}")
    assert "SECRET" not in result.output
    assert "fatal: " in result.output
    assert ["git does not work here" in each for each in result.notes] == [True]
    assert run_git(evil, "rev-parse", "main") == before
    assert run_git(evil, "status", "--short") == ""


@pytest.mark.parametrize(
    "command",
    [
        "tag v1", "stash", "branch -D other", "branch -m other third", "gc", "prune", "pack-refs --all --prune",
        "worktree add --detach ../x", "worktree prune", "config user.name x", "notes add -m x", "remote add o x",
        "update-ref refs/heads/main $(git commit-tree -m x main^{tree})",
    ],
)  # fmt: skip
def test_other_git_commands_fail_with_advice_and_change_nothing(
    worktree: WorktreeFixture, run_in_sandbox: RunInSandbox, command: str
):
    run_git(worktree.repository, "branch", "other")
    (worktree.repository / "src/app.py").write_text("staged, and needed by the index of the user\n")
    run_git(worktree.repository, "add", "-A")
    before = read_files(worktree.repository / ".git")
    scope = worktree.scope()
    result = run_in_sandbox(scope, f"echo two > src/app.py; git {command}")
    assert (result.exit_code == 0, result.notes) == (command == "worktree prune", ())
    if result.exit_code:
        advice = git_failure_advice(result.output, scope) or ""
        assert advice.endswith(f"ask the user to do the rest in {worktree.common_dir}")
    after = read_files(worktree.repository / ".git")
    assert {path: after.get(path) for path in before} == before
    assert [path for path in after if path not in before and "/objects/" not in path] == []


def test_a_session_that_may_also_change_the_users_checkout_leaves_no_state_and_no_settings(
    worktree: WorktreeFixture, run_in_sandbox: RunInSandbox
):
    folders = ("**", subtree_pattern(str(worktree.repository)))
    scope = worktree.scope(Agent(name="x", paths=PathPatterns(read=folders, write=folders)))
    own = worktree.git_dir
    result = run_in_sandbox(
        scope,
        f"{COMMIT}; cd {own}; mkdir rebase-merge; echo 'exec evil' > rebase-merge/git-rebase-todo; mkdir modules; echo x > config.worktree;"
        f" echo x > commondir; echo x > ../other; git -C {worktree.folder} show-ref > ../../../made; echo x > {worktree.repository}/.git/config;"
        " rm -f index logs/HEAD; ln -s ../../../outside/secret index; ln -s ../../../../outside/secret logs/HEAD",
    )
    assert result.output.startswith("two\none\n"), result.output
    assert (worktree.repository / "made").exists()
    names = {each.name for each in own.rglob("*") if not each.name.startswith("taken-")}
    assert names.isdisjoint({"rebase-merge", "modules", "config.worktree", "index"})
    assert not (own / "logs/HEAD").exists()
    assert (own / "commondir").read_text() == "../..\n"
    assert not (own.parent / "other").exists()
    assert worktree.subjects() == ["two", "one"]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, except for the index of the own worktree."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.match("worktrees/own/index")
    }


@pytest.mark.parametrize("reason", ["deny", "ceiling", "operator", "read only", "part"])
def test_a_session_that_may_not_change_its_worktree_or_its_git_folder_cannot_commit(
    worktree: WorktreeFixture, run_in_sandbox: RunInSandbox, reason: str
):
    denied = ("**/.git/**",)
    scope = {
        "deny": lambda: worktree.scope(Agent(name="x", paths=PathPatterns(deny=denied))),
        "ceiling": lambda: worktree.scope(ceilings=(Ceiling(set_by="parent", deny=denied),)),
        "operator": lambda: worktree.scope(
            ceilings=(Ceiling(set_by=OPERATOR, write=(subtree_pattern(str(worktree.folder)),)),)
        ),
        "read only": lambda: worktree.scope(writable=False),
        "part": lambda: worktree.scope(Agent(name="x", paths=PathPatterns(write=("docs/**",)))),
    }[reason]()
    result = run_in_sandbox(scope, "git add -A; git commit -q --allow-empty -m two; git log --format=%s")
    assert result.exit_code == (128 if reason in ("deny", "ceiling") else 0)
    assert worktree.subjects() == ["one"]


def test_the_file_tools_reach_gits_files_of_the_own_worktree_only(worktree: WorktreeFixture):
    run_git(worktree.repository, "worktree", "add", "-q", "-b", "mine", str(worktree.folder.parent / "mine"))
    files = GuardedFiles(worktree.scope())
    common, own = worktree.common_dir, worktree.git_dir
    assert files.read(f"{own}/HEAD").data == b"ref: refs/heads/retinue/own\n"
    assert files.is_guarded(files.check_access(f"{own}/HEAD", "write"))
    assert files.is_guarded(files.check_access(f"{common}/refs/heads/new", "write"))
    for path in (f"{own}/commondir", f"{own}/gitdir", f"{own}/x", f"{common}/HEAD", f"{common}/packed-refs"):
        with pytest.raises(OutOfScope):
            files.check_access(path, "write")
    for path in (
        f"{common}/config",
        f"{common}/worktrees/mine/HEAD",
        f"{common}/hooks",
        f"{worktree.folder}/.git",
    ):
        with pytest.raises(OutOfScope):
            files.check_access(path, "read")
