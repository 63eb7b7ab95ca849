"""Where agents work, seen from outside: a worktree of their own or none, and nothing of it anywhere else."""

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.app.run_options import SpawnOptions
from retinue.sandbox.git.worktrees import Worktrees
from retinue.sandbox.probe import SandboxProbe
from retinue.sandbox.shell import make_shell_factory
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SANDBOX = "workspace: {isolation: sandbox, writable: true}\n"


def git(at: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(at), "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=at, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(machine: UserMachine) -> Path:
    (machine.folder / "a.txt").write_text("one\n")
    git(machine.folder, "init", "-q", "-b", "main")
    git(machine.folder, "add", "-A")
    git(machine.folder, "commit", "-q", "-m", "x")
    machine.write_config(approvals="auto")
    return machine.folder


def worktrees(machine: UserMachine) -> list[Path]:
    folder = machine.home / "worktrees"
    return sorted(folder.iterdir()) if folder.exists() else []


async def place_of(machine: UserMachine, ref: str) -> Any:
    return (await machine("sessions", "show", "--json", ref)).json["workspace"]


async def test_an_agent_builds_in_a_worktree_and_the_repository_stays_as_it_was(machine: UserMachine):
    """Shows: D011, L003, L026."""
    repo = repository(machine)
    writes = tool_call_reply(
        ("write", {"path": "b.txt", "content": "two\n"}),
        ("edit", {"path": "a.txt", "old": "one", "new": "uno"}),
    )
    looks = tool_call_reply(
        ("bash", {"command": "pwd; cat a.txt; echo three >c.txt; ls -a"}),
        ("write", {"path": f"{repo}/b.txt", "content": "no\n"}),
        ("read", {"path": f"{repo}/a.txt"}),
    )
    async with machine.serve_models([writes, looks, text_reply("Built.")]) as server:
        run = (await machine("run", "--json", "--agent", "builder", "Build")).json
    (place,) = worktrees(machine)
    where = await place_of(machine, run["slug"])
    assert where == {
        "root": str(place),
        "isolation": "sandbox",
        "writable": True,
        "label": repo.name,
        "source": str(repo),
        "project": str(repo),
    }
    assert (await machine("runs", "show", "--json", run["run_id"])).json["workspace"] == str(place)
    text = (await machine("sessions", "show", run["slug"])).out
    assert str(place) in text
    assert git(place, "branch", "--show-current") == f"retinue/{place.name}"
    assert {path.name: path.read_text() for path in place.glob("*.txt")} == {
        "a.txt": "uno\n",
        "b.txt": "two\n",
        "c.txt": "three\n",
    }
    assert git(repo, "status", "--porcelain") == ""
    results = [message["content"] for message in server.requests[2].messages if message["role"] == "tool"]
    shown = [str(place), "uno", ".", "..", ".git", "a.txt", "b.txt", "c.txt"]
    assert [line for line in results[2].splitlines() if line in shown] == shown
    assert "one" not in results[4]
    assert sorted(path.name for path in repo.iterdir()) == [".git", "a.txt"]


async def test_what_git_knows_of_a_worktree_is_closed_to_its_agent(machine: UserMachine):
    """Shows: F15."""
    repo = repository(machine)
    wishes = tool_call_reply(
        ("read", {"path": ".git"}),
        ("write", {"path": ".git", "content": "gitdir: evil\n"}),
        ("edit", {"path": ".git", "old": "gitdir", "new": "x"}),
        ("write", {"path": ".git/config", "content": "x"}),
        ("read", {"path": f"{repo}/.git/HEAD"}),
        ("bash", {"command": f"cat .git; cat {repo}/.git/HEAD; ls {repo}"}),
        ("bash", {"command": "echo evil >.git; rm -f .git; mv .git x; ln -sf x .git"}),
    )
    async with machine.serve_models([wishes, text_reply("I may not.")]) as server:
        run = (await machine("run", "--json", "--agent", "builder", "Try")).json
    place = Path((await place_of(machine, run["slug"]))["root"])
    assert git(place, "rev-parse", "--git-dir") == f"{repo}/.git/worktrees/{place.name}"
    results = [message["content"] for message in server.requests[1].messages if message["role"] == "tool"]
    assert ["always closed" in each for each in results[:4]] == [True] * 4
    for secret in ("gitdir", "refs/heads", "a.txt"):
        assert secret not in results[4] + results[5]


async def test_without_a_repository_there_is_no_builder_and_no_session(machine: UserMachine):
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


async def test_without_a_commit_the_start_fails_and_leaves_nothing(machine: UserMachine):
    """Shows: L026."""
    git(machine.folder, "init", "-q")
    async with machine.serve_models([]):
        failed = await machine("run", "--json", "--agent", "builder", "Build")
    assert failed.code == 1
    assert "it has no commit yet" in failed.json["error"]["message"]
    assert (await machine("sessions", "list", "--json")).json == []
    assert worktrees(machine) == []
    assert git(machine.folder, "branch", "--list") == ""


async def test_children_that_start_together_each_have_their_own(machine: UserMachine):
    """Shows: L026, D012."""
    repo = repository(machine)
    machine.write_agent("main", "tools: []\n")
    machine.write_agent("maker", f"{SANDBOX}tools: [write]\n")

    def script(request: CapturedRequest) -> FakeResponse:
        said = [m["content"] for m in request.messages if m["role"] == "user"][-1]
        if request.messages[-1]["role"] == "tool" or "make" not in said:
            return text_reply("Done.")
        return tool_call_reply(("write", {"path": "mine.txt", "content": said}))

    async with machine.serve_models(script), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=repo)
        asked = [
            app.runs.spawn(f"make {n}", SpawnOptions(parent=parent.slug, agent="maker")) for n in range(5)
        ]
        runs = [await app.runs.wait(run.id) for run in await asyncio.gather(*asked)]
        places = [(await app.sessions.find(run.slug)).workspace for run in runs]
        assert (await app.sessions.find(parent.slug)).workspace.root == str(repo)
    assert [Path(place.root, "mine.txt").read_text() for place in places] == [f"make {n}" for n in range(5)]
    assert len({place.root for place in places}) == 5
    assert {(place.source_repository, str(place.isolation), place.writable) for place in places} == {
        (str(repo), "sandbox", True)
    }
    assert git(repo, "status", "--porcelain") == ""


