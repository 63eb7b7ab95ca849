"""Agents started inside a conversation by slash command or over HTTP: their rights, and reviews of the workspace."""

import json
import os
import subprocess
from pathlib import Path

import aiohttp
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

WRITE_CALL = ("write", {"path": "made.txt", "content": "made\n"})
HELPER = "triggers: {slash: [/helper]}\n"


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


def create_changed_repository(folder: Path) -> None:
    """Create a repository with one commit and one change that is not committed."""
    (folder / "a.py").write_text("WIDTH = 40\n")
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "Begin")
    (folder / "a.py").write_text("WIDTH = 50\n")


def write_file_then_reply(request: CapturedRequest) -> FakeResponse:
    """General says hello; every other agent tries to write a file."""
    if "You help." not in request.messages[0]["content"]:
        return text_reply("Hello.")
    return text_reply("I am done with it.") if request.reply_count else tool_call_reply(WRITE_CALL)


def last_tool_result(requests: list[CapturedRequest]) -> str:
    return next(str(each["content"]) for each in reversed(requests[-1].messages) if each["role"] == "tool")


async def test_an_agent_started_by_a_slash_command_works_in_the_workspace_of_its_conversation(
    machine: UserMachine,
):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", HELPER)
    async with machine.serve_models(write_file_then_reply):
        chat = await machine("chat", stdin=b"Hello\n/helper Make the file.\n")
    assert chat.code == 0, chat.err
    assert (machine.folder / "made.txt").read_text() == "made\n"


async def test_a_read_only_definition_stays_read_only_when_started_by_a_slash_command(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", f"{HELPER}workspace: {{writable: false}}\n")
    async with machine.serve_models(write_file_then_reply) as server:
        await machine("chat", stdin=b"Hello\n/helper Make the file.\n")
        assert json.loads(last_tool_result(server.requests))["error"] == "read_only"
    assert not (machine.folder / "made.txt").exists()


async def test_a_read_only_conversation_has_only_read_only_children(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", HELPER)
    async with machine.serve_models(write_file_then_reply) as server:
        session = (await machine("run", "--json", "--read-only", "Hello")).json["slug"]
        await machine("chat", session, stdin=b"/helper Make the file.\n")
        assert json.loads(last_tool_result(server.requests))["error"] == "read_only"
    assert not (machine.folder / "made.txt").exists()


async def test_a_child_started_over_http_works_in_the_workspace_of_its_conversation(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", HELPER)
    async with machine.serve_models(write_file_then_reply), machine.daemon():
        session = (await machine("run", "--json", "Hello")).json["session_id"]
        connector = aiohttp.UnixConnector(str(machine.home / "daemon.sock"))
        async with aiohttp.ClientSession(connector=connector) as client:
            url = f"http://localhost/api/sessions/{session}/children"
            body = {"agent": "helper", "content": "Make the file.", "trigger": "slash"}
            async with client.post(url, json=body) as response:
                assert response.status == 201
                run = (await response.json())["run_id"]
        await machine.wait_for_end(run)
    assert (machine.folder / "made.txt").read_text() == "made\n"


async def test_review_without_text_sends_the_diff_and_runs_no_program_of_the_repository(machine: UserMachine):
    """Shows: D037, D038."""
    create_changed_repository(machine.folder)
    marker = machine.folder.parent / "executed"
    program = machine.folder.parent / "program.sh"
    program.write_text(f"#!/bin/sh\necho $0 >> {marker}\ncat\n")
    os.chmod(program, 0o755)  # noqa: PTH101  (one call)
    for name in ("diff.external", "core.fsmonitor", "diff.own.textconv", "core.pager"):
        git(machine.folder, "config", name, str(program))
    (machine.folder / ".gitattributes").write_text("*.py diff=own\n")
    async with machine.serve_models([text_reply("Hello."), text_reply("The width is right.")]) as server:
        chat = await machine("chat", stdin=b"Hello\n/review\n")
    assert (chat.code, chat.out) == (0, "Hello.\nThe width is right.\n")
    task = str(server.requests[-1].messages[-1]["content"])
    assert "-WIDTH = 40\n+WIDTH = 50" in task
    assert not marker.exists()
    (row,) = (await machine("inbox", "--json")).json
    assert (row["agentId"], row["summary"]) == ("reviewer", "The width is right.")


async def test_review_with_text_adds_the_text_to_the_diff(machine: UserMachine):
    create_changed_repository(machine.folder)
    async with machine.serve_models([text_reply("The width is right.")]) as server:
        chat = await machine("chat", stdin=b"/review Is the width right?\n")
    assert chat.code == 0, chat.err
    task = str(server.requests[-1].messages[-1]["content"])
    assert "Is the width right?" in task
    assert "+WIDTH = 50" in task


async def test_review_without_text_outside_a_repository_says_so_and_asks_no_model(machine: UserMachine):
    async with machine.serve_models([text_reply("Hello."), text_reply("never")]) as server:
        chat = await machine("chat", stdin=b"Hello\n/review\n")
        assert "is not in a git repository" in chat.err
        assert len(server.requests) == 1
