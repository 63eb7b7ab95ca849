"""Watchers, seen from outside: set beside a conversation by a command, heard at a terminal, and alive after a kill."""

import asyncio
import sqlite3
from pathlib import Path

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

QUICK = {"limits": {"watch_quiet_seconds": 0.01}}
WARNS = ("interject", {"severity": "warning", "reason": "It drifts.", "suggestion": "Go back to line 12."})


def of_pair(asked: CapturedRequest) -> bool:
    return "You sit beside somebody" in asked.messages[0]["content"]


def latest(asked: CapturedRequest) -> str:
    return str([each["content"] for each in asked.messages if each["role"] == "user"][-1])


async def test_a_command_sets_a_watcher_beside_a_session_and_what_it_says_is_shown_listed_and_set_aside(
    machine: UserMachine,
):
    """Shows: D031, D032."""
    machine.write_config(**QUICK)

    def script(asked: CapturedRequest) -> FakeResponse:
        if not of_pair(asked):
            return text_reply("I rewrite it.")
        return tool_call_reply(WARNS) if asked.messages[-1]["role"] == "user" else text_reply("ok")

    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Fix the typo.")).json
        watching = await machine("watch", first["slug"])
        assert watching.out == f"pair#1 watching {first['slug']}\n"
        (row,) = (await machine("watch", "list", "--json")).json
        assert (row["name"], row["slug"], row["watching"], row["trigger"]) == (
            "pair#1",
            first["slug"],
            True,
            "command",
        )
        sent = await machine("send", first["slug"], "Go on.")
        assert sent.out == "I rewrite it.\n"
        assert "pair#1 warning: It drifts. → Go back to line 12." in sent.err
        (said,) = (await machine("inbox", "--json")).json
        assert (said["kind"], said["severity"], said["reason"], said["suggestion"], said["recipient"]) == (
            "interjection",
            "warning",
            "It drifts.",
            "Go back to line 12.",
            first["slug"],
        )
        gone = (await machine("inbox", "--dismiss", said["id"], "--json")).json
        assert gone["delivery"] == "delivered"
        assert (await machine("inbox", "--dismiss", "nothing")).code == 7
        assert "It drifts." not in Path(first["path"]).read_text()
        assert (await machine("unwatch", first["slug"])).out == f"pair#1 stopped watching {first['slug']}\n"
        assert (await machine("unwatch", first["slug"])).code == 7
        assert (await machine("watch", first["slug"], "--agent", "oracle")).code == 3
        quiet = await machine("send", first["slug"], "And on.")
        assert "pair" not in quiet.err.replace(first["slug"], "")


async def test_a_watcher_goes_on_after_a_kill_and_is_told_nothing_twice(machine: UserMachine):
    """The daemon dies while the watcher's model is asked, and once more while the conversation is at work: afterwards the
    same watch goes on, and every word stood in just one task of it."""
    machine.write_config(**QUICK)
    hold, asked_pair = asyncio.Event(), asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if of_pair(asked):
            asked_pair.set()
            if "Say one." in latest(asked):
                await hold.wait()
            return text_reply("ok")
        words = latest(asked)
        return text_reply({"Say one.": "One.", "Say two.": "Two.", "Say three.": "Three."}.get(words, "Hm."))

    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Begin.")).json
        await machine("watch", first["slug"])
        async with machine.daemon() as daemon:
            await machine("run", "--background", "--session", first["slug"], "Say one.")
            await asyncio.wait_for(asked_pair.wait(), 60)
            await machine.kill(daemon)
        hold.set()
        asked_pair.clear()
        async with machine.daemon() as daemon:
            await machine("run", "--background", "--session", first["slug"], "Say two.")
            await until_told(machine, first["slug"], "Two.")
            await machine.kill(daemon)
        (row,) = (await machine("watch", "list", "--json")).json
        assert (row["name"], row["watching"]) == ("pair#1", True)
        await machine("send", first["slug"], "Say three.")
        tasks = await until_told(machine, first["slug"], "Three.")
    told = "\n".join(tasks)
    for words in ("Say one.", "One.", "Say two.", "Two.", "Say three.", "Three."):
        assert told.count(f"\n{words}\n") == 1, words


async def until_told(machine: UserMachine, slug: str, words: str) -> list[str]:
    """The tasks of the watcher's runs, when one of them holds these words and all have ended."""
    async with asyncio.timeout(60):
        while True:
            with sqlite3.connect(machine.home / "ledger.db") as ledger:
                sql = "SELECT task, status FROM runs WHERE door='watch' AND label LIKE ? ORDER BY id"
                rows = ledger.execute(sql, (f"%{slug}",)).fetchall()
            ledger.close()
            if any(words in task for task, _ in rows) and all(status == "done" for _, status in rows):
                return [task for task, _ in rows]
            await asyncio.sleep(0.05)
