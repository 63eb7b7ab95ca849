"""Worktrees of sessions: creation, isolation from the repository, and deletion."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from git_repository import commit_all, create_repository, run_git
from user_machine import UserMachine, spawn_and_wait

from retinue.app.run_options import SpawnOptions
from retinue.sandbox.git.worktrees import Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SANDBOX_WORKSPACE = "workspace: {isolation: sandbox, writable: true}\n"


def create_workspace_repository(machine: UserMachine) -> Path:
    """Make the workspace a repository with the file `a.txt`, and approve all calls."""
    (machine.folder / "a.txt").write_text("one\n")
    create_repository(machine.folder)
    machine.write_config(approvals="auto")
    return machine.folder


def list_worktrees(machine: UserMachine) -> list[Path]:
    folder = machine.home / "worktrees"
    return sorted(folder.iterdir()) if folder.exists() else []


async def show_workspace(machine: UserMachine, ref: str) -> Any:
    return (await machine("sessions", "show", "--json", ref)).json["workspace"]


async def test_an_agent_writes_in_its_worktree_and_the_repository_stays_unchanged(machine: UserMachine):
    """Shows: D011, L003, L026."""
    repo = create_workspace_repository(machine)
    write_calls = tool_call_reply(
        ("write", {"path": "b.txt", "content": "two\n"}),
        ("edit", {"path": "a.txt", "old": "one", "new": "uno"}),
    )
    read_calls = tool_call_reply(
        ("bash", {"command": "pwd; cat a.txt; echo three >c.txt; ls -a"}),
        ("write", {"path": f"{repo}/b.txt", "content": "no\n"}),
        ("read", {"path": f"{repo}/a.txt"}),
    )
    async with machine.serve_models([write_calls, read_calls, text_reply("Built.")]) as server:
        run = (await machine("run", "--json", "--agent", "builder", "Build")).json
    (worktree,) = list_worktrees(machine)
    workspace = await show_workspace(machine, run["slug"])
    assert workspace == {
        "root": str(worktree),
        "isolation": "sandbox",
        "writable": True,
        "label": repo.name,
        "source": str(repo),
        "git_dir": f"{repo}/.git/worktrees/{worktree.name}",
        "project": str(repo),
    }
    assert (await machine("runs", "show", "--json", run["run_id"])).json["workspace"] == str(worktree)
    text = (await machine("sessions", "show", run["slug"])).out
    assert str(worktree) in text
    assert run_git(worktree, "branch", "--show-current") == f"retinue/{worktree.name}"
    assert {path.name: path.read_text() for path in worktree.glob("*.txt")} == {
        "a.txt": "uno\n",
        "b.txt": "two\n",
        "c.txt": "three\n",
    }
    assert run_git(repo, "status", "--porcelain") == ""
    results = machine.tool_results(server.requests[2])
    shown = [str(worktree), "uno", ".", "..", ".git", "a.txt", "b.txt", "c.txt"]
    assert [line for line in results[2].splitlines() if line in shown] == shown
    assert "one" not in results[4]
    assert sorted(path.name for path in repo.iterdir()) == [".git", "a.txt"]


async def test_an_agent_commits_in_its_worktree_and_changes_nothing_else_in_the_repository(
    machine: UserMachine,
):
    repo = create_workspace_repository(machine)
    run_git(repo, "worktree", "add", "-q", "-b", "mine", str(machine.folder.parent / "mine"))
    before = read_unshared_git_files(repo)
    commit = tool_call_reply(
        ("write", {"path": "b.txt", "content": "two\n"}),
        ("bash", {"command": "git add -A && git commit -qm x && git status --short && git log --format=%s"}),
    )
    attacks = tool_call_reply(
        (
            "bash",
            {
                "command": f'cd {repo}/.git; git update-ref refs/heads/main refs/heads/retinue/*; for b in main mine; do git update-ref refs/heads/$b $(git for-each-ref --format="%(objectname)" refs/heads/retinue); done; git branch -f mine HEAD'
            },
        ),
        ("bash", {"command": f"cd {repo}/.git; echo x | tee config HEAD index hooks/x info/x refs/tags/x x"}),
        (
            "bash",
            {"command": f"cd {repo}/.git/worktrees/*/; echo x | tee commondir gitdir config.worktree x"},
        ),
        ("bash", {"command": f"ls -A {repo} {repo}/.git/worktrees; cat {repo}/.git/worktrees/mine/HEAD"}),
        (
            "bash",
            {"command": "git tag v1; git stash; git worktree add --detach ../x; git config user.name x"},
        ),
        ("bash", {"command": "echo evil >.git; rm -f .git; mv .git x; ln -sf x .git"}),
    )
    async with machine.serve_models([commit, attacks, text_reply("Committed.")]) as server:
        run = (await machine("run", "--json", "--agent", "builder", "Build")).json
    worktree = Path((await show_workspace(machine, run["slug"]))["root"])
    assert "Change" in machine.tool_results(server.requests[1])[1]
    assert run_git(worktree, "log", "--format=%s").split() == ["x", "Change"]
    assert run_git(worktree, "status", "--porcelain") == ""
    assert run_git(repo, "log", "--format=%s", f"retinue/{worktree.name}").split() == ["x", "Change"]
    assert run_git(repo, "fsck", "--strict") == ""
    assert run_git(repo, "status", "--porcelain") == ""
    assert read_unshared_git_files(repo, except_worktree=worktree.name) == before
    listing, refused = machine.tool_results(server.requests[2])[5:7]
    assert f"Commit to a branch instead of stashing; ask the user to do the rest in {repo}/.git]" in refused
    assert [name for name in ("a.txt", "mine", "refs/heads/mine") if name in listing.split()] == []
    git_dir = repo / ".git/worktrees" / worktree.name
    assert (git_dir / "commondir").read_text() == "../..\n"
    assert (git_dir / "gitdir").read_text() == f"{worktree}/.git\n"
    assert not (git_dir / "config.worktree").exists()
    assert (worktree / ".git").read_text() == f"gitdir: {git_dir}\n"


async def test_an_agent_and_its_user_learn_how_to_allow_a_refused_git_command(machine: UserMachine):
    create_workspace_repository(machine)
    (machine.folder / "a.txt").write_text("two\n")
    stash = tool_call_reply(("bash", {"command": "git stash"}))
    async with machine.serve_models(
        [stash, text_reply("I cannot."), stash, text_reply("Stashed.")]
    ) as server:
        for paths in ("", "paths: {write: ['**', '.git/**']}\n"):
            machine.write_agent("maker", f"tools: [bash]\n{paths}")
            run = (await machine("run", "--json", "--agent", "maker", "Stash")).json
            shown = (await machine("sessions", "show", run["slug"], "--json")).json
            advice = "ask the user to add '.git/**' to paths.write in this agent's definition"
            result = machine.tool_results(server.requests[-1])[-1]
            transcript = Path(shown["path"]).read_text()
            assert (advice in result, advice in transcript) == (not paths, not paths)
    assert run_git(machine.folder, "stash", "list") != ""


def read_unshared_git_files(repo: Path, *, except_worktree: str = "") -> dict[str, bytes]:
    """Return the files of a git folder that a commit in another worktree does not change, and the user's branches."""
    top = repo / ".git"
    names = (str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())
    changing = (
        "objects",
        "refs/heads/retinue",
        "logs/refs/heads/retinue",
        f"worktrees/{except_worktree or '/'}",
    )
    return {name: (top / name).read_bytes() for name in names if not name.startswith(changing)}


