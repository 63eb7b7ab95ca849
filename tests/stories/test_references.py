"""References in commands: a run by any name of its session, and a session by any of its runs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SPAWN_CALL = ("sessions_spawn", {"task": "Find the year.", "label": "xfs"})
DELEGATE_CALL = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})


def is_from_worker(request: CapturedRequest) -> bool:
    return "You are a worker agent" in request.body["messages"][0]["content"]


async def wait_for_live_runs(machine: UserMachine, *statuses: str) -> list[dict[str, Any]]:
    """Wait until the live runs have these statuses, oldest first, and return them."""
    while True:
        live = sorted((await machine("runs", "list", "--json")).json, key=lambda run: run["run_id"])
        if [run["status"] for run in live] == [*statuses]:
            return live


async def test_a_run_can_be_referred_to_by_any_name_of_its_session(machine: UserMachine):
    """If no run is live, the newest one is meant."""
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


async def test_a_worker_can_be_referred_to_by_the_key_of_its_session(machine: UserMachine):
    async def script(request: CapturedRequest) -> FakeResponse:
        if is_from_worker(request):
            return text_reply("1993.")
        return text_reply("Received.") if request.reply_count else tool_call_reply(SPAWN_CALL)

    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
        shown = (await machine("runs", "show", "--json", ran["children"][0])).json
        assert shown["key"].startswith("agent:general:subagent:")
        assert (await machine("runs", "show", "--json", shown["key"])).json["run_id"] == shown["run_id"]
        assert (await machine("sessions", "show", "--json", shown["run_id"])).json["key"] == shown["key"]


@pytest.mark.parametrize(("verb", "reason"), [("cancel", "user_cancel"), ("interrupt", "interrupted")])
async def test_cancel_and_interrupt_apply_to_the_running_run_of_a_session(
    machine: UserMachine, verb: str, reason: str
):
    """Neither queued nor ended runs of the session are affected."""
    never_set = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if request.messages[-1]["content"] == "More":
            await never_set.wait()
        return text_reply("Said.")

    async with machine.serve_models(script), machine.daemon():
        first = (await machine("run", "--json", "Hi")).json
        for text in ("More", "Still more"):
            queued = await machine("run", "--json", "--background", "--session", first["slug"], text)
            assert queued.code == 0, queued.err
        live, _ = await wait_for_live_runs(machine, "running", "queued")
        stopped = (await machine("runs", verb, "--json", first["slug"])).json
        assert (stopped["run_id"], stopped["status"], stopped["reason"]) == (
            live["run_id"],
            "cancelled",
            reason,
        )


async def test_detach_and_resume_accept_a_session(machine: UserMachine):
    machine.write_agent("helper", "", "You help.\n")
    machine.write_config(approvals="auto")
    child_may_reply = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if "You help." in request.body["messages"][0]["content"]:
            await child_may_reply.wait()
            return text_reply("Here: x.")
        return text_reply("It goes on.") if request.reply_count else tool_call_reply(DELEGATE_CALL)

    async with machine.serve_models(script):
        async with machine.daemon() as daemon:
            running = await machine.start("run", "--json", "Where is x?")
            parent, child = await wait_for_live_runs(machine, "waiting", "running")
            detached = await machine("runs", "detach", "--json", child["slug"])
            assert (detached.code, detached.json["run_id"]) == (0, child["run_id"]), detached.err
            await machine.kill(daemon)
            await machine.kill(running)
        child_may_reply.set()
        resumed = await machine("runs", "resume", "--json", parent["path"])
        assert resumed.code == 0, resumed.err
        assert parent["run_id"] in [run["run_id"] for run in resumed.json]


async def test_runs_show_of_a_session_without_runs_is_an_error(machine: UserMachine):
    async with machine.serve_models([]), machine.open() as app:
        session = await app.sessions.create("general", workspace=str(machine.folder))
        shown = await machine("runs", "show", session.slug)
    assert (shown.code, shown.out) == (7, "")
    assert f"{session.slug} has no run yet. Start one with `retinue send {session.slug} TEXT`" in shown.err


async def test_a_session_can_be_referred_to_by_any_of_its_runs(machine: UserMachine):
    """The whole id or an unambiguous prefix is accepted."""
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
        for command in (
            ("scope", "show", name),
            ("scope", "test", name, "read", "notes.md"),
            ("inbox", name),
            ("tools", "list", "--session", name),
            ("skills", "list", "--session", name),
            ("attach", name),
            ("watch", "list", name),
        ):
            result = await machine(*command)
            assert result.code == 0, (command, result.err)
        sent = (await machine("send", "--json", ran["run_id"], "More")).json
        queued = (await machine("run", "--json", "--session", ran["run_id"][:20], "Still more")).json
        assert sent["session_id"] == queued["session_id"] == ran["session_id"]


async def test_an_ambiguous_reference_is_refused_with_the_matches(machine: UserMachine):
    """The whole id of a run is never ambiguous, even if the alias of a session begins with it."""
    async with machine.serve_models([text_reply("One."), text_reply("Two.")]), machine.open() as app:
        first = await app.run("Hi", workspace=machine.folder)
        second = await app.run("Hi", workspace=machine.folder)
        common = next(n for n in range(26) if first.id[n] != second.id[n])
        for command in (("sessions", "show"), ("runs", "show")):
            refused = await machine(*command, first.id[:common])
            assert (refused.code, refused.out) == (2, "")
            assert first.id in refused.err
            assert second.id in refused.err
        other = await app.sessions.find(second.session_id)
        await app.context.store.update(other, aliases=(f"{first.id}-x",))
        assert (await machine("sessions", "show", "--json", first.id)).json["session_id"] == first.session_id
        assert (await machine("runs", "show", "--json", first.id)).json["run_id"] == first.id
        for command in (("sessions", "show"), ("runs", "show")):
            refused = await machine(*command, first.id[:24])
            assert refused.code == 2, refused.out
            assert first.id in refused.err
            assert second.slug in refused.err


async def test_a_deleted_session_can_be_restored_by_the_id_of_its_run(machine: UserMachine):
    async with machine.serve_models([text_reply("One.")]):
        ran = (await machine("run", "--json", "Hi")).json
        await machine("sessions", "delete", ran["run_id"])
        deleted = await machine("sessions", "show", ran["run_id"])
        assert (deleted.code, deleted.out) == (7, "")
        assert f"retinue sessions restore {ran['session_id']}" in deleted.err
        shown = await machine("runs", "show", "--json", ran["session_id"])
        assert shown.json["run_id"] == ran["run_id"]
        restored = await machine("sessions", "restore", "--json", ran["run_id"][:20])
        assert restored.json["path"] == ran["path"]
