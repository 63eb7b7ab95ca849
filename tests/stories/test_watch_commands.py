"""Watch commands: starting and stopping a watcher, its interjections, and watchers after a kill."""

import asyncio
import json
import sqlite3
from pathlib import Path

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SHORT_DELAY = {"limits": {"watch_quiet_seconds": 0.01}}
WARNING_CALL = (
    "interject",
    {"severity": "warning", "reason": "It drifts.", "suggestion": "Go back to line 12."},
)


def is_from_watcher(request: CapturedRequest) -> bool:
    return "You watch the work of another agent" in request.messages[0]["content"]


def last_user_message(request: CapturedRequest) -> str:
    return str([each["content"] for each in request.messages if each["role"] == "user"][-1])


async def test_a_watcher_started_by_a_command_interjects_and_its_interjection_can_be_dismissed(
    machine: UserMachine,
):
    """Shows: D031, D032."""
    machine.write_config(**SHORT_DELAY)

    def script(request: CapturedRequest) -> FakeResponse:
        if not is_from_watcher(request):
            return text_reply("I rewrite it.")
        return tool_call_reply(WARNING_CALL) if request.messages[-1]["role"] == "user" else text_reply("ok")

    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Fix the typo.")).json
        watch = await machine("watch", first["slug"])
        assert watch.out == f"Pair programmer#1 watching {first['slug']}\n"
        (row,) = (await machine("watch", "list", "--json")).json
        assert (row["name"], row["slug"], row["watching"], row["trigger"]) == (
            "pair#1",
            first["slug"],
            True,
            "command",
        )
        sent = await machine("send", first["slug"], "Go on.")
        assert sent.out == "I rewrite it.\n"
        assert "Pair programmer#1 warning: It drifts. → Go back to line 12." in sent.err
        (interjection,) = (await machine("inbox", "--json")).json
        assert (
            interjection["kind"],
            interjection["severity"],
            interjection["reason"],
            interjection["suggestion"],
            interjection["recipient"],
        ) == (
            "interjection",
            "warning",
            "It drifts.",
            "Go back to line 12.",
            first["slug"],
        )
        dismissed = (await machine("inbox", "--dismiss", interjection["id"], "--json")).json
        assert dismissed["delivery"] == "delivered"
        assert (await machine("inbox", "--dismiss", "nothing")).code == 7
        assert "It drifts." not in Path(first["path"]).read_text()
        assert (
            await machine("unwatch", first["slug"])
        ).out == f"Pair programmer#1 stopped watching {first['slug']}\n"
        assert (await machine("unwatch", first["slug"])).code == 7
        assert (await machine("watch", first["slug"], "--agent", "oracle")).code == 3
        quiet = await machine("send", first["slug"], "And on.")
        assert "pair" not in quiet.err.replace(first["slug"], "")


async def test_a_watcher_continues_after_kills_and_receives_each_entry_once(machine: UserMachine):
    """The daemon is killed during a request of the watcher, and again while the watched session has a run."""
    machine.write_config(**SHORT_DELAY)
    watcher_may_reply, watcher_requested = asyncio.Event(), asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if is_from_watcher(request):
            watcher_requested.set()
            if "Say one." in last_user_message(request):
                await watcher_may_reply.wait()
            return text_reply("ok")
        text = last_user_message(request)
        return text_reply({"Say one.": "One.", "Say two.": "Two.", "Say three.": "Three."}.get(text, "Hm."))

    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Begin.")).json
        await machine("watch", first["slug"])
        async with machine.daemon() as daemon:
            await machine("run", "--background", "--session", first["slug"], "Say one.")
            await asyncio.wait_for(watcher_requested.wait(), 60)
            await machine.kill(daemon)
        watcher_may_reply.set()
        watcher_requested.clear()
        async with machine.daemon() as daemon:
            await machine("run", "--background", "--session", first["slug"], "Say two.")
            await wait_for_watcher_task(machine, first["slug"], "Two.")
            await machine.kill(daemon)
        (row,) = (await machine("watch", "list", "--json")).json
        assert (row["name"], row["watching"]) == ("pair#1", True)
        await machine("send", first["slug"], "Say three.")
        tasks = await wait_for_watcher_task(machine, first["slug"], "Three.")
    all_tasks = "\n".join(tasks)
    for text in ("Say one.", "One.", "Say two.", "Two.", "Say three.", "Three."):
        assert all_tasks.count(f"\n{text}\n") == 1, text


async def wait_for_watcher_task(machine: UserMachine, slug: str, text: str) -> list[str]:
    """Wait until a task of the watcher contains this text and all its runs have ended; return the tasks."""
    async with asyncio.timeout(60):
        while True:
            with sqlite3.connect(machine.home / "ledger.db") as ledger:
                sql = "SELECT task, status FROM runs WHERE door='watch' AND label LIKE ? ORDER BY id"
                rows = ledger.execute(sql, (f"%{slug}",)).fetchall()
            ledger.close()
            if any(text in task for task, _ in rows) and all(status == "done" for _, status in rows):
                return [task for task, _ in rows]
            await asyncio.sleep(0.05)


async def test_an_agent_starts_a_watcher_of_its_own_conversation(machine: UserMachine):
    """Shows: D002, D032."""
    machine.write_config(**SHORT_DELAY)
    start = ("spawn_subagent", {"agentId": "pair", "capability": "watcher", "prompt": "Watch for typos."})

    def script(request: CapturedRequest) -> FakeResponse:
        if is_from_watcher(request):
            return (
                tool_call_reply(WARNING_CALL) if request.messages[-1]["role"] == "user" else text_reply("ok")
            )
        return text_reply("I rewrite it.") if request.reply_count else tool_call_reply(start)

    async with machine.serve_models(script) as server:
        ran = (await machine("run", "--json", "Fix the typo.")).json
        result = json.loads(
            next(
                str(each["content"])
                for request in server.requests
                for each in request.messages
                if each["role"] == "tool" and "watchId" in str(each["content"])
            )
        )
        (watch,) = (await machine("watch", "list", "--json")).json
    assert (result["status"], result["sessionId"], result["name"]) == ("waiting", watch["watcher"], "pair#1")
    assert watch["slug"] == ran["slug"]
    watcher_requests = [each for each in server.requests if is_from_watcher(each)]
    assert "Watch for typos." in watcher_requests[0].messages[0]["content"]
    assert "I rewrite it." in "".join(map(last_user_message, watcher_requests))
    interjection = (await machine("inbox", "--json")).json[0]
    assert (interjection["kind"], interjection["reason"]) == ("interjection", "It drifts.")