async def test_denying_the_git_folder_also_denies_the_git_data_of_a_worktree(machine: UserMachine):
    """Shows: F15."""
    repo = create_workspace_repository(machine)
    machine.write_agent(
        "maker", f"{SANDBOX_WORKSPACE}tools: [read, write, edit, bash]\npaths: {{deny: ['**/.git/**']}}\n"
    )
    calls = tool_call_reply(
        ("read", {"path": ".git"}),
        ("write", {"path": ".git", "content": "gitdir: evil\n"}),
        ("edit", {"path": ".git", "old": "gitdir", "new": "x"}),
        ("write", {"path": ".git/config", "content": "x"}),
        ("read", {"path": f"{repo}/.git/HEAD"}),
        ("bash", {"command": f"cat .git; cat {repo}/.git/HEAD; ls {repo}; git log"}),
        ("bash", {"command": "echo evil >.git; rm -f .git; mv .git x; ln -sf x .git"}),
    )
    async with machine.serve_models([calls, text_reply("I may not.")]) as server:
        run = (await machine("run", "--json", "--agent", "maker", "Try")).json
    worktree = Path((await show_workspace(machine, run["slug"]))["root"])
    assert run_git(worktree, "rev-parse", "--git-dir") == f"{repo}/.git/worktrees/{worktree.name}"
    results = machine.tool_results(server.requests[1])
    assert ["always closed" in each for each in results[:4]] == [True] * 4
    for secret in ("gitdir", "refs/heads", "a.txt", "Change"):
        assert secret not in results[4] + results[5]


