"""Old runs and events are pruned by the daemon and by `doctor --repair`, and clients notice what they missed."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

from user_machine import UserMachine, wait_until

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

A_YEAR_US = 365 * 86_400 * 1_000_000


def make_everything_old(home: Path) -> None:
    """Move all runs and events of the ledger a year into the past."""
    with closing(sqlite3.connect(home / "ledger.db")) as ledger, ledger:
        times = ", ".join(f"{name}={name}-{A_YEAR_US}" for name in ("created_at", "started_at", "ended_at"))
        ledger.execute(f"UPDATE runs SET {times}")
        ledger.execute("UPDATE events SET at=at-?", (A_YEAR_US,))


def query(home: Path, sql: str) -> Any:
    with closing(sqlite3.connect(home / "ledger.db")) as ledger:
        return ledger.execute(sql).fetchone()[0]


@asynccontextmanager
async def open_stream(machine: UserMachine, last_event_id: int) -> AsyncGenerator[asyncio.StreamReader]:
    with daemon_client.socket_path(machine.home) as socket:
        reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(
        f"GET /api/events HTTP/1.1\r\nhost: daemon\r\nLast-Event-ID: {last_event_id}\r\n\r\n".encode()
    )
    try:
        async with asyncio.timeout(30):
            yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_doctor_prunes_old_runs_and_keeps_their_sessions(machine: UserMachine):
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        ran = await machine("run", "First", "--json")
        make_everything_old(machine.home)
        repaired = await machine("doctor", "--repair", "--json")
        assert "1 ended runs and 2 events were pruned" in repaired.out
        shown = (await machine("runs", "show", ran.json["run_id"], "--json")).json
        assert (shown["pruned"], shown["status"], shown["text"]) == (True, "done", "One.")
        assert (await machine("wait", ran.json["run_id"])).out == "One.\n"
        assert shown["path"] == ran.json["path"]
        described = await machine("runs", "show", ran.json["run_id"])
        assert (described.code, described.err) == (0, "")
        assert "pruned from the ledger" in described.out
        assert ran.json["path"] in described.out
        again = await machine("run", "Second", "--session", ran.json["run_id"], "--json")
    assert (again.json["session_id"], again.json["text"]) == (ran.json["session_id"], "Two.")
    assert "First" in Path(ran.json["path"]).read_text()
    findings = (await machine("doctor", "--json")).json
    assert not [each for each in findings if "not in the ledger" in each["message"]]


async def test_the_result_of_a_pruned_sub_agent_is_read_from_its_conversation(machine: UserMachine):
    machine.write_agent("helper")

    def script(request: CapturedRequest) -> FakeResponse:
        messages = json.dumps(request.messages)
        if "Count." in str(request.messages[-1]) and "Delegate" not in messages:
            return text_reply("There are 42.")
        if request.reply_count == 0:
            return tool_call_reply(("spawn_subagent", {"agentId": "helper", "prompt": "Count."}))
        if "Read it again" in str(request.messages[-1]):
            (run,) = set(re.findall(r"report run=([0-9A-Z]+)", messages))
            return tool_call_reply(("read", {"path": f"result:{run}"}))
        return text_reply("Done.")

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Delegate")
        make_everything_old(machine.home)
        assert "2 ended runs" in (await machine("doctor", "--repair", "--json")).out
        again = await machine("send", ran.json["session_id"], "Read it again")
        assert again.code == 0, again.err
        assert str(server.requests[-1].messages[-1]["content"]) == "There are 42."


async def test_the_daemon_prunes_by_the_configured_days(machine: UserMachine):
    machine.write_config(retention={"runs_days": 400, "events_days": 30})
    async with machine.serve_models([text_reply("One.")]):
        await machine("run", "Hi")
        make_everything_old(machine.home)
        async with machine.daemon():
            await wait_until(lambda: query(machine.home, "SELECT count(*) FROM events") == 1)
    assert query(machine.home, "SELECT count(*) FROM runs") == 1


async def test_a_waiting_approval_survives_any_age_and_any_size(machine: UserMachine):
    machine.write_config(retention={"runs_days": 0.001, "events_days": 0.001, "ledger_mb": 1})
    machine.write_agent("main", "tools: [write]\n")
    script = [{"tools": [{"name": "write", "args": {"path": "a", "content": "b"}}]}, "Done."]
    machine.env["RETINUE_MODEL"] = f"scripted:{machine.folder / 'script.json'}"
    (machine.folder / "script.json").write_text(json.dumps({"main": script}))
    waiting = await machine("run", "Write", "--agent", "main", "--json")
    assert waiting.json["waiting_for"] == "approval", waiting
    await machine("doctor", "--repair")
    answered = await machine("approvals", "answer", waiting.json["approvals"][0], "allow", "--json")
    assert answered.code == 0, answered
    assert (machine.folder / "a").read_text() == "b"


async def test_a_repeated_message_with_the_key_of_a_pruned_run_does_not_run_twice(machine: UserMachine):
    async with (
        machine.serve_models([text_reply("One."), text_reply("Two.")]) as server,
        machine.open() as app,
    ):
        first = await app.run("Pay", key="order-7")
        make_everything_old(machine.home)
        assert (await app.retention.prune()).runs == 1
        again = await app.run("Pay", key="order-7")
        assert (again.id, again.status, again.is_pruned) == (first.id, "done", True)
        await app.sessions.delete(first.session_id, purge=True)
        third = await app.run("Pay", key="order-7")
        assert third.id == first.id
    assert len(server.requests) == 1


async def test_a_client_that_missed_pruned_events_is_asked_to_reload(machine: UserMachine):
    async with machine.serve_models([text_reply("One.")] * 3):
        await machine("run", "Hi")
        await machine("run", "Hi again")
        make_everything_old(machine.home)
        await machine("doctor", "--repair")
        last = query(machine.home, "SELECT max(seq) FROM events")
        async with machine.daemon():
            for last_event_id, reason in ((1, b"pruned"), (last + 1000, b"other_ledger")):
                async with open_stream(machine, last_event_id) as reader:
                    text = await reader.readuntil(b'"reason":"' + reason + b'"}\n')
                assert b"event: events.reset\nid: %d\n" % last in text
            async with open_stream(machine, last) as reader:
                await machine("run", "Once more")
                text = await reader.readuntil(b"event: run.ended")
            assert b"events.reset" not in text


async def test_doctor_reports_the_sizes_of_a_home(machine: UserMachine):
    async with machine.serve_models([text_reply("One.")]):
        ran = await machine("run", "Hi", "--json")
        await machine("sessions", "delete", ran.json["session_id"])
    [sizes] = [
        each for each in (await machine("doctor", "--json")).json if each["message"].startswith("sizes: ")
    ]
    for name in ("ledger", "sessions", "deleted sessions", "torn files", "logs"):
        assert name in sizes["message"]
    assert "deleted sessions 0 kB" not in sizes["message"]


async def test_the_history_says_that_its_runs_were_pruned(machine: UserMachine):
    assert "No runs yet" in (await machine("runs", "history")).err
    async with machine.serve_models([text_reply("One.")]):
        await machine("run", "Hi")
    make_everything_old(machine.home)
    await machine("doctor", "--repair")
    history = await machine("runs", "history")
    assert "1 ended run was pruned or purged" in history.err
    assert "No runs yet" not in history.err
    assert (await machine("runs", "history", "--json")).json == []
