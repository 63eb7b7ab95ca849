"""Permissions that a person removes while a daemon executes a run: the next call is refused."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

LS = tool_call_reply(("ls", "{}"))
BEFORE, AFTER = "tools: [ls, glob]", "tools: [glob]"
MARKDOWN = "---\nname: helper\n{tools}\n---\n\nYou help.\n"

Edit = Callable[[UserMachine], None]


def inline_agents(*tools: str) -> list[dict[str, Any]]:
    return [{"name": "helper", "prompt": "You help.", "tools": [*tools]}]


def write_json_config(machine: UserMachine, *tools: str) -> None:
    machine.write_config(agents=inline_agents(*tools))


def write_toml_config(machine: UserMachine, *tools: str) -> None:
    text = f'[[agents]]\nname = "helper"\nprompt = "You help."\ntools = {json.dumps(tools)}\n'
    (machine.agents.parent / "config.toml").write_text(text)


def write_json_file(machine: UserMachine, *tools: str) -> None:
    machine.agents.mkdir(exist_ok=True)
    (machine.agents / "helper.json").write_text(json.dumps(inline_agents(*tools)[0]))


def write_markdown_file(machine: UserMachine, *tools: str) -> None:
    machine.agents.mkdir(exist_ok=True)
    (machine.agents / "helper.md").write_text(MARKDOWN.format(tools=f"tools: [{', '.join(tools)}]"))


def write_helper(machine: UserMachine, front: str) -> None:
    machine.write_agent("helper", f"tools: [write]\n{front}")


def deny_by_config(machine: UserMachine) -> None:
    machine.write_config(deny={"tools": ["ls"]})


def lower_ceiling(machine: UserMachine) -> None:
    machine.write_config(ceiling={"tools": ["glob"]})


def edit_presets(machine: UserMachine) -> None:
    """Remove the tool from the preset of every session."""
    for path in machine.sessions.rglob("preset.md"):
        path.write_text(path.read_text().replace(BEFORE, AFTER))


def remove_definition(machine: UserMachine) -> None:
    (machine.agents / "helper.md").unlink()


def keep_old_times(machine: UserMachine) -> None:
    """Replace the file by one of the same size with the same modification time, in place."""
    path = machine.agents / "helper.md"
    stats = path.stat()
    path.write_text(MARKDOWN.format(tools="tools: [no, glob]"))
    os.utime(path, ns=(stats.st_atime_ns, stats.st_mtime_ns))
    assert path.stat().st_size == stats.st_size


CASES: dict[str, tuple[Edit, Edit]] = {
    "an agent in config.json": (
        lambda machine: write_json_config(machine, "ls", "glob"),
        lambda machine: write_json_config(machine, "glob"),
    ),
    "an agent in config.toml": (
        lambda machine: write_toml_config(machine, "ls", "glob"),
        lambda machine: write_toml_config(machine, "glob"),
    ),
    "a Markdown file": (
        lambda machine: write_markdown_file(machine, "ls", "glob"),
        lambda machine: write_markdown_file(machine, "glob"),
    ),
    "a JSON file": (
        lambda machine: write_json_file(machine, "ls", "glob"),
        lambda machine: write_json_file(machine, "glob"),
    ),
    "a file with an old modification time": (
        lambda machine: write_markdown_file(machine, "ls", "glob"),
        keep_old_times,
    ),
    "the session's preset": (lambda machine: write_markdown_file(machine, "ls", "glob"), edit_presets),
    "the deny rules of the operator": (
        lambda machine: write_markdown_file(machine, "ls", "glob"),
        deny_by_config,
    ),
    "the ceiling of the operator": (
        lambda machine: write_markdown_file(machine, "ls", "glob"),
        lower_ceiling,
    ),
}


def script_with_edit(edit: Callable[[], None]) -> Callable[[CapturedRequest], FakeResponse]:
    """Call `ls`, edit, call `ls` again, and finish; after that the agent answers at once."""

    def script(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 1:
            edit()
        return LS if request.reply_count < 2 else text_reply("Done.")

    return script


@pytest.mark.parametrize("case", CASES)
async def test_a_tool_that_a_person_takes_away_is_refused_at_the_next_call_of_a_running_daemon(
    machine: UserMachine, case: str
):
    define, edit = CASES[case]
    define(machine)
    (machine.folder / "a.txt").write_text("x")
    async with machine.serve_models(script_with_edit(lambda: edit(machine))) as server, machine.daemon():
        run = (await machine("run", "--json", "--agent", "helper", "Look")).json
        first, second = machine.tool_results(server.requests[2])
        assert "a.txt" in first
        assert json.loads(second)["error"] == "tool_not_allowed", second
        assert run["status"] == "done"
        run_requests = server.requests[:3]
        assert [machine.tool_names(each) for each in run_requests] == [["glob", "ls"]] * 3
        assert len({machine.system_prompt(each) for each in run_requests}) == 1
        await machine("send", "--json", run["session_id"], "Look again")
        assert machine.tool_names(server.requests[3]) == ["glob"]


@pytest.mark.parametrize("has_daemon", [True, False])
@pytest.mark.parametrize(
    ("policy", "front", "refusal"),
    [
        ("deny", "", "approval_denied"),
        ("auto", "workspace:\n  writable: false\n", "read_only"),
        ("auto", "paths:\n  write: []\n", "out_of_scope"),
    ],
)
async def test_a_write_permission_that_a_person_takes_away_is_refused_at_the_next_call(
    machine: UserMachine, policy: str, front: str, refusal: str, has_daemon: bool
):
    machine.write_config(approvals="auto")
    write_helper(machine, "")

    def script(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 1:
            machine.write_config(approvals=policy)
            write_helper(machine, front)
        if request.reply_count == 2:
            return text_reply("Done.")
        return tool_call_reply(("write", {"path": f"{request.reply_count}.txt", "content": "x"}))

    async with (
        machine.serve_models(script) as server,
        machine.daemon() if has_daemon else nullcontext(),
    ):
        await machine("run", "--json", "--agent", "helper", "Write")
    _, second = machine.tool_results(server.requests[2])
    assert json.loads(second)["error"] == refusal, second
    assert [path.name for path in machine.folder.glob("*.txt")] == ["0.txt"]


async def test_a_tool_taken_from_the_preset_of_a_child_is_refused_at_its_next_call(machine: UserMachine):
    write_markdown_file(machine, "ls", "glob")
    machine.write_agent("parent", "tools: [PersistentAgent]\n", "You lead.")
    machine.write_config(approvals="auto")
    (machine.folder / "a.txt").write_text("x")
    async with (
        machine.serve_models(script_with_edit(lambda: edit_presets(machine))) as server,
        machine.daemon(),
    ):
        async with machine.open() as app:
            parent = await app.sessions.create("parent", workspace=str(machine.folder))
        run = (await machine("spawn", "--json", "--parent", parent.id, "--agent", "helper", "Look")).json
    first, second = machine.tool_results(server.requests[2])
    assert (run["status"], "a.txt" in first) == ("done", True)
    assert json.loads(second)["error"] == "tool_not_allowed", second


async def test_agents_of_a_project_that_changed_are_refused_every_call_until_it_is_trusted_again(
    machine: UserMachine,
):
    folder = machine.folder / ".retinue" / "agents"
    folder.mkdir(parents=True)
    (folder / "helper.md").write_text(MARKDOWN.format(tools=BEFORE))
    assert (await machine("trust", "--yes", ".")).code == 0

    def edit() -> None:
        (folder / "helper.md").write_text(MARKDOWN.format(tools=AFTER))

    async with machine.serve_models(script_with_edit(edit)) as server, machine.daemon():
        await machine("run", "--json", "--agent", "helper", "Look")
    first, second = machine.tool_results(server.requests[2])
    assert ".retinue" in first
    assert json.loads(second)["error"] == "no_definition"
    assert "has changed since you trusted it" in json.loads(second)["message"]


async def test_an_agent_whose_definition_was_removed_is_refused_every_call(machine: UserMachine):
    write_markdown_file(machine, "ls", "glob")
    async with (
        machine.serve_models(script_with_edit(lambda: remove_definition(machine))) as server,
        machine.daemon(),
    ):
        await machine("run", "--json", "--agent", "helper", "Look")
    _, second = machine.tool_results(server.requests[2])
    assert json.loads(second)["error"] == "no_definition"
    assert "Agent 'helper' not found" in json.loads(second)["message"]


async def test_an_agent_added_to_the_configuration_is_available_to_a_running_daemon(machine: UserMachine):
    machine.write_config()
    async with machine.serve_models([text_reply("Done.")]), machine.daemon():
        write_json_config(machine, "ls")
        run = await machine("run", "--json", "--agent", "helper", "--background", "Look")
        assert run.code == 0, run.err
        assert (await machine.wait_for_end(run.json["run_id"]))["status"] == "done"


async def test_a_tool_added_during_a_run_is_offered_in_the_next_run_and_a_forced_call_runs(
    machine: UserMachine,
):
    write_markdown_file(machine, "glob")
    (machine.folder / "a.txt").write_text("x")

    def script(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 1:
            write_markdown_file(machine, "ls", "glob")
        return LS if request.reply_count < 2 else text_reply("Done.")

    async with machine.serve_models(script) as server, machine.daemon():
        run = (await machine("run", "--json", "--agent", "helper", "Look")).json
        first, second = machine.tool_results(server.requests[2])
        assert json.loads(first)["error"] == "tool_not_allowed"
        assert "a.txt" in second
        assert [machine.tool_names(each) for each in server.requests] == [["glob"]] * 3
        await machine("send", "--json", run["session_id"], "Look again")
        assert machine.tool_names(server.requests[3]) == ["glob", "ls"]


async def test_a_run_that_waited_for_a_person_continues_with_the_prompt_and_tools_of_its_start(
    machine: UserMachine,
):
    write = tool_call_reply(("write", {"path": "a.txt", "content": "x"}))
    machine.write_agent("helper", "tools: [write, ls]\n", "You help.")

    def script(request: CapturedRequest) -> FakeResponse:
        return [write, LS, text_reply("Done.")][request.reply_count]

    async with machine.serve_models(script) as server, machine.daemon():
        run = await machine("run", "--json", "--agent", "helper", "Write")
        assert run.json["waiting_for"] == "approval"
        machine.write_agent("helper", "tools: [write]\n", "You are changed.")
        for expected_code in (6, 0):
            # The approval covered the permissions of that moment, so the person is asked again.
            (approval,) = (await machine("approvals", "list", "--json")).json
            answered = await machine("approvals", "answer", approval["id"], "allow")
            assert answered.code == expected_code, answered
    written, listed = machine.tool_results(server.requests[2])
    assert "a.txt" in written
    assert json.loads(listed)["error"] == "tool_not_allowed"
    assert [machine.tool_names(each) for each in server.requests] == [["ls", "write"]] * 3
    assert len({machine.system_prompt(each) for each in server.requests}) == 1