async def test_an_agent_that_needs_a_worktree_is_refused_outside_a_repository(machine: UserMachine):
    """Shows: L026."""
    async with machine.serve_models([]) as server:
        refused = await machine("run", "--json", "--agent", "builder", "Build")
    assert refused.code == 3
    assert refused.json["error"]["message"] == (
        f"{machine.folder} is not in a git repository, so the agent cannot get its own writable workspace. "
        "Run `git init` and commit, or set workspace.writable: false or isolation: shared in its definition."
    )
    assert (await machine("sessions", "list", "--json")).json == []
    assert (await machine("runs", "history", "--json")).json == []
    assert server.requests == []


async def test_an_agent_that_needs_a_worktree_is_refused_in_a_repository_without_a_commit(
    machine: UserMachine,
):
    """Shows: L026."""
    run_git(machine.folder, "init", "-q")
    async with machine.serve_models([]):
        failed = await machine("run", "--json", "--agent", "builder", "Build")
    assert failed.code == 1
    assert "it has no commit yet" in failed.json["error"]["message"]
    assert (await machine("sessions", "list", "--json")).json == []
    assert list_worktrees(machine) == []
    assert run_git(machine.folder, "branch", "--list") == ""


async def test_children_started_concurrently_each_get_their_own_worktree(machine: UserMachine):
    """Shows: L026, D012."""
    repo = create_workspace_repository(machine)
    machine.write_agent("main", "tools: []\n")
    machine.write_agent("maker", f"{SANDBOX_WORKSPACE}tools: [write]\n")

    def script(request: CapturedRequest) -> FakeResponse:
        task = [m["content"] for m in request.messages if m["role"] == "user"][-1]
        if request.messages[-1]["role"] == "tool" or "make" not in task:
            return text_reply("Done.")
        return tool_call_reply(("write", {"path": "mine.txt", "content": task}))

    async with machine.serve_models(script), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=repo)
        spawns = [
            app.runs.spawn(f"make {n}", SpawnOptions(parent=parent.slug, agent="maker")) for n in range(5)
        ]
        runs = [await app.runs.wait(run.id) for run in await asyncio.gather(*spawns)]
        workspaces = [(await app.sessions.find(run.slug)).workspace for run in runs]
        assert (await app.sessions.find(parent.slug)).workspace.root == str(repo)
    assert [Path(workspace.root, "mine.txt").read_text() for workspace in workspaces] == [
        f"make {n}" for n in range(5)
    ]
    assert len({workspace.root for workspace in workspaces}) == 5
    assert {
        (workspace.source_repository, str(workspace.isolation), workspace.writable)
        for workspace in workspaces
    } == {(str(repo), "sandbox", True)}
    assert run_git(repo, "status", "--porcelain") == ""


