"""A process that runs a tree of agents is killed: the next process finishes the tree, and each result arrives once."""

import asyncio
import json
import random
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import RETINUE, start_process
from msgspec.structs import replace

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

TIMEOUT_S = 60.0
KILLING_TOOL = """
import os, signal
from retinue import tool
from retinue.tools.delegation import persistent_agent

taken = persistent_agent.take_child_result

async def take_child_result(run, call, context):
    ended = await taken(run, call, context)
    if ended.status.is_final:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended

if "DIES" in os.environ:
    persistent_agent.take_child_result = take_child_result

@tool(effect="read")
def nothing() -> str:
    "Do nothing."
    return ""
"""
"""A tool module that kills the process when a child's result was fetched and is not yet in the file."""


@dataclass(slots=True)
class Machine:
    env: dict[str, str]
    folder: Path

    def use_model_server(self, server: FakeModelServer) -> None:
        self.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", "RETINUE_MODEL": "openai:m"}

    async def start(self, *args: str, **variables: str) -> asyncio.subprocess.Process:
        return await start_process(
            [*RETINUE, *args],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.env | variables, cwd=self.folder,
        )  # fmt: skip

    async def __call__(self, *args: str) -> Any:
        process = await self.start(*args, "--json")
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        assert process.returncode == 0, err.decode()
        return json.loads(out)

    def rows(self, sql: str) -> list[Any]:
        """Query the ledger from outside; return nothing while there is no ledger."""
        file = Path(self.env["RETINUE_HOME"]) / "ledger.db"
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db,
        ):
            return db.execute(sql).fetchall()
        return []

    async def kill_when(self, process: asyncio.subprocess.Process, condition: Callable[[], bool]) -> bool:
        """Kill a process when the condition holds; return False if it exited before."""
        async with asyncio.timeout(TIMEOUT_S):
            while process.returncode is None and not condition():  # noqa: ASYNC110  (another process is watched)
                await asyncio.sleep(0.002)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.communicate()
        return process.returncode == -signal.SIGKILL


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> Machine:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own_tools.py").write_text(KILLING_TOOL)
    config = Path(isolated_env["RETINUE_CONFIG"])
    config.joinpath("config.json").write_text(
        json.dumps({"approvals": "auto", "tools": ["own_tools:nothing"]})
    )
    return Machine(isolated_env | {"PYTHONPATH": str(folder)}, folder)


WAITS = ("PersistentAgent", {"preset": "general", "description": "dig", "prompt": "Dig deep."})
WORKERS = [("sessions_spawn", {"task": f"Look {name}.", "label": name}) for name in "ab"]


def script(request: CapturedRequest) -> FakeResponse:
    """Reply the same to the same request: the parent starts three children, and two of them are slow."""
    messages = str(request.messages)
    if "Begin all." in messages:
        return (
            tool_call_reply(WAITS, *WORKERS, text="I hand on.")
            if request.reply_count == 0
            else text_reply("So it is.")
        )
    if "Dig deep." in messages:
        return (
            tool_call_reply(("ls", {}), text="I dig.")
            if request.reply_count == 0
            else text_reply("Dug up.", delay=0.4)
        )
    return text_reply("Found it.", delay=0.9 if "Look b." in messages else 0)


async def resume_and_check(machine: Machine) -> None:
    """Resume interrupted runs until none is left, and check that each result arrived once.

    A run that was killed three times before it made progress waits for a person, who resumes it by its id.
    """
    for _ in range(6):
        process = await machine.start("runs", "resume")
        await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        live = await machine("runs", "list")
        if not live:
            break
        for run in live:
            if run["reason"] == "recovery_limit":
                process = await machine.start("runs", "resume", run["run_id"])
                await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    history = await machine("runs", "history")
    parent = next(run for run in history if run["slug"] == history[-1]["slug"])
    assert [run["status"] for run in history] == ["done"] * 4
    transcript = Path(parent["path"]).read_text()
    assert transcript.count("Dug up.") == 1
    assert transcript.count("] Complete.") == 2
    assert (transcript.count("[Subagent: a] Complete."), transcript.count("[Subagent: b] Complete.")) == (
        1,
        1,
    )
    assert transcript.count("result of=") == 3
    assert machine.rows("SELECT state, count(*) FROM deliveries GROUP BY state") == [("delivered", 3)]


MOMENTS: dict[str, str] = {
    "a call waits for its child": "SELECT 1 FROM runs WHERE waiting_for='child' AND aside=0",
    "workers are running": "SELECT 1 FROM runs WHERE door='sessions_spawn' AND status='running'",
    "a delivery is pending": "SELECT 1 FROM deliveries WHERE state='pending' AND answers=0",
    "the parent is suspended": "SELECT 1 FROM runs WHERE aside=1",
}


WORKER_MOMENTS = ("workers are running", "the parent is suspended")
"""Moments that need a slow worker; the others need a slow child that a call waits for."""
LONG_DELAY_S = 50.0


@pytest.mark.parametrize("moment", MOMENTS)
async def test_each_result_arrives_once_after_a_kill_while_a_tree_runs(machine: Machine, moment: str):
    """Shows: P21, C11, L012."""
    before_kill = True

    def slow_script(request: CapturedRequest) -> FakeResponse:
        """Delay the agent that the moment needs until the kill."""
        messages, reply = str(request.messages), script(request)
        is_child = "Dig deep." in messages and "Begin all." not in messages and request.reply_count > 0
        is_slow = "Look b." in messages if moment in WORKER_MOMENTS else is_child
        return (
            replace(reply, delay=LONG_DELAY_S)
            if before_kill and is_slow and "Begin all." not in messages
            else reply
        )

    async with FakeModelServer(slow_script) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Begin all.")
        assert await machine.kill_when(process, lambda: bool(machine.rows(MOMENTS[moment])))
        before_kill = False
        await resume_and_check(machine)


async def test_a_result_fetched_but_not_saved_before_a_kill_is_fetched_again(machine: Machine):
    """Shows: P01, P12."""
    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Begin all.", DIES="1")
        await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL
        assert machine.rows("SELECT state FROM deliveries WHERE answers=1") == [("delivered",)]
        await resume_and_check(machine)


@pytest.mark.parametrize("seed", range(3))
async def test_each_result_arrives_once_after_repeated_kills_at_random_moments(machine: Machine, seed: int):
    rng = random.Random(seed)
    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        for kill in range(3):
            event_count = len(machine.rows("SELECT seq FROM events")) + rng.randint(1, 14)
            process = await machine.start(*(("run", "Begin all.") if kill == 0 else ("runs", "resume")))
            await machine.kill_when(
                process,
                lambda event_count=event_count: len(machine.rows("SELECT seq FROM events")) >= event_count,
            )
        await resume_and_check(machine)
