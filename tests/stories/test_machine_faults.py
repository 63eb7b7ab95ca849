"""Faults of the machine from outside: a damaged ledger, a run that takes its process down, a file that may not grow."""

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


def zeroed(path: Path) -> bytes:
    """The first page is gone, and with it everything that says what the others are."""
    bad = bytes(4096) + path.read_bytes()[4096:]
    path.write_bytes(bad)
    return bad


async def test_a_damaged_ledger_is_named_with_what_to_do_and_mended_on_request(machine: UserMachine):
    """Shows: P16."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]) as server:
        first = (await machine("run", "--json", "Hello.")).json
        bad = zeroed(machine.home / "ledger.db")
        before = machine.read_files()
        refused = await machine("run", "--session", first["slug"], "Go on.")
        assert (refused.code, "Run `retinue doctor --repair`" in refused.err) == (1, True)
        assert [each["slug"] for each in (await machine("sessions", "list", "--json")).json] == [
            first["slug"]
        ]
        looked = await machine("doctor", "--json")
        assert (looked.code, machine.read_files()) == (1, before)
        assert not list(machine.home.glob("ledger.db.damaged-*"))
        mended = await machine("doctor", "--repair", "--json")
        assert mended.code == 0
        [row] = [each for each in mended.json if each["level"] == "repaired"]
        [kept] = [path for path in machine.home.glob("ledger.db.damaged-*") if not path.name.endswith("-shm")]
        assert str(kept) in row["message"]
        assert kept.read_bytes() == bad
        again = (await machine("run", "--json", "--session", first["slug"], "Go on.")).json
        assert (again["status"], again["text"]) == ("done", "Two.")
        assert machine.request_texts(server.requests[1]) == ["Hello.", "One.", "Go on."]


async def test_a_daemon_begins_anew_beside_a_damaged_ledger_and_says_so(machine: UserMachine):
    """Shows: P16."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        first = (await machine("run", "--json", "Hello.")).json
        bad = zeroed(machine.home / "ledger.db")
        assert (await machine("serve", "--detach", "--json")).code == 0
        again = (await machine("run", "--json", "--session", first["slug"], "Go on.")).json
        assert (await machine("serve", "--stop")).code == 0
    assert (again["status"], again["text"]) == ("done", "Two.")
    [kept] = [path for path in machine.home.glob("ledger.db.damaged-*") if not path.name.endswith("-shm")]
    assert kept.read_bytes() == bad
    said = (machine.home / "logs" / "daemon.log").read_text()
    assert f"was kept as {kept}" in said
    assert "the ledger was damaged" in (machine.home / "logs" / "retinue.jsonl").read_text()


POISON = """
import os, signal
import retinue

@retinue.tool(effect="read", asks="never")
async def poison() -> str:
    "Takes the process down."
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
"""


async def test_a_run_that_takes_its_process_down_is_lost_after_three_tries_and_the_others_go_on(
    machine: UserMachine,
):
    """Shows: P22."""
    (machine.folder / "poisoned.py").write_text(textwrap.dedent(POISON))
    machine.write_config(tools=["poisoned:poison"])
    machine.env["PYTHONPATH"] = str(machine.folder)

    def script(asked: CapturedRequest) -> FakeResponse:
        if "Drink." in machine.request_texts(asked):
            return tool_call_reply(("poison", {}))
        return text_reply("Well.")

    async with machine.serve_models(script) as server:
        died = await machine("run", "Drink.")
        assert died.code == -signal.SIGKILL
        [poisoned] = (await machine("runs", "list", "--json")).json
        for attempt in (2, 3, 4):
            assert (await machine("runs", "resume")).code == -signal.SIGKILL
            shown = (await machine("runs", "show", poisoned["run_id"], "--json")).json
            assert (shown["status"], shown["attempts"]) == ("running", attempt)
        well = (await machine("run", "--json", "How are you?")).json
        assert (well["status"], well["text"]) == ("done", "Well.")
        last = await machine("runs", "resume", "--json")
        shown = (await machine("runs", "show", poisoned["run_id"], "--json")).json
    assert last.code == 1
    assert (shown["status"], shown["reason"]) == ("lost", "recovery_limit")
    assert shown["error"] == "started 4 times without finishing"
    assert len(server.requests) == 2, "the poisoned reply was asked for once"


async def test_those_that_are_interrupted_beside_the_poison_are_not_lost_with_it(machine: UserMachine):
    """All of them are worked in one process each time it dies.

    Shows: P22.
    """
    (machine.folder / "poisoned.py").write_text(textwrap.dedent(POISON))
    machine.write_config(tools=["poisoned:poison"])
    machine.env["PYTHONPATH"] = str(machine.folder)

    given, lost = asyncio.Event(), asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "Drink." in machine.request_texts(asked):
            await given.wait()
            return tool_call_reply(("poison", {}))
        await lost.wait()
        return text_reply("Well.")

    async def there() -> dict[str, Any]:
        return {row["run_id"]: row for row in (await machine("runs", "history", "--json")).json}

    async with machine.serve_models(script):
        left = [
            (await machine("run", "--background", "--json", text)).json["run_id"]
            for text in ("Task 1.", "Task 2.", "Drink.", "Task 3.")
        ]
        await machine.wait_for_requests(len(left))
        given.set()
        rows = await there()
        while not all(row["status"] in ("done", "lost") for row in rows.values()):
            if rows[left[2]]["status"] == "lost":
                lost.set()
            await machine("serve", "--detach", "--json")
            rows = await there()
        await machine("serve", "--stop")
    poisoned = rows.pop(left[2])
    assert (poisoned["status"], poisoned["reason"]) == ("lost", "recovery_limit")
    assert [row["text"] for row in rows.values()] == ["Well."] * 3


LIMIT = 300_000


async def test_a_run_waits_while_its_file_may_not_grow_and_is_shown_as_waiting(machine: UserMachine):
    """What a process may write into one file is raised from outside, as a disk is emptied.

    Shows: P06.
    """
    words = "All work and no play. " * 20_000

    async with machine.serve_models([text_reply(words), text_reply("Never.")]) as server:
        prepared = ["import os, resource, sys", f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, -1))"]
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
    assert words.strip() in Path(row["path"]).read_text()
    assert b'"status": "done"' in out


async def test_a_run_whose_folder_was_taken_away_is_shown_as_the_ledger_has_it(machine: UserMachine):
    def script(asked: CapturedRequest) -> FakeResponse:
        if asked.reply_count:
            for folder in machine.sessions.iterdir():
                shutil.rmtree(folder)
        return text_reply("Done.") if asked.reply_count else tool_call_reply(("ls", {}))

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Look around.")
    assert ran.json["status"] == "failed", ran.err
    assert (ran.code, ran.json["tool_calls"], ran.json["sandbox"]) == (1, 1, None)
    shown = await machine("runs", "show", "--json", ran.json["run_id"])
    assert (shown.code, shown.json["status"]) == (0, "failed"), shown.err
