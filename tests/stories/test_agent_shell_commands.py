"""Commands that a model asks for, from its wish to the transcript: the level is shown, and never falls in silence."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.sandbox.landlock import abi_version
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

LOWER = ["landlock", "none"] if abi_version() else ["none"]


def wish(command: str, **more: Any) -> FakeResponse:
    return tool_call_reply(("bash", {"command": command, **more}))


async def test_a_command_runs_in_the_workspace_and_its_answer_says_how_it_was_held(machine: UserMachine):
    """Shows: S17."""
    machine.write_config(approvals="auto")
    async with machine.serve_models(
        [wish("echo words > made; cat made; exit 3"), text_reply("Done.")]
    ) as server:
        ran = await machine("run", "Make it", "--json")
        shown = await machine("runs", "show", ran.json["run_id"], "--json")
    assert (ran.code, ran.json["sandbox"], shown.json["sandbox"]) == (0, "strict", "strict")
    assert (machine.folder / "made").read_text() == "words\n"
    told = machine.request_texts(server.requests[1])[-1]
    assert told.startswith("words\n[exit 3, sandbox strict, ")
    assert told in Path(ran.json["path"]).read_text()


async def test_a_run_without_commands_names_no_level(machine: UserMachine):
    async with machine.serve_models([tool_call_reply(("ls", {})), text_reply("Nothing.")]):
        ran = await machine("run", "Look", "--json")
    assert ran.json["sandbox"] is None


@pytest.mark.parametrize("level", LOWER)
async def test_below_strict_every_command_asks_whatever_the_configuration_allows(
    machine: UserMachine, level: str
):
    """Policy auto and a granted command do not help: somebody must say yes.

    Shows: S16, S17.
    """
    machine.write_config(approvals="auto")
    machine.write_agent("tester", "model: openai:x\nshell_commands: {allow: ['*']}\n")
    async with machine.serve_models([wish("echo x > made; cat made"), text_reply("Done.")]) as server:
        ran = await machine("run", "Make it", "--agent", "tester", "--json", RETINUE_SANDBOX=level)
        assert (ran.code, ran.json["waiting_for"], (machine.folder / "made").exists()) == (
            6,
            "approval",
            False,
        )
        [asked] = ran.json["approvals"]
        card = await machine("approvals", "show", asked, "--json", RETINUE_SANDBOX=level)
        assert (card.json["sandbox"], card.json["resource"]) == (level, "echo x > made; cat made")
        answered = await machine("approvals", "answer", asked, "allow", RETINUE_SANDBOX=level)
        assert answered.code == 0, answered.err
        ended = await machine("wait", ran.json["run_id"], "--json", RETINUE_SANDBOX=level)
        assert ended.code == 0, ended.err
        shown = await machine("runs", "show", ran.json["run_id"], "--json")
    assert (machine.folder / "made").read_text() == "x\n"
    assert shown.json["sandbox"] == level
    assert f", sandbox {level}, " in machine.request_texts(server.requests[-1])[-1]


async def test_a_level_below_the_configured_minimum_runs_nothing(machine: UserMachine):
    """Shows: S16, S17."""
    machine.write_config(approvals="auto", sandbox={"minimum": "strict"})
    async with machine.serve_models([wish("touch made"), text_reply("I cannot.")]) as server:
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


async def test_doctor_says_how_tightly_commands_are_held_and_why_not_more(machine: UserMachine):
    """Shows: S16, S17."""
    here = await machine("doctor", "--json")
    low = await machine("doctor", "--json", RETINUE_SANDBOX="none")
    assert "sandbox: strict" in {each["message"] for each in here.json}
    found = {each["message"]: each["advice"] for each in low.json}
    assert "sandbox: none; every command requires approval" in found
    assert (
        found["sandbox level strict is not available: RETINUE_SANDBOX=none asks for less"]
        == "unset RETINUE_SANDBOX"
    )


async def test_a_level_that_does_not_exist_is_told_at_the_start(machine: UserMachine):
    ran = await machine("doctor", RETINUE_SANDBOX="loose")
    assert (ran.code, ran.out) == (2, "")
    assert "RETINUE_SANDBOX is 'loose'; it must be one of strict, landlock, none" in ran.err


async def test_a_command_that_takes_too_long_says_so_and_the_run_goes_on(machine: UserMachine):
    """Shows: K10."""
    machine.write_config(approvals="auto")
    async with machine.serve_models(
        [wish("echo begun; sleep 1000", timeout=1), text_reply("Too long.")]
    ) as server:
        ran = await machine("run", "Wait", "--json")
    assert (ran.code, ran.json["text"]) == (0, "Too long.")
    told = machine.request_texts(server.requests[1])[-1]
    assert told.startswith(
        "begun\n[ended after 1 s, with everything it had started: it took too long, sandbox strict"
    )


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": 3601}, {"cwd": "/"}, {"env": {"A": "b"}}])
async def test_a_command_cannot_choose_its_folder_its_environment_or_to_run_for_ever(
    machine: UserMachine, bad: dict[str, Any]
):
    """Shows: S15, S24."""
    machine.write_config(approvals="auto")
    async with machine.serve_models([wish("touch made", **bad), text_reply("Well.")]) as server:
        await machine("run", "Try", "--json")
    assert "Invalid arguments for bash" in machine.request_texts(server.requests[1])[-1]
    assert not (machine.folder / "made").exists()


async def test_granted_commands_need_nobody_and_others_wait_for_somebody(machine: UserMachine):
    """Shows: A092, S20, S23."""
    machine.write_agent("tester", "model: openai:x\nshell_commands: {allow: [echo], deny: [sudo]}\n")
    forms = ["echo one", "echo sudo ls", "echo one; touch made"]
    async with machine.serve_models([*map(wish, forms), text_reply("Done.")]) as server:
        ran = await machine("run", "Try", "--agent", "tester", "--json")
    assert (ran.code, ran.json["waiting_for"]) == (6, "approval")
    first, second = (machine.request_texts(request)[-1] for request in server.requests[1:3])
    assert first.startswith("one\n[exit 0")
    assert json.loads(second)["error"] == "command_not_allowed"
    assert not (machine.folder / "made").exists()


async def test_the_key_of_the_model_is_nowhere_a_command_can_look(machine: UserMachine):
    """Shows: X10."""
    machine.write_config(approvals="auto")
    look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline | tr '\\0' ' '"
    async with machine.serve_models([wish(look), text_reply("Done.")]) as server:
        await machine("run", "Look", "--json")
    told = machine.request_texts(server.requests[1])[-1]
    assert "exit 0, sandbox strict" in told
    assert "API_KEY" not in told
    assert "redacted" not in told.lower()


def alive(mark: str) -> list[str]:
    """Every process of the machine that was started with this word."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        found += [process.parent.name] if mark.encode() in words else []
    return found


async def until(question: Callable[[], object]) -> None:
    async with asyncio.timeout(45):
        while not question():  # noqa: ASYNC110  (other processes: nothing to wait on)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["cancelled", "killed"])
async def test_a_command_does_not_outlive_its_run(machine: UserMachine, end: str):
    """Stopped from another process, or its own killed outright.

    Shows: K02, K03.
    """
    machine.write_config(approvals="auto")
    mark = f"1000.{random.randrange(10**9)}"
    command = f"setsid nohup sleep {mark} >/dev/null 2>&1 & touch ready; sleep {mark}"
    async with machine.serve_models([wish(command), text_reply("Done.")]):
        process = await machine.start("run", "Wait", "--json")
        await until(lambda: (machine.folder / "ready").exists() and len(alive(mark)) > 1)
        if end == "killed":
            await machine.kill(process)
        else:
            listed = await machine("runs", "list", "--json")
            stopped = await machine("runs", "cancel", listed.json[0]["run_id"], "--json")
            assert stopped.json["status"] == "cancelled"
            out, _ = await process.communicate()
            assert (process.returncode, json.loads(out)["status"]) == (5, "cancelled")
        await until(lambda: not alive(mark))
