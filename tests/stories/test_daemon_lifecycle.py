"""The daemon: background runs, restart after a crash, stopping, addresses."""

import asyncio
import os
import signal
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from model_scripts import is_from_worker, script_with_worker
from user_machine import UserMachine, wait_until

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply
from retinue.worker.process_lock import ProcessLock

TRANSCRIPTS = "[!.]*/branches/main/session.md"
"""All transcripts, except of sessions that are being created: their folders begin with a dot."""
SPAWN = ("sessions_spawn", {"task": "Find the year.", "label": "year"})


async def stop_daemon(machine: UserMachine) -> None:
    assert (await machine("serve", "--stop", "--json")).code == 0


async def test_a_background_run_starts_a_daemon_that_executes_it(machine: UserMachine):
    """Shows: A005, E006."""
    main = [tool_call_reply(SPAWN), text_reply("Sent."), text_reply("1993, it says.")]
    async with machine.serve_models(script_with_worker(main, text_reply("1993."))):
        submitted = (await machine("run", "--background", "--json", "When?")).json
        assert submitted["status"] == "queued"
        shown = await machine.wait_for_end(submitted["run_id"])
        assert (shown["status"], shown["text"]) == ("done", "1993, it says.")
        socket = machine.home / "daemon.sock"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        again = (await machine("serve", "--detach", "--json")).json
        daemon = await daemon_client.ping_daemon(machine.home)
        assert daemon is not None
        assert (again["pid"], again["owner"]) == (daemon["pid"], daemon["owner"])
        await stop_daemon(machine)
        assert not socket.exists()
        assert await daemon_client.ping_daemon(machine.home) is None


async def test_a_restarted_daemon_resumes_the_runs_of_a_killed_one(machine: UserMachine):
    """Shows: P21, L015."""
    restarted = asyncio.Event()
    main: list[Any] = [tool_call_reply(SPAWN), text_reply("Sent."), text_reply("1993, it says.")]

    def script(asked: CapturedRequest) -> FakeResponse:
        if is_from_worker(asked):
            return text_reply("1993.", delay=0 if restarted.is_set() else 30)
        return main[min(asked.reply_count, 2)]

    async with machine.serve_models(script) as server:
        submitted = (await machine("run", "--background", "--json", "When?")).json
        await wait_until(lambda: any(is_from_worker(each) for each in server.requests))
        await wait_until(
            lambda: any("Sent." in path.read_text() for path in machine.sessions.glob(TRANSCRIPTS))
        )
        daemon = await daemon_client.ping_daemon(machine.home)
        assert daemon is not None
        os.kill(daemon["pid"], signal.SIGKILL)
        restarted.set()
        started = (await machine("serve", "--detach", "--json")).json
        assert started["pid"] != daemon["pid"]
        shown = await machine.wait_for_end(submitted["run_id"])
        await stop_daemon(machine)
    assert (shown["status"], shown["text"]) == ("done", "1993, it says.")
    transcript = Path(shown["path"]).read_text()
    assert transcript.count("[Subagent: year] Complete.") == 1


async def test_serve_stop_returns_when_the_daemon_has_ended_and_a_new_daemon_waits_for_that(
    machine: UserMachine,
):
    """Shows: K11."""
    async with machine.serve_models([text_reply("Done.", delay=2)]):
        submitted = (await machine("run", "--background", "--json", "Go.")).json
        first = await daemon_client.ping_daemon(machine.home)
        assert first is not None
        stopping = await machine.start("serve", "--stop", "--json")
        while (status := await daemon_client.ping_daemon(machine.home)) and status["accepts_runs"]:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.02)
        second = (await machine("serve", "--detach", "--json")).json
        await stopping.communicate()
        assert (stopping.returncode, second["pid"] == first["pid"]) == (0, False)
        assert not ProcessLock.is_alive(machine.home, first["owner"])
        shown = await machine.wait_for_end(submitted["run_id"])
        await stop_daemon(machine)
    assert (shown["status"], shown["text"], shown["attempts"]) == ("done", "Done.", 1)


