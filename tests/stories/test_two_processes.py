"""Two processes in one home: each run is executed by one of them, and slots of a dead process are free."""

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

START_RUNS = """
import asyncio, os, signal, sys
import retinue

async def main():
    async with retinue.open() as app:
        for number in range(int(sys.argv[1])):
            await app.runs.start(f"Task {number}.", retinue.RunOptions(workspace="."))
        print("started", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""

MARK_TOOL = """
import retinue

@retinue.tool(effect="once", asks="never")
async def mark(task: str) -> str:
    "Writes a line that the test counts."
    with open("marks.txt", "a") as file:
        file.write(task + "\\n")
    return "marked"
"""


async def test_two_processes_resume_each_run_of_a_dead_process_once(machine: UserMachine):
    """Shows: P25, P26."""
    (machine.folder / "marking.py").write_text(MARK_TOOL)
    machine.write_config(tools=["marking:mark"], limits={"max_live": SLOTS})
    machine.env["PYTHONPATH"] = str(machine.folder)
    first_killed = asyncio.Event()

    def script(request: CapturedRequest) -> FakeResponse:
        task = machine.request_texts(request)[0]
        if not first_killed.is_set():
            return text_reply("Never received.", delay=60)
        return text_reply("Done.") if request.reply_count else tool_call_reply(("mark", {"task": task}))

    async with machine.serve_models(script) as server:
        first = await start_process(
            ["-c", START_RUNS, str(RUNS)],
            env=machine.env,
            cwd=machine.folder,
            stdout=subprocess.PIPE,
        )
        assert first.stdout is not None
        assert await first.stdout.readline() == b"started\n"
        await machine.wait_for_requests(SLOTS)
        assert len(server.requests) == SLOTS
        first.send_signal(signal.SIGKILL)
        await first.communicate()
        first_killed.set()
        results = await asyncio.gather(*(machine("runs", "resume", "--json") for _ in range(2)))
    assert [each.code for each in results] == [0, 0]
    rows = [row for each in results for row in json.loads(each.out)]
    assert Counter(row["run_id"] for row in rows) == Counter({row["run_id"]: 1 for row in rows})
    assert len(rows) == RUNS
    assert {row["status"] for row in rows} == {"done"}
    marks = (machine.folder / "marks.txt").read_text().splitlines()
    assert sorted(marks) == sorted(f"Task {number}." for number in range(RUNS))
    assert len(server.requests) == SLOTS + 2 * RUNS


async def test_the_limit_of_live_runs_applies_to_all_processes_of_a_home_together(machine: UserMachine):
    """A daemon, a program, and a command with other settings each execute their own runs.

    Shows: C02.
    """
    machine.write_config(limits={"max_live": 2})
    open_requests, semaphore, owners = 0, asyncio.Semaphore(0), set[str]()

    async def script(_request: CapturedRequest) -> FakeResponse:
        nonlocal open_requests
        open_requests += 1
        await semaphore.acquire()
        open_requests -= 1
        return text_reply("Done.")

    async def wait_until(condition: Callable[[Sequence[Run]], bool]) -> None:
        while True:
            live = await app.runs.list(live=True)
            running = [run for run in live if run.status is Status.RUNNING]
            owners.update(run.owner_id for run in running)
            assert max(len(running), open_requests) <= 2, "never more than the limit"
            if condition(live):
                return
            await asyncio.sleep(0.02)

    async with machine.serve_models(script), machine.daemon(), machine.open() as app:
        for _ in range(2):
            assert (await machine("run", "--background", "By the daemon.")).code == 0
        program_runs = [
            await app.runs.start("By the program.", RunOptions(workspace=machine.folder)) for _ in range(2)
        ]
        command = asyncio.create_task(machine("run", "By a command.", RETINUE_MODEL="openai:other"))
        await wait_until(lambda live: len(live) == 5)
        for remaining in range(5, 0, -1):
            await wait_until(
                lambda live, remaining=remaining: (
                    len(live) == remaining and open_requests == min(2, remaining)
                )
            )
            semaphore.release()
        assert (await command).code == 0
        assert {(await app.runs.wait(each.id)).status for each in program_runs} == {Status.DONE}
        assert {run.status for run in await app.runs.list(live=False)} == {Status.DONE}
    assert len(owners) == 3, "each process executes its own runs"


async def test_a_live_run_is_not_taken_over_when_the_lock_files_are_deleted(machine: UserMachine):
    released = asyncio.Event()

    async def script(_: CapturedRequest) -> FakeResponse:
        await released.wait()
        return text_reply("Done, once.")

    async with machine.serve_models(script) as server:
        first = await machine.start("run", "--json", "Take your time.")
        await machine.wait_for_requests(1)
        for file in (machine.home / "owners").iterdir():
            file.unlink()
        (row,) = (await machine("runs", "list", "--json")).json
        for arguments in (("runs", "resume"), ("runs", "resume", row["run_id"]), ("doctor", "--repair")):
            await machine(*arguments, "--json")
        async with machine.daemon():
            shown = (await machine("runs", "show", row["run_id"], "--json")).json
            assert (shown["status"], shown["attempts"]) == ("running", 1)
            released.set()
            out, err = await first.communicate()
        run = json.loads(out)
        assert (first.returncode, run["text"]) == (0, "Done, once."), err
        shown = (await machine("runs", "show", run["run_id"], "--json")).json
    assert (shown["status"], shown["attempts"]) == ("done", 1)
    assert len(server.requests) == 1
