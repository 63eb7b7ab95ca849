"""Names, seen from outside: a run is meant by any name of its session, and a session by any run of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SPAWNS = ("sessions_spawn", {"task": "Find the year.", "label": "xfs"})
HAND_ON = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})


def of_worker(asked: CapturedRequest) -> bool:
    return "You are a worker agent" in asked.body["messages"][0]["content"]


async def at_work(machine: UserMachine, *statuses: str) -> list[dict[str, Any]]:
    """The live runs, the oldest first, once they stand so."""
    while True:
        live = sorted((await machine("runs", "list", "--json")).json, key=lambda run: run["run_id"])
        if [run["status"] for run in live] == [*statuses]:
            return live


async def test_a_run_is_meant_by_any_name_of_its_session(machine: UserMachine):
    """Of several the newest, where none is live."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]):
        first = (await machine("run", "--json", "Hi")).json
        second = (await machine("run", "--json", "--session", first["slug"], "More")).json
        assert first["run_id"] != second["run_id"]
        path = Path(first["path"])
        for name in (
            first["session_id"], first["session_id"][:18], first["slug"], first["slug"][:-2], first["key"],
            str(path), str(path.parent), str(path.parent.parent.parent),
        ):  # fmt: skip
            shown = await machine("runs", "show", "--json", name)
            assert shown.json["run_id"] == second["run_id"], name
        waited = await machine("wait", "--json", first["slug"])
        assert [run["run_id"] for run in waited.json] == [second["run_id"]]
        assert (await machine("subagent", "show", "--json", first["run_id"])).json["text"] == "One."


async def test_a_worker_is_meant_by_the_key_of_its_session(machine: UserMachine):
    async def script(asked: CapturedRequest) -> FakeResponse:
        if of_worker(asked):
            return text_reply("1993.")
        return text_reply("Heard.") if asked.reply_count else tool_call_reply(SPAWNS)

    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
        shown = (await machine("runs", "show", "--json", ran["children"][0])).json
        assert shown["key"].startswith("agent:general:subagent:")
        assert (await machine("runs", "show", "--json", shown["key"])).json["run_id"] == shown["run_id"]
        assert (await machine("sessions", "show", "--json", shown["run_id"])).json["key"] == shown["key"]


@pytest.mark.parametrize(("verb", "reason"), [("cancel", "user_cancel"), ("interrupt", "interrupted")])
async def test_a_session_means_the_run_that_it_is_at(machine: UserMachine, verb: str, reason: str):
    """And neither the newer ones that wait their turn behind it nor the older ones that have ended."""
    never = asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if asked.messages[-1]["content"] == "More":
            await never.wait()
        return text_reply("Said.")

    async with machine.serve_models(script), machine.daemon():
        first = (await machine("run", "--json", "Hi")).json
        for text in ("More", "Still more"):
            again = await machine("run", "--json", "--background", "--session", first["slug"], text)
            assert again.code == 0, again.err
        live, _ = await at_work(machine, "running", "queued")
        stopped = (await machine("runs", verb, "--json", first["slug"])).json
        assert (stopped["run_id"], stopped["status"], stopped["reason"]) == (
            live["run_id"],
            "cancelled",
            reason,
        )


async def test_a_session_means_the_run_that_is_sent_away_or_gone_on_with(machine: UserMachine):
    machine.write_agent("helper", "", "You help.\n")
    machine.write_config(approvals="auto")
    on = asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "You help." in asked.body["messages"][0]["content"]:
            await on.wait()
            return text_reply("Here: x.")
        return text_reply("It goes on.") if asked.reply_count else tool_call_reply(HAND_ON)

    async with machine.serve_models(script):
        async with machine.daemon() as daemon:
            running = await machine.start("run", "--json", "Where is x?")
            parent, child = await at_work(machine, "waiting", "running")
            detached = await machine("runs", "detach", "--json", child["slug"])
            assert (detached.code, detached.json["run_id"]) == (0, child["run_id"]), detached.err
            await machine.kill(daemon)
            await machine.kill(running)
        on.set()
        resumed = await machine("runs", "resume", "--json", parent["path"])
        assert resumed.code == 0, resumed.err
        assert parent["run_id"] in [run["run_id"] for run in resumed.json]


