"""Workers in the background, seen from outside: accepted at once, announced once, told in the seeds' words."""

import asyncio
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply


def spawns(**wish: Any) -> tuple[str, dict[str, Any]]:
    return "sessions_spawn", {"task": "Find the year."} | wish


def of_worker(asked: CapturedRequest) -> bool:
    return "You are a worker agent" in asked.body["messages"][0]["content"]


def plays(*main: FakeResponse, worker: FakeResponse) -> Script:
    """The main agent's replies in order, and a worker's, who is done when the main agent speaks again and not before:
    else that would hear of it a turn earlier."""
    left, spoken = list(main), asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if of_worker(asked):
            await spoken.wait()
            return worker
        if asked.reply_count:
            spoken.set()
        return left.pop(0)

    return script


async def test_a_worker_is_accepted_at_once_and_what_it_found_is_presented_later(machine: UserMachine):
    """Shows: E001, E002, E003, E004, E005, E007, E008, E010, E011, E013, E015, E046, L005."""
    wish = spawns(label="xfs", model="gpt-cheap", thinking="low", timeoutSeconds=120)
    script = plays(
        tool_call_reply(wish, text="I send someone."),
        text_reply("Sent."),
        text_reply("It was 1993."),
        worker=text_reply("1993."),
    )
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "When did XFS come?")
        assert (ran.code, ran.json["text"]) == (0, "It was 1993.")
        (child,) = ran.json["children"]
        shown = (await machine("subagent", "show", child, "--json")).json
    (worker,) = [each for each in server.requests if of_worker(each)]
    system = worker.body["messages"][0]["content"]
    for part in (
        f"**Requester:** {ran.json['key']}",
        f"**Session:** {shown['key']}",
        "**Label:** xfs",
        "**Your task:**\nFind the year.",
        "**Instructions:**",
        "You are a worker agent spawned to complete a specific task.",
    ):
        assert part in system
    assert [each["content"] for each in worker.body["messages"][1:]] == ["Find the year."]
    assert worker.body["model"] == "gpt-cheap"
    assert re.fullmatch(r"agent:general:subagent:[0-9a-f-]{36}", shown["key"])
    assert (shown["label"], shown["task"], shown["thinking"]) == ("xfs", "Find the year.", "low")
    assert (shown["source"], shown["requester"]) == ("subagent", ran.json["key"])
    assert shown["delivery"] == {"state": "delivered", "attempts": 1}
    told = Path(ran.json["path"]).read_text()
    assert told.count("[Subagent: xfs] Complete.\n\n1993.") == 1
    accepted = {"status": "accepted", "runId": child, "sessionKey": shown["key"]}
    assert json.dumps(accepted, separators=(",", ":")) in told


async def test_a_worker_without_a_label_goes_by_its_agents_name(machine: UserMachine):
    """In its announcement with the end of its run's id, which nobody knows when its prompt is written.

    Shows: E008, E014."""
    script = plays(
        tool_call_reply(spawns()), text_reply("Sent."), text_reply("It was 1993."), worker=text_reply("1993.")
    )
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "When did XFS come?")
    (worker,) = [each for each in server.requests if of_worker(each)]
    assert "\n**Label:** general\n" in worker.body["messages"][0]["content"]
    (child,) = ran.json["children"]
    assert f"[Subagent: general-{child[-6:].lower()}] Complete." in Path(ran.json["path"]).read_text()


async def test_a_run_whose_conversation_was_put_aside_says_where_it_is_now(machine: UserMachine):
    """As long as it is there, and whether it went by itself or with whoever asked for it.

    Shows: E016."""
    script = plays(
        tool_call_reply(spawns(label="xfs", cleanup="delete")),
        text_reply("Sent."),
        text_reply("1993."),
        worker=text_reply("It was 1993."),
    )
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "When did XFS come?")
        (child,) = ran.json["children"]
        path = Path((await machine("runs", "show", child, "--json")).json["path"])
        assert ".deleted." in path.parent.name
        assert "It was 1993." in path.read_text()
        gone = (await machine("sessions", "delete", ran.json["slug"], "--json")).json
        paths = [
            Path((await machine("runs", "show", each, "--json")).json["path"])
            for each in (child, ran.json["run_id"])
        ]
        assert all(each.is_relative_to(gone["path"]) and each.exists() for each in paths)
        shutil.rmtree(gone["path"])
        assert (await machine("runs", "show", ran.json["run_id"], "--json")).json["path"] == ran.json["path"]


