"""The daemon from outside: it works what is left to it, goes on after a death, and ends without losing anything."""

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest, Script
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply
from retinue.worker.process_lock import ProcessLock

TOP = "[!.]*/branches/main/session.md"
"""Conversations that are there; one that is still being made has a name with a dot."""
SPAWN = ("sessions_spawn", {"task": "Find the year.", "label": "year"})


def plays(main: list[FakeResponse], worker: FakeResponse) -> Script:
    """The worker is done when the main agent speaks again and not before: else that would hear of it a turn earlier."""
    spoken = asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "You are a worker agent" in asked.body["messages"][0]["content"]:
            await spoken.wait()
            return worker
        if asked.reply_count:
            spoken.set()
        return main[min(asked.reply_count, len(main) - 1)]

    return script


async def ended(machine: UserMachine, run: str) -> dict[str, Any]:
    """Until the run has ended, whoever works it."""
    while True:
        shown = (await machine("runs", "show", run, "--json")).json
        if shown["status"] not in ("queued", "running", "waiting"):
            return shown
        await asyncio.sleep(0.1)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  (another process does it: nothing to wait on)
        await asyncio.sleep(0.02)


async def stopped(machine: UserMachine) -> None:
    assert (await machine("serve", "--stop", "--json")).code == 0


async def test_a_run_in_the_background_is_worked_by_a_daemon_that_is_started_for_it(machine: UserMachine):
    """Shows: A005, E006."""
    async with machine.serve_models(
        plays(
            [tool_call_reply(SPAWN), text_reply("Sent."), text_reply("1993, it says.")], text_reply("1993.")
        )
    ):
        left = (await machine("run", "--background", "--json", "When?")).json
        assert left["status"] == "queued"
        shown = await ended(machine, left["run_id"])
        assert (shown["status"], shown["text"]) == ("done", "1993, it says.")
        socket = machine.home / "daemon.sock"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        again = (await machine("serve", "--detach", "--json")).json
        now = await daemon_client.ping_daemon(machine.home)
        assert now is not None
        assert (again["pid"], again["owner"]) == (now["pid"], now["owner"])
        await stopped(machine)
        assert not socket.exists()
        assert await daemon_client.ping_daemon(machine.home) is None


async def test_a_daemon_that_was_killed_goes_on_where_it_was_when_it_starts_again(machine: UserMachine):
    """Shows: P21, L015."""
    gate = asyncio.Event()
    main: list[Any] = [tool_call_reply(SPAWN), text_reply("Sent."), text_reply("1993, it says.")]

    def script(asked: CapturedRequest) -> FakeResponse:
        if "You are a worker agent" in asked.body["messages"][0]["content"]:
            return text_reply("1993.", delay=0 if gate.is_set() else 30)
        return main[min(asked.reply_count, 2)]

    async with machine.serve_models(script) as server:
        left = (await machine("run", "--background", "--json", "When?")).json
        await until(lambda: any("worker agent" in json.dumps(each.body) for each in server.requests))
        await until(lambda: any("Sent." in path.read_text() for path in machine.sessions.glob(TOP)))
        daemon = await daemon_client.ping_daemon(machine.home)
        assert daemon is not None
        os.kill(daemon["pid"], signal.SIGKILL)
        gate.set()
        started = (await machine("serve", "--detach", "--json")).json
        assert started["pid"] != daemon["pid"]
        shown = await ended(machine, left["run_id"])
        await stopped(machine)
    assert (shown["status"], shown["text"]) == ("done", "1993, it says.")
    told = Path(shown["path"]).read_text()
    assert told.count("[Subagent: year] Complete.") == 1


async def test_a_daemon_that_is_told_to_stop_is_gone_when_that_is_said_and_another_waits_for_it(
    machine: UserMachine,
):
    """Shows: K11."""
    async with machine.serve_models([text_reply("Done.", delay=2)]):
        left = (await machine("run", "--background", "--json", "Go.")).json
        first = await daemon_client.ping_daemon(machine.home)
        assert first is not None
        stopping = await machine.start("serve", "--stop", "--json")
        while (now := await daemon_client.ping_daemon(machine.home)) and now["accepts_runs"]:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.02)
        second = (await machine("serve", "--detach", "--json")).json
        await stopping.communicate()
        assert (stopping.returncode, second["pid"] == first["pid"]) == (0, False)
        assert not ProcessLock.is_alive(machine.home, first["owner"])
        shown = await ended(machine, left["run_id"])
        await stopped(machine)
    assert (shown["status"], shown["text"], shown["attempts"]) == ("done", "Done.", 1)


