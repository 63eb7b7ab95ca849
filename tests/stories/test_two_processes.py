"""Two processes at work in one home: each run is taken up by one of them, and what a dead one held is free."""

import asyncio
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence

from commands import start_process
from user_machine import UserMachine

from retinue.app.run_options import RunOptions
from retinue.domain.run import Run, Status
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

RUNS = 20
SLOTS = 8

BEGINS = """
import asyncio, os, signal, sys
import retinue

async def main():
    async with retinue.open() as app:
        for number in range(int(sys.argv[1])):
            await app.runs.start(f"Task {number}.", retinue.RunOptions(workspace="."))
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


async def test_what_a_dead_process_left_is_shared_by_two_and_done_once(machine: UserMachine):
    """Shows: P25, P26."""
    (machine.folder / "marking.py").write_text(MARKS)
    machine.write_config(tools=["marking:mark"], limits={"max_live": SLOTS})
    machine.env["PYTHONPATH"] = str(machine.folder)
    dead = asyncio.Event()

    def script(asked: CapturedRequest) -> FakeResponse:
        task = machine.request_texts(asked)[0]
        if not dead.is_set():
            return text_reply("Never heard.", delay=60)
        return text_reply("Done.") if asked.reply_count else tool_call_reply(("mark", {"task": task}))

    async with machine.serve_models(script) as server:
        first = await start_process(
            ["-c", BEGINS, str(RUNS)],
            env=machine.env,
            cwd=machine.folder,
            stdout=subprocess.PIPE,
        )
        assert first.stdout is not None
        assert await first.stdout.readline() == b"begun\n"
        await machine.wait_for_requests(SLOTS)
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


async def test_one_limit_holds_for_all_processes_of_a_home_together(machine: UserMachine):
    """A daemon, a program, and a command as cron would start it, with settings of its own: each works its own runs.

    Shows: C02.
    """
    machine.write_config(limits={"max_live": 2})
    inside, turn, owners = 0, asyncio.Semaphore(0), set[str]()

    async def answer(_asked: CapturedRequest) -> FakeResponse:
        nonlocal inside
        inside += 1
        await turn.acquire()
        inside -= 1
        return text_reply("Done.")

    async def until(true: Callable[[Sequence[Run]], bool]) -> None:
        while True:
            live = await app.runs.list(live=True)
            working = [run for run in live if run.status is Status.RUNNING]
            owners.update(run.owner_id for run in working)
            assert max(len(working), inside) <= 2, "never more than the limit"
            if true(live):
                return
            await asyncio.sleep(0.02)

    async with machine.serve_models(answer), machine.daemon(), machine.open() as app:
        for _ in range(2):
            assert (await machine("run", "--background", "By the daemon.")).code == 0
        ours = [
            await app.runs.start("By the program.", RunOptions(workspace=machine.folder)) for _ in range(2)
        ]
        cron = asyncio.create_task(machine("run", "By a command.", RETINUE_MODEL="openai:other"))
        await until(lambda live: len(live) == 5)
        for left in range(5, 0, -1):
            await until(lambda live, left=left: len(live) == left and inside == min(2, left))
            turn.release()
        assert (await cron).code == 0
        assert {(await app.runs.wait(each.id)).status for each in ours} == {Status.DONE}
        assert {run.status for run in await app.runs.list(live=False)} == {Status.DONE}
    assert len(owners) == 3, "each process worked its own"
