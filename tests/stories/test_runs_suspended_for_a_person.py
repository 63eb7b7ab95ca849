"""Runs that wait until a person resumes or cancels them, because their process died again and again."""

import asyncio
import json
import signal
import textwrap
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

KILLING_TOOL = """
import asyncio, os, signal
from pathlib import Path
import retinue

@retinue.tool(effect="once", asks="never", is_delegation=True)
async def hang() -> str:
    "Never returns: a crash counts for the run that was executing a side effect."
    Path("hanging").touch()
    await asyncio.Event().wait()

@retinue.tool(effect="idempotent", asks="never", is_delegation=True)
async def die() -> str:
    "Kills the process once the test allows it."
    while not (Path("hanging").exists() and Path("allowed").exists()):
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
"""


class TreeWithKillingParent:
    """A parent that delegates and kills its process in one reply; its child answers when it may.

    The tools that kill it count as delegation, so that they run concurrently with the call that delegates.
    """

    def __init__(self, machine: UserMachine, delegation: tuple[str, dict[str, Any]]) -> None:
        self.machine = machine
        self.delegation = delegation
        self.may_child_answer = asyncio.Event()
        (machine.folder / "killing.py").write_text(textwrap.dedent(KILLING_TOOL))
        machine.write_config(tools=["killing:die", "killing:hang"])
        machine.env["PYTHONPATH"] = str(machine.folder)

    async def script(self, request: CapturedRequest) -> FakeResponse:
        if "Look around." in json.dumps(request.messages[1]):
            await self.may_child_answer.wait()
            return text_reply("Seven bees.")
        if request.reply_count:
            return text_reply("Well.")
        return tool_call_reply(self.delegation, ("hang", {}), ("die", {}))

    async def kill_daemons_until_suspended(self) -> str:
        """Start the run, let three daemons die of it, and return its id."""
        async with self.machine.daemon() as first_daemon:
            run_id = (await self.machine("run", "--background", "--json", "Delegate.")).json["run_id"]
            await self.machine.wait_for_requests(2)
            (self.machine.folder / "allowed").touch()
            await first_daemon.communicate()
        daemons = [first_daemon]
        for _ in range(2):
            daemons.append(await self.machine.start("serve", "--port", "0"))
            await daemons[-1].communicate()
        assert [each.returncode for each in daemons] == [-signal.SIGKILL] * 3
        return run_id


async def wait_until_run_waits(machine: UserMachine, run_id: str, *, waiting_for: str) -> dict[str, Any]:
    while (shown := (await machine("runs", "show", run_id, "--json")).json)["waiting_for"] != waiting_for:
        pass
    return shown


@pytest.mark.parametrize("answers_before_resume", [True, False])
@pytest.mark.parametrize(
    "delegation",
    [
        ("explore", {"task_prompt": "Look around."}),
        ("spawn_subagent", {"agentId": "explorer", "prompt": "Look around."}),
    ],
)
async def test_a_run_suspended_after_crashes_gets_its_childs_answer_in_the_open_call(
    machine: UserMachine, delegation: tuple[str, dict[str, Any]], *, answers_before_resume: bool
):
    """The calls of tools that may have killed the process are not repeated.

    Shows: P22.
    """
    tree = TreeWithKillingParent(machine, delegation)
    async with machine.serve_models(tree.script) as server:
        run_id = await tree.kill_daemons_until_suspended()
        async with machine.daemon():
            suspended = await wait_until_run_waits(machine, run_id, waiting_for="person")
            assert suspended["reason"] == "recovery_limit"
            (child_id,) = suspended["children"]
            if answers_before_resume:
                tree.may_child_answer.set()
                assert (await machine.wait_for_end(child_id))["status"] == "done"
            resuming = asyncio.create_task(machine("runs", "resume", run_id, "--json"))
            if not answers_before_resume:
                await wait_until_run_waits(machine, run_id, waiting_for="child")
                tree.may_child_answer.set()
            resumed = await resuming
        assert (resumed.code, resumed.json[0]["text"]) == (0, "Well."), resumed.err
        answer, hang, death = machine.tool_results(server.requests[-1])
        assert "Seven bees." in answer
        assert "Outcome unknown" in hang
        assert "the run was stopped before this call finished" in death
        assert str(server.requests[-1].messages).count("Seven bees.") == 1
        rows = (await machine("inbox", "--json")).json
        assert [(row["runId"], row["delivery"]) for row in rows] == [(child_id, "delivered")]


async def test_a_run_suspended_after_crashes_is_not_woken_by_the_end_of_a_background_child(
    machine: UserMachine,
):
    """Shows: P22."""
    background = {"agentId": "explorer", "prompt": "Look around.", "returnMode": "background"}
    tree = TreeWithKillingParent(machine, ("spawn_subagent", background))
    async with machine.serve_models(tree.script) as server:
        run_id = await tree.kill_daemons_until_suspended()
        async with machine.daemon():
            suspended = await wait_until_run_waits(machine, run_id, waiting_for="person")
            tree.may_child_answer.set()
            (child_id,) = suspended["children"]
            assert (await machine.wait_for_end(child_id))["status"] == "done"
            refused = await machine("sessions", "delete", suspended["session_id"])
            assert refused.code == 3
            assert "has a run that waits until you resume or cancel it (recovery_limit)" in refused.err
            still_suspended = (await machine("runs", "show", run_id, "--json")).json
            assert (still_suspended["waiting_for"], still_suspended["turns"]) == (
                "person",
                suspended["turns"],
            )
            resumed = await machine("runs", "resume", run_id, "--json")
        assert (resumed.code, resumed.json[0]["text"]) == (0, "Well."), resumed.err
        assert str(server.requests[-1].messages).count("Seven bees.") == 1
