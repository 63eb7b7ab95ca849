"""A lost ledger and a lost session.md: what is still shown, and what `doctor` says."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply


def reply(request: CapturedRequest) -> FakeResponse:
    last = UserMachine.request_texts(request)[-1]
    if "DELEGATE" in last:
        return tool_call_reply(
            ("spawn_subagent", {"agentId": "helper", "prompt": "Count the birds.", "returnMode": "blocking"})
        )
    return text_reply("Seven birds." if "birds" in last else "All counted.")


async def delegate(machine: UserMachine) -> dict[str, Any]:
    machine.write_agent("main", "tools: [read, spawn_subagent]\n")
    machine.write_agent("helper", "tools: [read]\n")
    ran = await machine("run", "DELEGATE", "--agent", "main", "--json")
    assert ran.json["status"] == "done", ran
    return ran.json


async def announcements(machine: UserMachine, session: str) -> list[dict[str, Any]]:
    return (await machine("sessions", "show", session, "--json")).json["announcements"]


async def findings(machine: UserMachine) -> list[str]:
    rows = (await machine("doctor", "--json")).json
    return [f"{each['message']} {each['advice']}" for each in rows if each["level"] != "ok"]


async def test_the_announcements_of_a_session_survive_a_lost_ledger(machine: UserMachine):
    async with machine.serve_models(reply):
        ran = await delegate(machine)
        [before] = await announcements(machine, ran["session_id"])
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (machine.home / name).unlink(missing_ok=True)
        [after] = await announcements(machine, ran["session_id"])
        assert {name: after[name] for name in ("type", "summary", "childSessionId")} == {
            name: before[name] for name in ("type", "summary", "childSessionId")
        }
        names = ("runId", "agent", "slug", "status", "transcript")
        assert {name: after["metadata"][name] for name in names} == {
            name: before["metadata"][name] for name in names
        }
        await machine("run", "Again", "--session", ran["session_id"])
        assert len(await announcements(machine, ran["session_id"])) == 1


async def test_a_missing_transcript_is_reported_with_what_to_do(machine: UserMachine):
    async with machine.serve_models(reply):
        ran = await delegate(machine)
        path = Path(ran["path"])
        text = path.read_text()
        path.unlink()
        [message, *_] = [each for each in await findings(machine) if str(path) in each]
        assert f"{path} is missing" in message
        assert ran["run_id"] in message
        path.write_text("")
        assert not [each for each in await findings(machine) if "is missing" in each]
        path.write_text(text)
        assert await findings(machine) == []


async def test_a_session_folder_that_was_removed_by_hand_is_reported(machine: UserMachine):
    async with machine.serve_models(reply):
        ran = await delegate(machine)
        shutil.rmtree(machine.home / "sessions" / ran["slug"])
        missing = [each for each in await findings(machine) if "is missing" in each]
    assert len(missing) == 2  # the session and its child


async def test_deleted_purged_and_pruned_sessions_are_not_reported_as_missing(machine: UserMachine):
    async with machine.serve_models(reply):
        deleted, purged = await delegate(machine), await delegate(machine)
        await machine("sessions", "delete", deleted["session_id"])
        assert await findings(machine) == []
        for folder in (machine.home / "sessions").glob("*.deleted.*"):
            shutil.rmtree(folder)  # as the sweep does after 30 days
        await machine("sessions", "delete", purged["session_id"], "--purge")
        assert await findings(machine) == []
        with closing(sqlite3.connect(machine.home / "ledger.db")) as ledger, ledger:
            ledger.execute("DELETE FROM events WHERE seq < (SELECT max(seq) FROM events)")
        assert await findings(machine) == []