async def test_deleting_a_session_deletes_its_clean_worktree_and_keeps_one_with_changes(machine: UserMachine):
    """Shows: L026."""
    repo = create_workspace_repository(machine)
    work = tool_call_reply(("write", {"path": "b.txt", "content": "work\n"}))
    async with machine.serve_models([text_reply("Nothing to do."), work, text_reply("Built.")]):
        clean = (await machine("run", "--json", "--agent", "builder", "Look")).json
        dirty = (await machine("run", "--json", "--agent", "builder", "Build")).json
        first, second = [
            Path((await show_workspace(machine, each["slug"]))["root"]) for each in (clean, dirty)
        ]
        clean_deletion = await machine("sessions", "delete", clean["slug"])
        kept = await machine("sessions", "delete", dirty["slug"])
    assert (clean_deletion.code, kept.code) == (0, 0)
    assert list_worktrees(machine) == [second]
    assert not first.exists()
    assert "worktree" not in clean_deletion.err
    assert f"Its worktree contains changes and was kept: {second} (of {repo})" in kept.err
    assert (second / "b.txt").read_text() == "work\n"
    assert run_git(repo, "branch", "--list", "retinue/*") == f"+ retinue/{second.name}"


async def test_deleting_a_session_deletes_clean_worktrees_of_its_children_unless_another_session_uses_them(
    machine: UserMachine,
):
    """Shows: L026."""
    repo = create_workspace_repository(machine)
    machine.write_agent("main", "tools: []\n")
    async with machine.serve_models([text_reply(str(n)) for n in range(5)]), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=repo)
        child = await spawn_and_wait(app, parent.slug, "builder", "Look")
        worktree = Path((await app.sessions.find(child.slug)).workspace.root)
        run_inside = await app.run("Look", agent="main", workspace=worktree)
        await app.sessions.delete(parent.slug)
        assert worktree.exists()
        second_parent = await app.run("Hi", agent="main", workspace=repo)
        child = await spawn_and_wait(app, second_parent.slug, "builder", "Look")
        other = Path((await app.sessions.find(child.slug)).workspace.root)
        assert other.exists()
        await app.sessions.delete(second_parent.slug)
        assert not other.exists()
        await app.sessions.delete(run_inside.slug)
    assert list_worktrees(machine) == [worktree]


async def test_a_sandbox_workspace_outside_a_repository_is_read_only(machine: UserMachine):
    """Shows: D013, D014."""
    (machine.folder / "a.txt").write_text("one\n")
    machine.write_config(approvals="auto")
    machine.write_agent("looker", "workspace: {isolation: sandbox}\ntools: [read, write, bash]\n")
    calls = tool_call_reply(
        ("read", {"path": "a.txt"}),
        ("write", {"path": "b.txt", "content": "x"}),
        ("bash", {"command": "cat a.txt; echo x >b.txt || echo refused"}),
    )
    async with machine.serve_models([calls, text_reply("Seen.")]) as server:
        run = (await machine("run", "--json", "--agent", "looker", "Look")).json
    workspace = await show_workspace(machine, run["slug"])
    assert (workspace["root"], workspace["isolation"], workspace["writable"], workspace["source"]) == (
        str(machine.folder),
        "sandbox",
        False,
        None,
    )
    results = machine.tool_results(server.requests[1])
    assert "one" in results[0]
    assert "read-only" in results[1]
    assert "refused" in results[2]
    assert [path.name for path in machine.folder.iterdir()] == ["a.txt"]


