"""The calls of one reply run in order, also when the process is killed between two of them."""

import json
import textwrap

import pytest
from user_machine import UserMachine, wait_until

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

TOOLS = """
import asyncio
from pathlib import Path
import retinue

@retinue.tool(effect="read", asks="never")
async def hold() -> str:
    "Returns once the test allows it."
    while not Path("allowed").exists():
        await asyncio.sleep(0.01)
    return "held"

@retinue.tool(effect="once", asks="never")
async def act() -> str:
    "Acts on the world, and returns once the test allows it."
    with Path("acts").open("a") as acts:
        acts.write("acted ")
    while not Path("allowed").exists():
        await asyncio.sleep(0.01)
    return "acted"
"""


def prepare(machine: UserMachine) -> None:
    (machine.folder / "ordering.py").write_text(textwrap.dedent(TOOLS))
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(approvals="auto", tools=["ordering:hold", "ordering:act"])


def write(text: str) -> tuple[str, dict[str, str]]:
    return "write", {"path": "f.txt", "content": text}


READ = ("read", {"path": "f.txt"})
ACT: tuple[str, dict[str, str]] = ("act", {})
HOLD: tuple[str, dict[str, str]] = ("hold", {})


async def test_a_run_killed_between_two_groups_continues_with_the_next_one(machine: UserMachine):
    """What has a result does not run again, and a later call sees what an earlier one wrote.

    Shows: P10.
    """
    prepare(machine)
    calls = [write("one"), READ, ACT, HOLD, write("two"), READ]
    async with machine.serve_models([tool_call_reply(*calls), text_reply("In order.")]) as server:
        process = await machine.start("run", "Work.")
        acts = machine.folder / "acts"
        await wait_until(lambda: acts.exists() and acts.read_text())
        assert (machine.folder / "f.txt").read_text() == "one"
        await machine.kill(process)
        (machine.folder / "f.txt").write_text("changed by a person")
        resumed = await machine("runs", "resume", "--json")
        assert (resumed.code, resumed.json[0]["text"]) == (0, "In order."), resumed.err
        _, first, act, *others = machine.tool_results(server.requests[-1])
    assert "one" in first
    assert "Outcome unknown" in act
    assert len(others) == 3
    assert all("did not run" in each for each in others)
    assert (acts.read_text(), (machine.folder / "f.txt").read_text()) == ("acted ", "changed by a person")


async def test_a_run_killed_in_a_read_repeats_it_and_runs_the_calls_after_it(machine: UserMachine):
    """Shows: P10, P11."""
    prepare(machine)
    calls = [write("one"), HOLD, READ, write("two"), ACT, READ]
    async with machine.serve_models([tool_call_reply(*calls), text_reply("In order.")]) as server:
        process = await machine.start("run", "Work.")
        await wait_until(lambda: transcript(machine).count("result of=") == 2)
        await machine.kill(process)
        assert (machine.folder / "f.txt").read_text() == "one"
        (machine.folder / "allowed").touch()
        resumed = await machine("runs", "resume", "--json")
        assert (resumed.code, resumed.json[0]["text"]) == (0, "In order."), resumed.err
        _, held, first, _, acted, second = machine.tool_results(server.requests[-1])
    assert (held, acted, (machine.folder / "acts").read_text()) == ("held", "acted", "acted ")
    assert ["one" in first, "two" in second] == [True, True]


def transcript(machine: UserMachine) -> str:
    return "".join(path.read_text() for path in machine.sessions.rglob("session.md"))


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_messages_to_one_agent_arrive_in_order_after_a_kill(machine: UserMachine, mode: str):
    """Shows: C034, C044."""
    prepare(machine)
    machine.write_agent("main")
    machine.write_agent("clerk")
    numbers = range(5)

    def message(number: int) -> tuple[str, dict[str, str]]:
        return "agents_message", {"agentId": "clerk", "content": f"Number {number}.", "mode": mode}

    replies = [tool_call_reply(HOLD, *(message(number) for number in numbers))]

    async def answer(request: CapturedRequest) -> FakeResponse:
        if replies and "Send them." in json.dumps(request.messages):
            return replies.pop()
        return text_reply("Noted.")

    async with machine.serve_models(answer):
        process = await machine.start("run", "--agent", "main", "Send them.")
        await wait_until(lambda: "agents_message" in transcript(machine))
        await machine.kill(process)
        (machine.folder / "allowed").touch()
        resumed = await machine("runs", "resume", "--json")
        assert resumed.code == 0, resumed.err
    (file,) = machine.sessions.glob("clerk-*/**/session.md")
    text = file.read_text()
    positions = [text.index(f"Number {number}.") for number in numbers]
    assert positions == sorted(positions)
