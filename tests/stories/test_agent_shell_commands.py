"""Shell commands of agents: sandbox level, approval, timeout, and processes that must not outlive the run."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine, wait_until

from retinue.sandbox.landlock import abi_version
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

LOWER = ["landlock", "none"] if abi_version() else ["none"]


def bash_reply(command: str, **arguments: Any) -> FakeResponse:
    return tool_call_reply(("bash", {"command": command, **arguments}))


async def test_a_command_runs_in_the_workspace_and_its_result_names_the_sandbox_level(machine: UserMachine):
    """Shows: S17."""
    machine.write_config(approvals="auto")
    async with machine.serve_models(
        [bash_reply("echo words > made; cat made; exit 3"), text_reply("Done.")]
    ) as server:
        ran = await machine("run", "Make it", "--json")
        shown = await machine("runs", "show", ran.json["run_id"], "--json")
    assert (ran.code, ran.json["sandbox"], shown.json["sandbox"]) == (0, "strict", "strict")
    assert (machine.folder / "made").read_text() == "words\n"
    result = machine.request_texts(server.requests[1])[-1]
    assert result.startswith("words\n[exit 3, sandbox strict, ")
    assert result in Path(ran.json["path"]).read_text()


async def test_a_run_without_commands_reports_no_sandbox_level(machine: UserMachine):
    async with machine.serve_models([tool_call_reply(("ls", {})), text_reply("Nothing.")]):
        ran = await machine("run", "Look", "--json")
    assert ran.json["sandbox"] is None


@pytest.mark.parametrize("level", LOWER)
async def test_below_the_strict_level_every_command_requires_approval(machine: UserMachine, level: str):
    """Neither policy `auto` nor a granted command replaces the approval.

    Shows: S16, S17.
    """
    machine.write_config(approvals="auto")
    machine.write_agent("tester", "model: openai:x\nshell_commands: {allow: ['*']}\n")
    async with machine.serve_models([bash_reply("echo x > made; cat made"), text_reply("Done.")]) as server:
        ran = await machine("run", "Make it", "--agent", "tester", "--json", RETINUE_SANDBOX=level)
        assert (ran.code, ran.json["waiting_for"], (machine.folder / "made").exists()) == (
            6,
            "approval",
            False,
        )
        [approval] = ran.json["approvals"]
        card = await machine("approvals", "show", approval, "--json", RETINUE_SANDBOX=level)
        assert (card.json["sandbox"], card.json["resource"]) == (level, "echo x > made; cat made")
        answered = await machine("approvals", "answer", approval, "allow", RETINUE_SANDBOX=level)
        assert answered.code == 0, answered.err
        ended = await machine("wait", ran.json["run_id"], "--json", RETINUE_SANDBOX=level)
        assert ended.code == 0, ended.err
        shown = await machine("runs", "show", ran.json["run_id"], "--json")
    assert (machine.folder / "made").read_text() == "x\n"
    assert shown.json["sandbox"] == level
    assert f", sandbox {level}, " in machine.request_texts(server.requests[-1])[-1]


async def test_no_command_runs_below_the_configured_minimum_sandbox_level(machine: UserMachine):
    """Shows: S16, S17."""
    machine.write_config(approvals="auto", sandbox={"minimum": "strict"})
    async with machine.serve_models([bash_reply("touch made"), text_reply("I cannot.")]) as server:
        ran = await machine("run", "Make it", "--json", RETINUE_SANDBOX="none")
        doctor = await machine("doctor", "--json", RETINUE_SANDBOX="none")
    assert not (machine.folder / "made").exists()
    assert (ran.code, ran.json["sandbox"], ran.json["approvals"]) == (0, None, [])
    assert (
        "sandbox level none is below sandbox.minimum (strict)"
        in machine.request_texts(server.requests[1])[-1]
    )
    assert "bash" not in machine.tool_names(server.requests[0])
    findings = [each["message"] for each in doctor.json if each["level"] == "bad"]
    assert "sandbox: none, but sandbox.minimum is strict: no command can run" in findings


async def test_doctor_reports_the_sandbox_level_and_why_it_is_not_higher(machine: UserMachine):
    """Shows: S16, S17."""
    strict = await machine("doctor", "--json")
    lowered = await machine("doctor", "--json", RETINUE_SANDBOX="none")
    assert "sandbox: strict" in {each["message"] for each in strict.json}
    advice = {each["message"]: each["advice"] for each in lowered.json}
    assert "sandbox: none; every command requires approval" in advice
    assert (
        advice["sandbox level strict is not available: RETINUE_SANDBOX=none limits the level"]
        == "unset RETINUE_SANDBOX"
    )


async def test_an_unknown_sandbox_level_is_refused_at_the_start(machine: UserMachine):
    ran = await machine("doctor", RETINUE_SANDBOX="loose")
    assert (ran.code, ran.out) == (2, "")
    assert "RETINUE_SANDBOX is 'loose'; it must be one of strict, landlock, none" in ran.err


async def test_a_command_that_times_out_is_reported_and_the_run_continues(machine: UserMachine):
    """Shows: K10."""
    machine.write_config(approvals="auto")
    async with machine.serve_models(
        [bash_reply("echo begun; sleep 1000", timeout=1), text_reply("Too long.")]
    ) as server:
        ran = await machine("run", "Wait", "--json")
    assert (ran.code, ran.json["text"]) == (0, "Too long.")
    result = machine.request_texts(server.requests[1])[-1]
    assert result.startswith(
        "begun\n[timed out after 1 s and was killed with all its processes, sandbox strict"
    )


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": 3601}, {"cwd": "/"}, {"env": {"A": "b"}}])
async def test_a_command_cannot_set_its_folder_environment_or_an_unlimited_timeout(
    machine: UserMachine, bad: dict[str, Any]
):
    """Shows: S15, S24."""
    machine.write_config(approvals="auto")
    async with machine.serve_models([bash_reply("touch made", **bad), text_reply("Well.")]) as server:
        await machine("run", "Try", "--json")
    assert "Invalid arguments for bash" in machine.request_texts(server.requests[1])[-1]
    assert not (machine.folder / "made").exists()


async def test_only_commands_that_are_not_granted_wait_for_approval(machine: UserMachine):
    """Shows: A092, S20, S23."""
    machine.write_agent("tester", "model: openai:x\nshell_commands: {allow: [echo], deny: [sudo]}\n")
    commands = ["echo one", "echo sudo ls", "echo one; touch made"]
    async with machine.serve_models([*map(bash_reply, commands), text_reply("Done.")]) as server:
        ran = await machine("run", "Try", "--agent", "tester", "--json")
    assert (ran.code, ran.json["waiting_for"]) == (6, "approval")
    first, second = (machine.request_texts(request)[-1] for request in server.requests[1:3])
    assert first.startswith("one\n[exit 0")
    assert json.loads(second)["error"] == "command_not_allowed"
    assert not (machine.folder / "made").exists()


async def test_a_command_cannot_find_the_api_key_of_the_model(machine: UserMachine):
    """Shows: X10."""
    machine.write_config(approvals="auto")
    command = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline | tr '\\0' ' '"
    async with machine.serve_models([bash_reply(command), text_reply("Done.")]) as server:
        await machine("run", "Look", "--json")
    result = machine.request_texts(server.requests[1])[-1]
    assert "exit 0, sandbox strict" in result
    assert "API_KEY" not in result
    assert "redacted" not in result.lower()


def live_processes(mark: str) -> list[str]:
    """Return the ids of all processes on this machine whose command line contains the mark."""
    process_ids: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = process.read_bytes()
        except OSError:
            continue
        process_ids += [process.parent.name] if mark.encode() in command_line else []
    return process_ids


@pytest.mark.parametrize("end", ["cancelled", "killed"])
async def test_a_command_does_not_outlive_its_run(machine: UserMachine, end: str):
    """The run is cancelled by another process, or its process is killed.

    Shows: K02, K03.
    """
    machine.write_config(approvals="auto")
    mark = f"1000.{random.randrange(10**9)}"
    command = f"setsid nohup sleep {mark} >/dev/null 2>&1 & touch ready; sleep {mark}"
    async with machine.serve_models([bash_reply(command), text_reply("Done.")]):
        process = await machine.start("run", "Wait", "--json")
        await wait_until(lambda: (machine.folder / "ready").exists() and len(live_processes(mark)) > 1)
        if end == "killed":
            await machine.kill(process)
        else:
            listed = await machine("runs", "list", "--json")
            stopped = await machine("runs", "cancel", listed.json[0]["run_id"], "--json")
            assert stopped.json["status"] == "cancelled"
            out, _ = await process.communicate()
            assert (process.returncode, json.loads(out)["status"]) == (5, "cancelled")
        await wait_until(lambda: not live_processes(mark))