async def test_a_home_has_one_daemon(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        await machine("serve", "--detach", "--json")
        second = await machine("serve")
        assert (second.code, "already" in second.err) == (3, True)
        await stop_daemon(machine)
        none = await machine("serve", "--stop")
        assert (none.code, "No daemon is running" in none.err) == (0, True)
        none = await machine("serve", "--stop", "--json")
        assert (none.code, none.json) == (0, {"stopped": False})


async def test_a_running_daemon_on_another_port_than_requested_is_reported(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        first = (await machine("serve", "--detach", "--port", "0", "--json")).json
        second = await machine("serve", "--detach", "--link", "--port", "1", "--json")
        assert (second.code, second.json["pid"], second.json["url"] != first["url"]) == (
            0,
            first["pid"],
            True,
        )
        assert f"on port {urlsplit(str(first['url'])).port}, not 1" in second.err
        await stop_daemon(machine)


@pytest.mark.parametrize("other", ["--detach", "--link"])
async def test_serve_stop_cannot_be_combined_with_other_options(machine: UserMachine, other: str):
    refused = await machine("serve", "--stop", other)
    assert (refused.code, "--stop cannot be combined" in refused.err) == (2, True)


async def test_only_addresses_beyond_loopback_require_allow_remote(machine: UserMachine):
    async with machine.serve_models([text_reply("x")]):
        started = (await machine("serve", "--detach", "--host", "127.0.0.2", "--port", "0", "--json")).json
        assert urlsplit(str(started["url"])).hostname == "127.0.0.2"
        await stop_daemon(machine)
    for host in ("128.0.0.1", "0.0.0.0", "::", "example.org"):
        refused = await machine("serve", "--host", host)
        assert (refused.code, "--allow-remote" in refused.err) == (2, True)


async def test_a_daemon_waits_for_its_executing_run_on_sigterm(machine: UserMachine):
    """Shows: K11."""
    async with machine.serve_models([text_reply("Done.", delay=1)]):
        submitted = (await machine("run", "--background", "--json", "Go.")).json
        await machine.wait_for_requests(1)
        daemon = await daemon_client.ping_daemon(machine.home)
        assert daemon is not None
        os.kill(daemon["pid"], signal.SIGTERM)
        await wait_until(lambda: not Path(f"/proc/{daemon['pid']}").exists())
        shown = (await machine("runs", "show", submitted["run_id"], "--json")).json
    assert (shown["status"], shown["text"], shown["attempts"]) == ("done", "Done.", 1)


async def test_an_answered_approval_is_followed_until_the_next_approval_of_the_daemons_run(
    machine: UserMachine,
):
    """After the first answer the agent requests a second approval, and the command returns with exit code 6."""
    machine.write_agent("asker", body="You ask.")
    machine.write_agent("boss", body="You delegate.")
    asker: list[Any] = [tool_call_reply(("write", {"path": f"{name}.txt", "content": "x"})) for name in "ab"]
    asker.append(text_reply("Both are written, as I was told."))
    boss: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "asker", "task_prompt": "Write."})),
        text_reply("Done."),
    ]

    def script(asked: CapturedRequest) -> FakeResponse:
        return (asker if "You ask." in asked.body["messages"][0]["content"] else boss)[asked.reply_count]

    async with machine.serve_models(script):
        submitted = (await machine("run", "--background", "--agent", "boss", "--json", "Go.")).json
        for code in (6, 0):
            while not (waiting := (await machine("approvals", "list", "--json")).json):  # noqa: ASYNC110  (the same)
                await asyncio.sleep(0.1)
            assert (await machine("approvals", "answer", waiting[0]["id"], "allow", "--json")).code == code
        assert (await machine.wait_for_end(submitted["run_id"]))["status"] == "done"
        await stop_daemon(machine)