async def test_three_workers_at_once_make_three_announcements(machine: UserMachine):
    """Shows: E020, E021, E025, E036, E037."""
    wishes = [spawns(label=name) for name in ("a", "b", "c")]
    script = plays(tool_call_reply(*wishes), *[text_reply("On.")] * 4, worker=text_reply("1993."))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
        history = (await machine("subagent", "history", "--limit", "10", "--json")).json
    assert (ran.code, len(ran.json["children"]), len(history)) == (0, 3, 4)
    told = Path(ran.json["path"]).read_text()
    assert sorted(re.findall(r"\[Subagent: (\w)\] Complete\.", told)) == ["a", "b", "c"]
    with sqlite3.connect(machine.home / "ledger.db") as ledger:
        rows = ledger.execute("SELECT status, result FROM subagent_runs WHERE label != ''").fetchall()
    assert rows == [("completed", "1993.")] * 3


async def test_the_configuration_says_who_may_be_started_and_with_which_model(machine: UserMachine):
    """Shows: E018, E019, E036."""
    machine.write_config(
        agents={"defaults": {"subagents": {"allowAgents": ["general"], "model": "openai:small"}}}
    )
    machine.write_agent("poet", "model: openai:large\n", "You rhyme.\n")
    async with machine.serve_models(
        plays(
            tool_call_reply(spawns()), text_reply("Sent."), text_reply("Heard."), worker=text_reply("1993.")
        )
    ) as server:
        ran = await machine("run", "--json", "Go.")
        assert ran.code == 0
        (worker,) = [each for each in server.requests if of_worker(each)]
        assert worker.body["model"] == "small"
    async with machine.serve_models(
        plays(tool_call_reply(spawns()), text_reply("Alone, then."), worker=text_reply("never"))
    ):
        ran = await machine("run", "--json", "--agent", "poet", "Go.")
        assert (ran.json["text"], ran.json["children"]) == ("Alone, then.", [])
    told = Path(ran.json["path"]).read_text()
    assert '{"status":"forbidden","error":"poet may not be started' in told


async def test_arguments_that_cannot_be_are_answered_and_nothing_is_made(machine: UserMachine):
    """Shows: E002, C10."""
    wrong = [
        {"label": "x"},
        {"task": "a", "timeoutSeconds": -1},
        {"task": "a", "timeoutSeconds": "5"},
        {"task": "a", "cleanup": "burn"},
        {"task": "a", "thinking": "deep"},
        {"task": "a", "to": "b"},
    ]
    asked = tool_call_reply(*[("sessions_spawn", each) for each in wrong])
    async with machine.serve_models(plays(asked, text_reply("I see."), worker=text_reply("never"))):
        ran = await machine("run", "--json", "Go.")
    assert (ran.json["text"], ran.json["children"]) == ("I see.", [])
    told = Path(ran.json["path"]).read_text()
    assert told.count('{"status":"error","error":"') == len(wrong)
    assert not (Path(ran.json["path"]).parent / "agents").exists()


async def test_a_conversation_that_nobody_keeps_leaves_no_file_and_has_no_child_of_its_own(
    machine: UserMachine,
):
    """Shows: A011, A012, A065."""
    wish = {"preset": "general", "description": "look", "prompt": "Look."}
    script = [tool_call_reply(("PersistentAgent", wish)), text_reply("Alone, then.")]
    machine.write_config(approvals="auto")
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--forget", "--json", "Go.")
        assert (ran.code, ran.json["text"], ran.json["children"]) == (0, "Alone, then.", [])
        (result,) = [each for each in server.requests[1].messages if each["role"] == "tool"]
        assert result["content"] == "PersistentAgent requires parent persistent session"
        assert not Path(ran.json["path"]).exists()
        assert (await machine("sessions", "list", "--json")).json == []
        assert (await machine("runs", "history", "--json")).json == []