async def test_a_deleted_session_takes_a_clean_worktree_along_and_leaves_one_with_work(machine: UserMachine):
    """Shows: L026."""
    repo = repository(machine)
    work = tool_call_reply(("write", {"path": "b.txt", "content": "work\n"}))
    async with machine.serve_models([text_reply("Nothing to do."), work, text_reply("Built.")]):
        clean = (await machine("run", "--json", "--agent", "builder", "Look")).json
        dirty = (await machine("run", "--json", "--agent", "builder", "Build")).json
        first, second = [Path((await place_of(machine, each["slug"]))["root"]) for each in (clean, dirty)]
        gone = await machine("sessions", "delete", clean["slug"])
        kept = await machine("sessions", "delete", dirty["slug"])
    assert (gone.code, kept.code) == (0, 0)
    assert worktrees(machine) == [second]
    assert not first.exists()
    assert "worktree" not in gone.err
    assert f"Its worktree contains changes and was kept: {second} (of {repo})" in kept.err
    assert (second / "b.txt").read_text() == "work\n"
    assert git(repo, "branch", "--list", "retinue/*") == f"+ retinue/{second.name}"


async def test_the_clean_worktrees_of_its_children_go_with_a_session_unless_somebody_is_in_them(
    machine: UserMachine,
):
    """Shows: L026."""
    repo = repository(machine)
    machine.write_agent("main", "tools: []\n")
    async with machine.serve_models([text_reply(str(n)) for n in range(5)]), machine.open() as app:
        parent = await app.run("Hi", agent="main", workspace=repo)
        child = await app.runs.wait(
            (await app.runs.spawn("Look", SpawnOptions(parent=parent.slug, agent="builder"))).id
        )
        place = Path((await app.sessions.find(child.slug)).workspace.root)
        visitor = await app.run("Look", agent="main", workspace=place)
        await app.sessions.delete(parent.slug)
        assert place.exists()
        again = await app.run("Hi", agent="main", workspace=repo)
        child = await app.runs.wait(
            (await app.runs.spawn("Look", SpawnOptions(parent=again.slug, agent="builder"))).id
        )
        other = Path((await app.sessions.find(child.slug)).workspace.root)
        assert other.exists()
        await app.sessions.delete(again.slug)
        assert not other.exists()
        await app.sessions.delete(visitor.slug)
    assert worktrees(machine) == [place]


