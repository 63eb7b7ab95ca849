"""Machine faults: a damaged ledger, a run that kills its process, a file at its size limit."""

import asyncio
import resource
import shutil
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

from commands import kill_with_loop
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply


def erase_first_page(path: Path) -> bytes:
    """Overwrite the first page of a database with zeros, and return the damaged content."""
    damaged = bytes(4096) + path.read_bytes()[4096:]
    path.write_bytes(damaged)
    return damaged


async def test_a_damaged_ledger_is_reported_with_the_repair_command_which_replaces_it(machine: UserMachine):
    """Shows: P16."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]) as server:
        first = (await machine("run", "--json", "Hello.")).json
        damaged = erase_first_page(machine.home / "ledger.db")
        before = machine.read_files()
        refused = await machine("run", "--session", first["slug"], "Go on.")
        assert (refused.code, "Run `retinue doctor --repair`" in refused.err) == (1, True)
        assert [each["slug"] for each in (await machine("sessions", "list", "--json")).json] == [
            first["slug"]
        ]
        diagnosis = await machine("doctor", "--json")
        assert (diagnosis.code, machine.read_files()) == (1, before)
        assert not list(machine.home.glob("ledger.db.damaged-*"))
        repair = await machine("doctor", "--repair", "--json")
        assert repair.code == 0
        [row] = [each for each in repair.json if each["level"] == "repaired"]
        [copy] = [path for path in machine.home.glob("ledger.db.damaged-*") if not path.name.endswith("-shm")]
        assert str(copy) in row["message"]
        assert copy.read_bytes() == damaged
        again = (await machine("run", "--json", "--session", first["slug"], "Go on.")).json
        assert (again["status"], again["text"]) == ("done", "Two.")
        assert machine.request_texts(server.requests[1]) == ["Hello.", "One.", "Go on."]


async def test_a_daemon_replaces_a_damaged_ledger_at_its_start_and_logs_it(machine: UserMachine):
    """Shows: P16."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        first = (await machine("run", "--json", "Hello.")).json
        damaged = erase_first_page(machine.home / "ledger.db")
        assert (await machine("serve", "--detach", "--json")).code == 0
        again = (await machine("run", "--json", "--session", first["slug"], "Go on.")).json
        assert (await machine("serve", "--stop")).code == 0
    assert (again["status"], again["text"]) == ("done", "Two.")
    [copy] = [path for path in machine.home.glob("ledger.db.damaged-*") if not path.name.endswith("-shm")]
    assert copy.read_bytes() == damaged
    log = (machine.home / "logs" / "daemon.log").read_text()
    assert f"was kept as {copy}" in log
    assert "the ledger was damaged" in (machine.home / "logs" / "retinue.jsonl").read_text()


KILLING_TOOL = """
import os, signal
import retinue

@retinue.tool(effect="read", asks="never")
async def die() -> str:
    "Kills the process."
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
"""


async def test_a_run_that_kills_its_process_three_times_waits_for_a_person_and_other_runs_continue(
    machine: UserMachine,
):
    """Shows: P22."""
    (machine.folder / "killing.py").write_text(textwrap.dedent(KILLING_TOOL))
    machine.write_config(tools=["killing:die"])
    machine.env["PYTHONPATH"] = str(machine.folder)

    def script(request: CapturedRequest) -> FakeResponse:
        if "Die." in machine.request_texts(request) and not request.reply_count:
            return tool_call_reply(("die", {}))
        return text_reply("Well.")

    async with machine.serve_models(script) as server:
        died = await machine("run", "Die.")
        assert died.code == -signal.SIGKILL
        [killing_run] = (await machine("runs", "list", "--json")).json
        for attempt in (2, 3):
            assert (await machine("runs", "resume")).code == -signal.SIGKILL
            shown = (await machine("runs", "show", killing_run["run_id"], "--json")).json
            assert (shown["status"], shown["attempts"]) == ("running", attempt)
        well = (await machine("run", "--json", "How are you?")).json
        assert (well["status"], well["text"]) == ("done", "Well.")
        last = await machine("runs", "resume", "--json")
        shown = (await machine("runs", "show", killing_run["run_id"], "--json")).json
        assert len(server.requests) == 2, "the killing reply was requested once"
        resumed = await machine("runs", "resume", killing_run["run_id"], "--json")
    assert [(row["status"], row["text"]) for row in resumed.json] == [("done", "Well.")]
    assert "the run was stopped before this call finished" in machine.tool_results(server.requests[-1])[0]
    assert last.code == 6
    assert (shown["status"], shown["waiting_for"], shown["reason"]) == ("waiting", "person", "recovery_limit")
    assert shown["error"].startswith("the process ended 3 times while it worked on this run.")
    assert [(row["status"], row["text"]) for row in resumed.json] == [("done", "Well.")]
    assert "the run was stopped before this call finished" in machine.tool_results(server.requests[-1])[0]