async def test_a_child_of_a_read_only_parent_has_a_read_only_worktree(machine: UserMachine):
    """Shows: T06, D012."""
    repo = create_workspace_repository(machine)
    machine.write_agent("maker", f"{SANDBOX_WORKSPACE}tools: [write, bash]\n")
    calls = tool_call_reply(
        ("write", {"path": "b.txt", "content": "x"}), ("bash", {"command": "echo x >c.txt || echo refused"})
    )
    async with (
        machine.serve_models([text_reply("Hi."), calls, text_reply("No.")]) as server,
        machine.open() as app,
    ):
        parent = await app.run("Hi", agent="explorer", workspace=repo)
        child = await spawn_and_wait(app, parent.slug, "maker", "Make")
        workspace = (await app.sessions.find(child.slug)).workspace
    assert not workspace.writable
    results = machine.tool_results(server.requests[2])
    assert ["read-only" in results[0], "refused" in results[1]] == [True, True]
    assert sorted(path.name for path in Path(workspace.root).iterdir()) == [".git", "a.txt"]


async def test_a_custom_workspace_is_the_folder_named_by_the_definition(machine: UserMachine):
    """Shows: D011, D014, L003."""
    (machine.folder / "real").mkdir()
    (machine.folder / "link").symlink_to("real")
    machine.write_config(approvals="auto")
    for name, path in (
        ("maker", "link"),
        ("missing", "nowhere"),
        ("home", str(machine.home)),
        ("outside", "/proc"),
    ):
        machine.write_agent(name, f"workspace: {{isolation: custom, path: {path}}}\ntools: [write]\n")
    (machine.folder / "a.txt").write_text("")
    machine.write_agent("file", "workspace: {isolation: custom, path: a.txt}\n")
    async with machine.serve_models(
        [tool_call_reply(("write", {"path": "b.txt", "content": "x"})), text_reply("Made.")]
    ):
        run = (await machine("run", "--json", "--agent", "maker", "Make")).json
        workspace = await show_workspace(machine, run["slug"])
        for name in ("missing", "home", "outside", "file"):
            refused = await machine("run", "--json", "--agent", name, "Make")
            assert refused.code == 3, (name, refused)
            assert "The definition's workspace" in refused.json["error"]["message"]
    assert (workspace["root"], workspace["isolation"], workspace["writable"]) == (
        f"{machine.folder}/real",
        "custom",
        True,
    )
    assert (machine.folder / "real" / "b.txt").read_text() == "x"
    assert len((await machine("sessions", "list", "--json")).json) == 1


@pytest.mark.parametrize("agent", ["scout", "builder"])
async def test_agents_of_a_project_are_available_in_its_worktrees(machine: UserMachine, agent: str):
    """The definition is looked up in the original folder, not in the worktree.

    Shows: S27.
    """
    repo = create_workspace_repository(machine)
    folder = repo / ".retinue" / "agents"
    folder.mkdir(parents=True)
    (folder / "scout.md").write_text(f"---\n{SANDBOX_WORKSPACE}tools: []\n---\nYou scout.\n")
    async with machine.serve_models([text_reply("One."), text_reply("Two."), text_reply("Three.")]):
        assert (await machine("trust", "--yes", ".")).code == 0
        run = (await machine("run", "--json", "--agent", agent, "Go")).json
        assert (await machine("send", "--json", run["slug"], "On")).json["text"] == "Two."
        spawned = await machine("spawn", "--json", "--parent", run["slug"], "--agent", "scout", "Go")
    assert spawned.json["text"] == "Three."
    assert len(list_worktrees(machine)) == 2