async def test_a_sandbox_outside_of_git_can_only_be_looked_at(machine: UserMachine):
    """Shows: D013, D014."""
    (machine.folder / "a.txt").write_text("one\n")
    machine.write_config(approvals="auto")
    machine.write_agent("looker", "workspace: {isolation: sandbox}\ntools: [read, write, bash]\n")
    wishes = tool_call_reply(
        ("read", {"path": "a.txt"}),
        ("write", {"path": "b.txt", "content": "x"}),
        ("bash", {"command": "cat a.txt; echo x >b.txt || echo refused"}),
    )
    async with machine.serve_models([wishes, text_reply("Seen.")]) as server:
        run = (await machine("run", "--json", "--agent", "looker", "Look")).json
    where = await place_of(machine, run["slug"])
    assert (where["root"], where["isolation"], where["writable"], where["source"]) == (
        str(machine.folder),
        "sandbox",
        False,
        None,
    )
    results = [message["content"] for message in server.requests[1].messages if message["role"] == "tool"]
    assert "one" in results[0]
    assert "read-only" in results[1]
    assert "refused" in results[2]
    assert [path.name for path in machine.folder.iterdir()] == ["a.txt"]


async def test_a_read_only_parent_has_no_child_that_writes(machine: UserMachine):
    """Shows: T06, D012."""
    repo = repository(machine)
    machine.write_agent("maker", f"{SANDBOX}tools: [write, bash]\n")
    wishes = tool_call_reply(
        ("write", {"path": "b.txt", "content": "x"}), ("bash", {"command": "echo x >c.txt || echo refused"})
    )
    async with (
        machine.serve_models([text_reply("Hi."), wishes, text_reply("No.")]) as server,
        machine.open() as app,
    ):
        parent = await app.run("Hi", agent="explorer", workspace=repo)
        child = await app.runs.wait(
            (await app.runs.spawn("Make", SpawnOptions(parent=parent.slug, agent="maker"))).id
        )
        place = (await app.sessions.find(child.slug)).workspace
    assert not place.writable
    results = [message["content"] for message in server.requests[2].messages if message["role"] == "tool"]
    assert ["read-only" in results[0], "refused" in results[1]] == [True, True]
    assert sorted(path.name for path in Path(place.root).iterdir()) == [".git", "a.txt"]


async def test_a_custom_workspace_is_the_folder_that_its_definition_names(machine: UserMachine):
    """Shows: D011, D014, L003."""
    (machine.folder / "real").mkdir()
    (machine.folder / "link").symlink_to("real")
    machine.write_config(approvals="auto")
    for name, path in (
        ("maker", "link"),
        ("lost", "nowhere"),
        ("thief", str(machine.home)),
        ("far", "/proc"),
    ):
        machine.write_agent(name, f"workspace: {{isolation: custom, path: {path}}}\ntools: [write]\n")
    (machine.folder / "a.txt").write_text("")
    machine.write_agent("flat", "workspace: {isolation: custom, path: a.txt}\n")
    async with machine.serve_models(
        [tool_call_reply(("write", {"path": "b.txt", "content": "x"})), text_reply("Made.")]
    ):
        run = (await machine("run", "--json", "--agent", "maker", "Make")).json
        where = await place_of(machine, run["slug"])
        for name in ("lost", "thief", "far", "flat"):
            refused = await machine("run", "--json", "--agent", name, "Make")
            assert refused.code == 3, (name, refused)
            assert "The definition's workspace" in refused.json["error"]["message"]
    assert (where["root"], where["isolation"], where["writable"]) == (
        f"{machine.folder}/real",
        "custom",
        True,
    )
    assert (machine.folder / "real" / "b.txt").read_text() == "x"
    assert len((await machine("sessions", "list", "--json")).json) == 1


@pytest.mark.parametrize("agent", ["scout", "builder"])
async def test_a_projects_agent_stays_known_in_its_worktree(machine: UserMachine, agent: str):
    """The live definition is looked up where the person began, not in the copy.

    Shows: S27.
    """
    repo = repository(machine)
    folder = repo / ".retinue" / "agents"
    folder.mkdir(parents=True)
    (folder / "scout.md").write_text(f"---\n{SANDBOX}tools: []\n---\nYou scout.\n")
    async with machine.serve_models([text_reply("One."), text_reply("Two."), text_reply("Three.")]):
        assert (await machine("trust", "--yes", ".")).code == 0
        run = (await machine("run", "--json", "--agent", agent, "Go")).json
        assert (await machine("send", "--json", run["slug"], "On")).json["text"] == "Two."
        spawned = await machine("spawn", "--json", "--parent", run["slug"], "--agent", "scout", "Go")
    assert spawned.json["text"] == "Three."
    assert len(worktrees(machine)) == 2


