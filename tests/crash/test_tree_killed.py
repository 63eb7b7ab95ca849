"""A process with a whole tree at work is killed: the next one finishes it, and each result has come once."""

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

PATIENCE = 60.0
DYING = """
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
    "Does nothing."
    return ""
"""
"""Loaded as a tool's module: the process dies when a result is taken and does not yet stand in the file."""


@dataclass(slots=True)
class Machine:
    env: dict[str, str]
    folder: Path

    async def started(self, *args: str, **more: str) -> asyncio.subprocess.Process:
        return await start_process(
            [*RETINUE, *args],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.env | more, cwd=self.folder,
        )  # fmt: skip

    async def __call__(self, *args: str) -> Any:
        process = await self.started(*args, "--json")
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, err.decode()
        return json.loads(out)

    def rows(self, sql: str) -> list[Any]:
        """What the ledger says, looked at from outside; nothing while there is no ledger."""
        file = Path(self.env["RETINUE_HOME"]) / "ledger.db"
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db,
        ):
            return db.execute(sql).fetchall()
        return []

    async def killed(self, process: asyncio.subprocess.Process, when: Callable[[], bool]) -> bool:
        """Whether the moment came: the process may have come to its end before."""
        async with asyncio.timeout(PATIENCE):
            while process.returncode is None and not when():  # noqa: ASYNC110  (another process is looked at)
                await asyncio.sleep(0.002)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.communicate()
        return process.returncode == -signal.SIGKILL


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> Machine:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own_tools.py").write_text(DYING)
    config = Path(isolated_env["RETINUE_CONFIG"])
    config.joinpath("config.json").write_text(
        json.dumps({"approvals": "auto", "tools": ["own_tools:nothing"]})
    )
    return Machine(isolated_env | {"PYTHONPATH": str(folder)}, folder)


WAITS = ("PersistentAgent", {"preset": "general", "description": "dig", "prompt": "Dig deep."})
WORKERS = [("sessions_spawn", {"task": f"Look {name}.", "label": name}) for name in "ab"]


def script(asked: CapturedRequest) -> FakeResponse:
    """Whoever asks the same hears the same: the asker starts three, and two of them take their time."""
    words = str(asked.messages)
    if "Begin all." in words:
        return (
            tool_call_reply(WAITS, *WORKERS, text="I hand on.")
            if asked.reply_count == 0
            else text_reply("So it is.")
        )
    if "Dig deep." in words:
        return (
            tool_call_reply(("ls", {}), text="I dig.")
            if asked.reply_count == 0
            else text_reply("Dug up.", delay=0.4)
        )
    return text_reply("Found it.", delay=0.9 if "Look b." in words else 0)


async def went_on(machine: Machine) -> None:
    """What was left is resumed until nothing is, and everything has happened once."""
    for _ in range(4):
        await machine("runs", "resume")
        if not await machine("runs", "list"):
            break
    history = await machine("runs", "history")
    asker = next(run for run in history if run["slug"] == history[-1]["slug"])
    assert [run["status"] for run in history] == ["done"] * 4
    told = Path(asker["path"]).read_text()
    assert told.count("Dug up.") == 1
    assert told.count("] Complete.") == 2
    assert (told.count("[Subagent: a] Complete."), told.count("[Subagent: b] Complete.")) == (1, 1)
    assert told.count("result of=") == 3
    assert machine.rows("SELECT state, count(*) FROM deliveries GROUP BY state") == [("delivered", 3)]


MOMENTS: dict[str, str] = {
    "a call waits": "SELECT 1 FROM runs WHERE waiting_for='child' AND aside=0",
    "workers are at work": "SELECT 1 FROM runs WHERE door='sessions_spawn' AND status='running'",
    "a result is posted and not heard": "SELECT 1 FROM deliveries WHERE state='pending' AND answers=0",
    "the last word is awaited": "SELECT 1 FROM runs WHERE aside=1",
}


ASIDE = ("workers are at work", "the last word is awaited")
"""Moments for which a worker is kept at work; for the others, the one that a call waits for is."""
LONG = 50.0


@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_with_a_tree_at_work_each_result_comes_once(machine: Machine, moment: str):
    """Shows: P21, C11, L012."""
    alive = True

    def held(asked: CapturedRequest) -> FakeResponse:
        """Until the kill, whoever the moment needs at work takes its time."""
        words, answer = str(asked.messages), script(asked)
        digs = "Dig deep." in words and "Begin all." not in words and asked.reply_count > 0
        slow = "Look b." in words if moment in ASIDE else digs
        return replace(answer, delay=LONG) if alive and slow and "Begin all." not in words else answer

    async with FakeModelServer(held) as server:
        machine.env |= {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-test",
            "RETINUE_MODEL": "openai:m",
        }
        process = await machine.started("run", "Begin all.")
        assert await machine.killed(process, lambda: bool(machine.rows(MOMENTS[moment])))
        alive = False
        await went_on(machine)


async def test_killed_between_taking_a_result_and_writing_it_down_it_is_taken_again(machine: Machine):
    """Shows: P01, P12."""
    async with FakeModelServer(script) as server:
        machine.env |= {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-test",
            "RETINUE_MODEL": "openai:m",
        }
        process = await machine.started("run", "Begin all.", DIES="1")
        await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == -signal.SIGKILL
        assert machine.rows("SELECT state FROM deliveries WHERE answers=1") == [("delivered",)]
        await went_on(machine)


@pytest.mark.parametrize("seed", range(3))
async def test_killed_again_and_again_at_any_moment_each_result_comes_once(machine: Machine, seed: int):
    chance = random.Random(seed)
    async with FakeModelServer(script) as server:
        machine.env |= {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-test",
            "RETINUE_MODEL": "openai:m",
        }
        for kill in range(3):
            seen = len(machine.rows("SELECT seq FROM events")) + chance.randint(1, 14)
            process = await machine.started(*(("run", "Begin all.") if kill == 0 else ("runs", "resume")))
            await machine.killed(
                process, lambda seen=seen: len(machine.rows("SELECT seq FROM events")) >= seen
            )
        await went_on(machine)