async def test_a_child_shares_the_worktree_of_its_parent(machine: UserMachine):
    """Shows: L003, T06."""
    create_workspace_repository(machine)
    (machine.folder / "lib").mkdir()
    (machine.folder / "lib" / "b.txt").write_text("lib\n")
    commit_all(machine.folder)
    machine.write_agent("main", f"{SANDBOX_WORKSPACE}tools: []\n")
    machine.write_agent("inner", "workspace: {isolation: custom, path: lib}\ntools: [read]\n")
    calls = tool_call_reply(("read", {"path": "a.txt"}), ("ls", {}), ("read", {"path": ".git"}))
    script = [
        text_reply("Hi."),
        calls,
        text_reply("Seen."),
        tool_call_reply(("read", {"path": "b.txt"})),
        text_reply("Read."),
    ]
    async with machine.serve_models(script) as server, machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=machine.folder)
        runs = [
            await app.runs.wait(
                (await app.runs.spawn("Look", SpawnOptions(parent=parent.slug, agent=name))).id
            )
            for name in ("explorer", "inner")
        ]
        parent_workspace, *workspaces = [
            (await app.sessions.find(run.slug)).workspace for run in (parent, *runs)
        ]
    results = [
        m["content"] for index in (2, 4) for m in server.requests[index].messages if m["role"] == "tool"
    ]
    assert "one" in results[0]
    assert "a.txt" in results[1]
    assert "gitdir" not in results[2]
    assert "lib" in results[3]
    assert [workspace.root for workspace in workspaces] == [
        parent_workspace.root,
        f"{parent_workspace.root}/lib",
    ]
    assert {workspace.source_repository for workspace in workspaces} == {str(machine.folder)}
    assert len(list_worktrees(machine)) == 1


async def test_a_child_in_its_own_worktree_cannot_read_what_its_parent_cannot_read(machine: UserMachine):
    """Shows: T06."""
    repo = create_workspace_repository(machine)
    for name in ("docs/a.md", "docs/secret/b.md", "src/c.md"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(f"words of {name}\n")
    commit_all(repo)
    machine.write_agent("main", "tools: []\npaths: {read: ['docs/**'], deny: ['docs/secret/**']}\n")
    machine.write_agent("maker", f"{SANDBOX_WORKSPACE}tools: [read, write, bash]\n")
    names = ("docs/a.md", "docs/secret/b.md", "src/c.md")
    calls = tool_call_reply(
        *(("read", {"path": name}) for name in names),
        ("write", {"path": "docs/new.md", "content": "new\n"}),
        ("bash", {"command": f"cat {' '.join(names)}"}),
    )
    async with (
        machine.serve_models([text_reply("Hi."), calls, text_reply("Seen.")]) as server,
        machine.open() as app,
    ):
        parent = await app.run("Hi", agent="main", workspace=repo)
        child = await spawn_and_wait(app, parent.slug, "maker", "Make")
        worktree = Path((await app.sessions.find(child.slug)).workspace.root)
    results = machine.tool_results(server.requests[2])
    assert [f"words of {name}" in result for name, result in zip(names, results, strict=False)] == [
        True,
        False,
        False,
    ]
    assert [f"words of {name}" in results[4] for name in names] == [True, False, False]
    assert (worktree / "docs" / "new.md").read_text() == "new\n"


async def test_a_worktree_without_a_session_is_removed_at_the_next_start(machine: UserMachine):
    """A crash leaves such a worktree; worktrees of sessions are kept.

    Shows: P32.
    """
    repo = create_workspace_repository(machine)
    async with machine.serve_models([text_reply("Looked.")]):
        run = (await machine("run", "--json", "--agent", "builder", "Look")).json
    kept = Path((await show_workspace(machine, run["slug"]))["root"])
    probe = SandboxProbe()
    manager = Worktrees(
        machine.home / "worktrees",
        shell_for_scope=make_shell_factory(probe, os.environ),
        find_sandbox_level=probe.level,
        is_trusted=lambda _: True,
    )
    assert await manager.create(str(repo), "orphan") is not None
    assert len(list_worktrees(machine)) == 2
    mtime = time.time() - 3600
    for record in (*(machine.home / "unclaimed").iterdir(), *(repo / ".git/worktrees").iterdir()):
        os.utime(record, (mtime, mtime))
    async with machine.open():
        pass
    assert list_worktrees(machine) == [kept]
    assert run_git(repo, "branch", "--list", "retinue/*").split() == ["+", f"retinue/{kept.name}"]
    assert list((machine.home / "unclaimed").iterdir()) == []