async def test_a_session_that_has_had_no_run_says_so(machine: UserMachine):
    async with machine.serve_models([]), machine.open() as app:
        session = await app.sessions.create("general", workspace=str(machine.folder))
        shown = await machine("runs", "show", session.slug)
    assert (shown.code, shown.out) == (7, "")
    assert f"{session.slug} has no run yet. Start one with `retinue send {session.slug} TEXT`" in shown.err


async def test_a_session_is_meant_by_any_run_of_it(machine: UserMachine):
    """By its id, or a beginning that is of no other's."""
    async with machine.serve_models([text_reply("One."), text_reply("Two."), text_reply("Three.")]):
        ran = (await machine("run", "--json", "Hi")).json
        for name in (ran["run_id"], ran["run_id"][:2]):
            shown = await machine("sessions", "show", "--json", name)
            assert shown.json["session_id"] == ran["session_id"]
        name = ran["run_id"][:12]
        renamed = await machine("sessions", "rename", "--json", name, "Project X")
        assert (renamed.json["session_id"], renamed.json["name"]) == (ran["session_id"], "Project X")
        assert "One." in (await machine("sessions", "export", name)).out
        assert (await machine("sessions", "open", name)).out.strip() == ran["path"]
        for words in (
            ("scope", "show", name),
            ("scope", "test", name, "read", "notes.md"),
            ("inbox", name),
            ("tools", "list", "--session", name),
            ("skills", "list", "--session", name),
            ("attach", name),
            ("watch", "list", name),
        ):
            done = await machine(*words)
            assert done.code == 0, (words, done.err)
        sent = (await machine("send", "--json", ran["run_id"], "More")).json
        again = (await machine("run", "--json", "--session", ran["run_id"][:20], "Still more")).json
        assert sent["session_id"] == again["session_id"] == ran["session_id"]


async def test_what_could_be_several_is_refused_with_their_names(machine: UserMachine):
    """A run's whole id is never one of several, though a session's name begins with it."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]), machine.open() as app:
        first = await app.run("Hi", workspace=machine.folder)
        second = await app.run("Hi", workspace=machine.folder)
        common = next(n for n in range(26) if first.id[n] != second.id[n])
        for words in (("sessions", "show"), ("runs", "show")):
            told = await machine(*words, first.id[:common])
            assert (told.code, told.out) == (2, "")
            assert first.id in told.err
            assert second.id in told.err
        other = await app.sessions.find(second.session_id)
        await app.context.store.update(other, aliases=(f"{first.id}-x",))
        assert (await machine("sessions", "show", "--json", first.id)).json["session_id"] == first.session_id
        assert (await machine("runs", "show", "--json", first.id)).json["run_id"] == first.id
        for words in (("sessions", "show"), ("runs", "show")):
            told = await machine(*words, first.id[:24])
            assert told.code == 2, told.out
            assert first.id in told.err
            assert second.slug in told.err


async def test_a_session_that_is_gone_is_brought_back_by_its_run(machine: UserMachine):
    async with machine.serve_models([text_reply("One.")]):
        ran = (await machine("run", "--json", "Hi")).json
        await machine("sessions", "delete", ran["run_id"])
        gone = await machine("sessions", "show", ran["run_id"])
        assert (gone.code, gone.out) == (7, "")
        assert f"retinue sessions restore {ran['session_id']}" in gone.err
        shown = await machine("runs", "show", "--json", ran["session_id"])
        assert shown.json["run_id"] == ran["run_id"]
        back = await machine("sessions", "restore", "--json", ran["run_id"][:20])
        assert back.json["path"] == ran["path"]
