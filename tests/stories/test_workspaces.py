"""Workspace options of commands: what is recorded, and what can be written there."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.replies import text_reply, tool_call_reply

WRITE_CALL = ("write", {"path": "b.txt", "content": "two\n"})
BASH_CALL = ("bash", {"command": "cat a.txt; echo three >c.txt || echo refused"})


def create_repository(folder: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (folder / "a.txt").write_text("one\n")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, check=True)


def list_names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if path.name != ".git")


async def show_workspace(machine: UserMachine, ref: str) -> Any:
    return (await machine("sessions", "show", "--json", ref)).json["workspace"]


@pytest.mark.parametrize(
    ("front", "options", "recorded", "is_worktree"),
    [
        ("", (), ("shared", True), False),
        ("", ("--read-only",), ("shared", False), False),
        ("", ("--isolation", "sandbox"), ("sandbox", False), True),
        ("", ("--isolation", "sandbox", "--writable"), ("sandbox", True), True),
        ("workspace: {isolation: sandbox, writable: true}\n", ("--read-only",), ("sandbox", False), True),
        ("workspace: {isolation: sandbox, writable: true}\n", ("--isolation", "shared"), ("shared", False), False),
        ("workspace: {writable: false}\n", ("--isolation", "sandbox"), ("sandbox", False), True),
    ],
)  # fmt: skip
async def test_the_workspace_of_a_run_follows_its_definition_and_the_command_line_options(
    machine: UserMachine, front: str, options: tuple[str, ...], recorded: tuple[str, bool], is_worktree: bool
):
    """Shows: D012, D014."""
    create_repository(machine.folder)
    machine.write_config(approvals="auto")
    machine.write_agent("maker", front)
    async with machine.serve_models([tool_call_reply(WRITE_CALL, BASH_CALL), text_reply("Done.")]):
        run = (await machine("run", "--json", "--agent", "maker", *options, "Make")).json
    workspace = await show_workspace(machine, run["slug"])
    assert (workspace["isolation"], workspace["writable"]) == recorded
    assert workspace["source"] == (str(machine.folder) if is_worktree else None)
    file_names = ["a.txt", "b.txt", "c.txt"] if recorded[1] else ["a.txt"]
    assert list_names(workspace["root"]) == file_names
    assert list_names(machine.folder) == (["a.txt"] if is_worktree else file_names)


async def test_a_folder_given_on_the_command_line_replaces_that_of_the_definition(machine: UserMachine):
    """Shows: D011, D012."""
    machine.write_config(approvals="auto")
    for name in ("own", "other"):
        (machine.folder / name).mkdir()
    machine.write_agent("maker", f"workspace: {{isolation: custom, path: {machine.folder}/own}}\n")
    other = ("--workspace", f"{machine.folder}/other", "--isolation", "custom")
    async with machine.serve_models(
        [tool_call_reply(WRITE_CALL), text_reply("Done."), tool_call_reply(WRITE_CALL), text_reply("Done.")]
    ):
        own = (await machine("run", "--json", "--agent", "maker", "Make")).json
        moved = (await machine("run", "--json", "--agent", "maker", *other, "Make")).json
    workspaces = [await show_workspace(machine, each["slug"]) for each in (own, moved)]
    assert [(each["root"], each["isolation"]) for each in workspaces] == [
        (f"{machine.folder}/own", "custom"),
        (f"{machine.folder}/other", "custom"),
    ]
    assert [list_names(machine.folder / name) for name in ("own", "other")] == [["b.txt"], ["b.txt"]]


async def test_a_child_started_by_a_command_works_in_the_given_workspace(machine: UserMachine):
    """A person may give it another folder than its parent's, but no right to write that the parent lacks.

    Shows: D012, T06.
    """
    create_repository(machine.folder)
    machine.write_config(approvals="auto")
    elsewhere = machine.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("far\n")
    machine.write_agent("maker")
    machine.write_agent("watcher", "workspace: {writable: false}\n")
    here = ["spawn", "--json", "--agent", "maker"]
    script = [
        text_reply("Hi."),
        text_reply("Hi."),
        *[tool_call_reply(WRITE_CALL, BASH_CALL), text_reply("Done.")] * 4,
    ]
    async with machine.serve_models(script) as server:
        parent = (await machine("run", "--json", "--agent", "maker", "Hi")).json["slug"]
        reader = (await machine("run", "--json", "--agent", "watcher", "Hi")).json["slug"]
        plain = (await machine(*here, "--parent", parent, "Make")).json
        worktree = (
            await machine(*here, "--parent", parent, "--isolation", "sandbox", "--writable", "Make")
        ).json
        far = (await machine(*here, "--parent", parent, "--workspace", str(elsewhere), "Make")).json
        below = (
            await machine(*here, "--parent", reader, "--isolation", "sandbox", "--writable", "Make")
        ).json
    workspaces = [await show_workspace(machine, each["session_id"]) for each in (plain, worktree, far, below)]
    assert [(each["isolation"], each["writable"]) for each in workspaces] == [
        ("shared", True),
        ("sandbox", True),
        ("custom", True),
        ("sandbox", False),
    ]
    assert [workspaces[0]["root"], workspaces[2]["root"]] == [str(machine.folder), str(elsewhere)]
    assert [list_names(workspaces[n]["root"]) for n in (1, 3)] == [["a.txt", "b.txt", "c.txt"], ["a.txt"]]
    assert list_names(machine.folder) == ["a.txt"]
    assert list_names(elsewhere) == ["a.txt"]
    results = machine.tool_results(server.requests[7])
    assert "far" in results[1]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("run", "--agent", "reader", "--writable", "Go"), 3, "its definition sets workspace writable: false"),
        (
            ("run", "--agent", "apart", "--isolation", "shared", "--writable", "Go"),
            3,
            "its definition sets workspace isolation: sandbox",
        ),
        (("run", "--isolation", "custom", "Go"), 2, "requires --workspace DIR"),
        (("run", "--session", "reader", "--read-only", "Go"), 2, "already has a workspace"),
        (
            ("spawn", "--parent", "reader", "--agent", "apart", "--workspace", ".", "--isolation", "shared", "Go"),
            2,
            "Leave out --workspace, or use --isolation custom",
        ),
        (("run", "--isolation", "none", "Go"), 2, "shared"),
    ],
)  # fmt: skip
async def test_invalid_workspace_options_are_refused_and_change_nothing(
    machine: UserMachine, options: tuple[str, ...], code: int, message: str
):
    """Shows: D012."""
    create_repository(machine.folder)
    machine.write_agent("reader", "workspace: {writable: false}\n")
    machine.write_agent("apart", "workspace: {isolation: sandbox, writable: true}\n")
    async with machine.serve_models([text_reply("Hi.")]) as server:
        await machine("run", "--agent", "reader", "Hi")
        before = machine.read_files()
        refused = await machine(*options)
    assert (refused.code, message in refused.err) == (code, True), refused.err
    assert len(server.requests) == 1
    assert machine.read_files() == before