async def test_runs_interrupted_together_with_one_that_kills_the_process_are_not_suspended(
    machine: UserMachine,
):
    """All of them are executed by one process each time it dies.

    Shows: P22.
    """
    (machine.folder / "killing.py").write_text(textwrap.dedent(KILLING_TOOL))
    machine.write_config(tools=["killing:die"])
    machine.env["PYTHONPATH"] = str(machine.folder)

    tasks_received, suspended = asyncio.Event(), asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if "Die." in machine.request_texts(request):
            await tasks_received.wait()
            return tool_call_reply(("die", {}))
        await suspended.wait()
        return text_reply("Well.")

    async def list_runs() -> dict[str, Any]:
        return {row["run_id"]: row for row in (await machine("runs", "history", "--json")).json}

    async with machine.serve_models(script):
        run_ids = [
            (await machine("run", "--background", "--json", text)).json["run_id"]
            for text in ("Task 1.", "Task 2.", "Die.", "Task 3.")
        ]
        await machine.wait_for_requests(len(run_ids))
        tasks_received.set()
        rows = await list_runs()
        while not all(row["status"] == "done" or row["waiting_for"] == "person" for row in rows.values()):
            if rows[run_ids[2]]["waiting_for"] == "person":
                suspended.set()
            await machine("serve", "--detach", "--json")
            rows = await list_runs()
        await machine("serve", "--stop")
    killing_run = rows.pop(run_ids[2])
    assert (killing_run["waiting_for"], killing_run["reason"]) == ("person", "recovery_limit")
    assert [row["text"] for row in rows.values()] == ["Well."] * 3


FILE_SIZE_LIMIT = 300_000


async def test_a_run_at_the_file_size_limit_waits_and_is_shown_as_waiting_for_disk(machine: UserMachine):
    """The limit is raised from outside during the run, like a disk that is emptied.

    Shows: P06.
    """
    text = "All work and no play. " * 20_000

    async with machine.serve_models([text_reply(text), text_reply("Never.")]) as server:
        prepared = [
            "import os, resource, sys",
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_SIZE_LIMIT}, -1))",
        ]
        code = "; ".join(
            [*prepared, "os.execv(sys.executable, [sys.executable, '-m', 'retinue', *sys.argv[1:]])"]
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            "run",
            "--json",
            "Write.",
            env=machine.env,
            cwd=machine.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        kill_with_loop(process)
        while not (rows := (await machine("runs", "list", "--json")).json) or rows[0]["status"] != "waiting":
            pass
        [row] = rows
        assert row["waiting_for"] == "disk"
        assert row["error"].startswith(f"Cannot write {row['path']}: File too large")
        shown = await machine("runs", "show", row["run_id"])
        assert "waiting for disk" in shown.out
        assert row["path"] in shown.out
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err
    assert f"waiting for disk space: Cannot write {row['path']}" in err.decode()
    assert len(server.requests) == 1
    assert text.strip() in Path(row["path"]).read_text()
    assert b'"status": "done"' in out


async def test_a_run_whose_session_folder_was_deleted_is_shown_from_the_ledger(machine: UserMachine):
    def script(request: CapturedRequest) -> FakeResponse:
        if request.reply_count:
            for folder in machine.sessions.iterdir():
                shutil.rmtree(folder)
        return text_reply("Done.") if request.reply_count else tool_call_reply(("ls", {}))

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Look around.")
    assert ran.json["status"] == "failed", ran.err
    assert (ran.code, ran.json["tool_calls"], ran.json["sandbox"]) == (1, 1, None)
    shown = await machine("runs", "show", "--json", ran.json["run_id"])
    assert (shown.code, shown.json["status"]) == (0, "failed"), shown.err