async def test_a_home_has_one_daemon(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        await machine("serve", "--detach", "--json")
        second = await machine("serve")
        assert (second.code, "already" in second.err) == (3, True)
        await stopped(machine)
        none = await machine("serve", "--stop")
        assert (none.code, "No daemon is running" in none.err) == (0, True)
        none = await machine("serve", "--stop", "--json")
        assert (none.code, none.json) == (0, {"stopped": False})


async def test_a_daemon_on_another_port_than_was_asked_for_is_told_of(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        there = (await machine("serve", "--detach", "--port", "0", "--json")).json
        second = await machine("serve", "--detach", "--link", "--port", "1", "--json")
        assert (second.code, second.json["pid"], second.json["url"] != there["url"]) == (
            0,
            there["pid"],
            True,
        )
        assert f"on port {urlsplit(str(there['url'])).port}, not 1" in second.err
        await stopped(machine)


@pytest.mark.parametrize("other", ["--detach", "--link"])
async def test_stopping_a_daemon_goes_with_no_other_wish(machine: UserMachine, other: str):
    both = await machine("serve", "--stop", other)
    assert (both.code, "--stop cannot be combined" in both.err) == (2, True)


async def test_every_address_that_only_this_machine_reaches_needs_no_leave(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        there = (await machine("serve", "--detach", "--host", "127.0.0.2", "--port", "0", "--json")).json
        assert urlsplit(str(there["url"])).hostname == "127.0.0.2"
        await stopped(machine)
    for host in ("128.0.0.1", "0.0.0.0", "::", "example.org"):
        far = await machine("serve", "--host", host)
        assert (far.code, "--allow-remote" in far.err) == (2, True)


async def test_a_signal_lets_what_runs_end_and_leaves_the_rest_to_the_next_start(machine: UserMachine):
    """Shows: K11."""
    async with machine.serve_models([text_reply("Done.", delay=1)]) as server:
        left = (await machine("run", "--background", "--json", "Go.")).json
        await until(lambda: bool(server.requests))
        daemon = await daemon_client.ping_daemon(machine.home)
        assert daemon is not None
        os.kill(daemon["pid"], signal.SIGTERM)
        await until(lambda: not Path(f"/proc/{daemon['pid']}").exists())
        shown = (await machine("runs", "show", left["run_id"], "--json")).json
    assert (shown["status"], shown["text"], shown["attempts"]) == ("done", "Done.", 1)


async def test_an_answer_to_a_daemons_agent_is_followed_until_the_next_question(machine: UserMachine):
    """Its tree waits for a second answer at once: whoever gave the first is told so, and not kept waiting for it."""
    machine.write_agent("asker", body="You ask.")
    machine.write_agent("boss", body="You hand on.")
    asker: list[Any] = [tool_call_reply(("write", {"path": f"{name}.txt", "content": "x"})) for name in "ab"]
    asker.append(text_reply("Both are written, as I was told."))
    boss: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "asker", "task_prompt": "Write."})),
        text_reply("Done."),
    ]

    def script(asked: CapturedRequest) -> FakeResponse:
        return (asker if "You ask." in asked.body["messages"][0]["content"] else boss)[asked.reply_count]

    async with machine.serve_models(script):
        left = (await machine("run", "--background", "--agent", "boss", "--json", "Go.")).json
        for code in (6, 0):
            while not (waiting := (await machine("approvals", "list", "--json")).json):  # noqa: ASYNC110  (the same)
                await asyncio.sleep(0.1)
            assert (await machine("approvals", "answer", waiting[0]["id"], "allow", "--json")).code == code
        assert (await ended(machine, left["run_id"]))["status"] == "done"
        await stopped(machine)
