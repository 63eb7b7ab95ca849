"""Where a session works, said on the command line: what is recorded, and what can be written there."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.replies import text_reply, tool_call_reply

WRITE = ("write", {"path": "b.txt", "content": "two\n"})
BASH = ("bash", {"command": "cat a.txt; echo three >c.txt || echo refused"})


def repository(folder: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (folder / "a.txt").write_text("one\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, check=True)


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if path.name != ".git")


async def place_of(machine: UserMachine, ref: str) -> Any:
    return (await machine("sessions", "show", "--json", ref)).json["workspace"]


@pytest.mark.parametrize(
    ("own", "said", "recorded", "apart"),
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
async def test_where_a_run_works_is_its_definition_and_what_the_person_says(
    machine: UserMachine, own: str, said: tuple[str, ...], recorded: tuple[str, bool], apart: bool
):
    """Shows: D012, D014."""
    repository(machine.folder)
    machine.write_config(approvals="auto")
    machine.write_agent("maker", own)
    async with machine.serve_models([tool_call_reply(WRITE, BASH), text_reply("Done.")]):
        run = (await machine("run", "--json", "--agent", "maker", *said, "Make")).json
    where = await place_of(machine, run["slug"])
    assert (where["isolation"], where["writable"]) == recorded
    assert where["source"] == (str(machine.folder) if apart else None)
    made = ["a.txt", "b.txt", "c.txt"] if recorded[1] else ["a.txt"]
    assert names(where["root"]) == made
    assert names(machine.folder) == (["a.txt"] if apart else made)


async def test_a_folder_said_on_the_command_line_stands_instead_of_the_definitions(machine: UserMachine):
    """Shows: D011, D012."""
    machine.write_config(approvals="auto")
    for name in ("own", "other"):
        (machine.folder / name).mkdir()
    machine.write_agent("maker", f"workspace: {{isolation: custom, path: {machine.folder}/own}}\n")
    other = ("--workspace", f"{machine.folder}/other", "--isolation", "custom")
    async with machine.serve_models(
        [tool_call_reply(WRITE), text_reply("Done."), tool_call_reply(WRITE), text_reply("Done.")]
    ):
        own = (await machine("run", "--json", "--agent", "maker", "Make")).json
        said = (await machine("run", "--json", "--agent", "maker", *other, "Make")).json
    places = [await place_of(machine, each["slug"]) for each in (own, said)]
    assert [(each["root"], each["isolation"]) for each in places] == [
        (f"{machine.folder}/own", "custom"),
        (f"{machine.folder}/other", "custom"),
    ]
    assert [names(machine.folder / name) for name in ("own", "other")] == [["b.txt"], ["b.txt"]]


async def test_a_child_that_a_person_starts_works_where_the_person_says(machine: UserMachine):
    """The folder is not its parent's: the person gives it. What the parent may not write the child may not either.

    Shows: D012, T06.
    """
    repository(machine.folder)
    machine.write_config(approvals="auto")
    elsewhere = machine.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("far\n")
    machine.write_agent("maker")
    machine.write_agent("watcher", "workspace: {writable: false}\n")
    here = ["spawn", "--json", "--agent", "maker"]
    script = [text_reply("Hi."), text_reply("Hi."), *[tool_call_reply(WRITE, BASH), text_reply("Done.")] * 4]
    async with machine.serve_models(script) as server:
        parent = (await machine("run", "--json", "--agent", "maker", "Hi")).json["slug"]
        reader = (await machine("run", "--json", "--agent", "watcher", "Hi")).json["slug"]
        plain = (await machine(*here, "--parent", parent, "Make")).json
        apart = (
            await machine(*here, "--parent", parent, "--isolation", "sandbox", "--writable", "Make")
        ).json
        far = (await machine(*here, "--parent", parent, "--workspace", str(elsewhere), "Make")).json
        below = (
            await machine(*here, "--parent", reader, "--isolation", "sandbox", "--writable", "Make")
        ).json
    places = [await place_of(machine, each["session_id"]) for each in (plain, apart, far, below)]
    assert [(each["isolation"], each["writable"]) for each in places] == [
        ("shared", True),
        ("sandbox", True),
        ("custom", True),
        ("sandbox", False),
    ]
    assert [places[0]["root"], places[2]["root"]] == [str(machine.folder), str(elsewhere)]
    assert [names(places[n]["root"]) for n in (1, 3)] == [["a.txt", "b.txt", "c.txt"], ["a.txt"]]
    assert names(machine.folder) == ["a.txt"]
    assert names(elsewhere) == ["a.txt"]
    heard = [message["content"] for message in server.requests[7].messages if message["role"] == "tool"]
    assert "far" in heard[1]


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (("run", "--agent", "reader", "--writable", "Go"), 3, "its definition says workspace writable: false"),
        (
            ("run", "--agent", "apart", "--isolation", "shared", "--writable", "Go"),
            3,
            "its definition says workspace isolation: sandbox",
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
async def test_what_cannot_be_said_of_a_workspace_is_refused_and_leaves_nothing(
    machine: UserMachine, said: tuple[str, ...], code: int, words: str
):
    """Shows: D012."""
    repository(machine.folder)
    machine.write_agent("reader", "workspace: {writable: false}\n")
    machine.write_agent("apart", "workspace: {isolation: sandbox, writable: true}\n")
    async with machine.serve_models([text_reply("Hi.")]) as server:
        await machine("run", "--agent", "reader", "Hi")
        before = machine.read_files()
        refused = await machine(*said)
    assert (refused.code, words in refused.err) == (code, True), refused.err
    assert len(server.requests) == 1
    assert machine.read_files() == before
