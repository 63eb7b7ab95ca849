"""Two processes at work in one home: each run is taken up by one of them, and what a dead one held is free."""

import asyncio
import json
import signal
import subprocess
from collections import Counter
from typing import Any

from commands import begun

from retinue.testing.replies import calls, reply

RUNS = 20
SLOTS = 8

BEGINS = """
import asyncio, os, signal, sys
import retinue

async def main():
    async with retinue.open() as app:
        for number in range(int(sys.argv[1])):
            await app.start(f"Task {number}.", workspace=".")
        print("begun", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""

MARKS = """
import retinue

@retinue.tool(effect="once", asks="never")
async def mark(task: str) -> str:
    "Leaves a mark that is counted outside."
    with open("marks.txt", "a") as file:
        file.write(task + "\\n")
    return "marked"
"""


async def test_what_a_dead_process_left_is_shared_by_two_and_done_once(machine: Any):
    """Shows: P25, P26."""
    (machine.folder / "marking.py").write_text(MARKS)
    machine.configured(tools=["marking:mark"], limits={"max_live": SLOTS})
    machine.env["PYTHONPATH"] = str(machine.folder)
    dead = asyncio.Event()

    def script(asked: Any) -> Any:
        task = machine.words(asked)[0]
        if not dead.is_set():
            return reply("Never heard.", delay=60)
        return reply("Done.") if asked.turns else calls(("mark", {"task": task}))

    async with machine.serving(script) as server:
        first = await begun(
            ["-c", BEGINS, str(RUNS)],
            env=machine.env,
            cwd=machine.folder,
            stdout=subprocess.PIPE,
        )
        machine.processes.append(first)
        assert first.stdout is not None
        assert await first.stdout.readline() == b"begun\n"
        await machine.asked(SLOTS)
        assert len(server.requests) == SLOTS
        first.send_signal(signal.SIGKILL)
        await first.communicate()
        dead.set()
        both = await asyncio.gather(*(machine("runs", "resume", "--json") for _ in range(2)))
    assert [each.code for each in both] == [0, 0]
    rows = [row for each in both for row in json.loads(each.out)]
    assert Counter(row["run_id"] for row in rows) == Counter({row["run_id"]: 1 for row in rows})
    assert len(rows) == RUNS
    assert {row["status"] for row in rows} == {"done"}
    marks = (machine.folder / "marks.txt").read_text().splitlines()
    assert sorted(marks) == sorted(f"Task {number}." for number in range(RUNS))
    assert len(server.requests) == SLOTS + 2 * RUNS