async def test_a_child_of_one_in_a_worktree_works_in_the_same_worktree(machine: UserMachine):
    """Shows: L003, T06."""
    repository(machine)
    (machine.folder / "lib").mkdir()
    (machine.folder / "lib" / "b.txt").write_text("lib\n")
    git(machine.folder, "add", "-A")
    git(machine.folder, "commit", "-q", "-m", "y")
    machine.write_agent("main", f"{SANDBOX}tools: []\n")
    machine.write_agent("inner", "workspace: {isolation: custom, path: lib}\ntools: [read]\n")
    wishes = tool_call_reply(("read", {"path": "a.txt"}), ("ls", {}), ("read", {"path": ".git"}))
    script = [
        text_reply("Hi."),
        wishes,
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
        above, *places = [(await app.sessions.find(run.slug)).workspace for run in (parent, *runs)]
    results = [m["content"] for at in (2, 4) for m in server.requests[at].messages if m["role"] == "tool"]
    assert "one" in results[0]
    assert "a.txt" in results[1]
    assert "gitdir" not in results[2]
    assert "lib" in results[3]
    assert [place.root for place in places] == [above.root, f"{above.root}/lib"]
    assert {place.source_repository for place in places} == {str(machine.folder)}
    assert len(worktrees(machine)) == 1


async def test_what_a_parent_may_not_read_its_child_does_not_read_in_a_copy(machine: UserMachine):
    """Shows: T06."""
    repo = repository(machine)
    for name in ("docs/a.md", "docs/secret/b.md", "src/c.md"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(f"words of {name}\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "y")
    machine.write_agent("main", "tools: []\npaths: {read: ['docs/**'], deny: ['docs/secret/**']}\n")
    machine.write_agent("maker", f"{SANDBOX}tools: [read, write, bash]\n")
    names = ("docs/a.md", "docs/secret/b.md", "src/c.md")
    wishes = tool_call_reply(
        *(("read", {"path": name}) for name in names),
        ("write", {"path": "docs/new.md", "content": "new\n"}),
        ("bash", {"command": f"cat {' '.join(names)}"}),
    )
    async with (
        machine.serve_models([text_reply("Hi."), wishes, text_reply("Seen.")]) as server,
        machine.open() as app,
    ):
        parent = await app.run("Hi", agent="main", workspace=repo)
        child = await app.runs.wait(
            (await app.runs.spawn("Make", SpawnOptions(parent=parent.slug, agent="maker"))).id
        )
        place = Path((await app.sessions.find(child.slug)).workspace.root)
    results = [m["content"] for m in server.requests[2].messages if m["role"] == "tool"]
    assert [f"words of {name}" in said for name, said in zip(names, results, strict=False)] == [
        True,
        False,
        False,
    ]
    assert [f"words of {name}" in results[4] for name in names] == [True, False, False]
    assert (place / "docs" / "new.md").read_text() == "new\n"


async def test_a_worktree_whose_session_never_came_to_be_goes_with_the_next_start(machine: UserMachine):
    """As a crash in between leaves it. The worktree of a session stays, whoever else was killed.

    Shows: P32.
    """
    repo = repository(machine)
    async with machine.serve_models([text_reply("Looked.")]):
        run = (await machine("run", "--json", "--agent", "builder", "Look")).json
    kept = Path((await place_of(machine, run["slug"]))["root"])
    probe = SandboxProbe()
    trees = Worktrees(
        machine.home / "worktrees",
        shell_for_scope=make_shell_factory(probe, os.environ),
        find_sandbox_level=probe.level,
        is_trusted=lambda _: True,
    )
    assert await trees.create(str(repo), "orphan") is not None
    assert len(worktrees(machine)) == 2
    long_ago = time.time() - 3600
    for noted in (*(machine.home / "unclaimed").iterdir(), *(repo / ".git/worktrees").iterdir()):
        os.utime(noted, (long_ago, long_ago))
    async with machine.open():
        pass
    assert worktrees(machine) == [kept]
    assert git(repo, "branch", "--list", "retinue/*").split() == ["+", f"retinue/{kept.name}"]
    assert list((machine.home / "unclaimed").iterdir()) == []
