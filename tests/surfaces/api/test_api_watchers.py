"""Watchers over HTTP: set beside a session, heard without asking, set aside; and agents set off by slash command and key."""

import asyncio
import json
from typing import Any

from api_fixture import ApiClient, OpenApi

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

QUICK = "[limits]\nwatch_quiet_seconds = 0.001\n"
WARNS = (
    "interject",
    {"severity": "warning", "reason": "It rewrites all of it.", "suggestion": "Change line 12 only."},
)


def watched(asked: CapturedRequest) -> FakeResponse:
    """The pair speaks up whenever it is told of a rewriting, and once for each time."""
    if "You sit beside somebody" not in asked.messages[0]["content"]:
        return text_reply("I rewrite it.")
    last = str(asked.messages[-1]["content"])
    return tool_call_reply(WARNS) if "I rewrite it." in last else text_reply("ok")


async def told(client: ApiClient, kind: str, *, after: int) -> dict[str, Any]:
    """The first event of a kind, as a stream tells it."""
    async with client.client.get("/api/events", params={"after": str(after), "deltas": "none"}) as stream:
        data = ""
        async for raw in stream.content:
            line = raw.decode().strip()
            data = line.removeprefix("data: ") if line.startswith("data: ") else data
            if data and not line:
                event = json.loads(data)
                if event["kind"] == kind:
                    return event
                data = ""
    raise AssertionError(kind)


async def test_what_a_watcher_says_comes_by_itself_and_is_set_aside(api: OpenApi):
    """Shows: D026, D031."""
    async with api(watched, settings=QUICK) as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['slug']}/watchers"
        begun = await client.post(path, {"agent": "pair", "trigger": "key"})
        assert (begun.status, begun.json["name"], begun.json["trigger"]) == (201, "pair#1", "key")
        assert (await client.post(path, {})).json == begun.json
        assert (await client.get(path)).json == (await client.get("/api/watchers")).json == [begun.json]
        seq = (await client.get("/api/health")).json["seq"]
        listening = asyncio.create_task(told(client, "interjection.posted", after=seq))
        await client.send_message(made["slug"], "Fix the typo")
        said = await listening
        assert (said["session"], said["severity"], said["reason"], said["suggestion"]) == (
            made["session_id"],
            "warning",
            "It rewrites all of it.",
            "Change line 12 only.",
        )
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 1
        (row,) = (await client.get("/api/inbox", session=made["slug"])).json
        assert (row["kind"], row["severity"], row["reason"], row["suggestion"], row["delivery"]) == (
            "interjection",
            "warning",
            "It rewrites all of it.",
            "Change line 12 only.",
            "pending",
        )
        assert (row["recipient"], row["capability"], row["sessionId"]) == (
            made["slug"],
            "watcher",
            begun.json["watcher"],
        )
        gone = await client.post(f"/api/inbox/{row['id']}/dismiss")
        assert (gone.status, gone.json["delivery"]) == (200, "delivered")
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 0
        assert (await client.post("/api/inbox/nothing/dismiss")).status == 404
        assert "It rewrites" not in str(await client.message_texts(made["slug"]))
        passed = await client.post(f"/api/inbox/{row['id']}/promote")
        assert (passed.status, passed.json["already_promoted"]) == (200, False)
        last = (await client.message_texts(made["slug"]))[-1]
        assert last.startswith("The user forwards this comment of the watcher pair to you:")
        assert "Change line 12 only." in last
        assert (await client.post(f"/api/inbox/{row['id']}/promote")).json["already_promoted"] is True


async def test_a_watcher_is_sent_away_and_hears_no_more(api: OpenApi):
    async with api(watched, settings=QUICK) as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['slug']}/watchers"
        assert (await client.delete(path)).status == 404
        begun = await client.post(path, {})
        (gone,) = (await client.delete(path)).json
        assert (gone["watching"], gone["watcher"]) == (False, begun.json["watcher"])
        assert (await client.get(path)).json == []
        await client.send_message(made["slug"], "Fix the typo")
        assert (await client.get("/api/runs", session=begun.json["watcher"])).json == []
        assert (await client.post(path, {"agent": "oracle"})).status == 403
        assert (await client.post(path, {"agent": "nobody"})).status == 404
        assert (await client.post(f"/api/sessions/{begun.json['watcher']}/watchers", {})).status == 403


async def test_the_same_agent_is_launched_by_command_key_and_tool_and_each_run_says_which(api: OpenApi):
    """Shows: D002."""
    spawns = ("spawn_subagent", {"agentId": "oracle", "prompt": "Think.", "capability": "subtask"})

    def model(asked: CapturedRequest) -> FakeResponse:
        if "You are asked when somebody is stuck" in asked.messages[0]["content"]:
            return text_reply("The cause is the clock.")
        return text_reply("Heard.") if asked.reply_count else tool_call_reply(spawns)

    async with api(model, settings='approvals = "auto"\n') as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['slug']}/children"
        runs: dict[str, str] = {}
        for trigger in ("command", "slash", "key"):
            begun = await client.post(
                path, {"agent": "oracle", "content": "Why?", "trigger": trigger}, key=trigger
            )
            assert (begun.status, begun.json["trigger"]) == (201, trigger)
            again = await client.post(
                path, {"agent": "oracle", "content": "Why?", "trigger": trigger}, key=trigger
            )
            assert again.json["run_id"] == begun.json["run_id"]
            runs[trigger] = begun.json["run_id"]
            ended = await client.wait_for_run(begun.json["run_id"])
            assert (ended["text"], ended["trigger"]) == ("The cause is the clock.", trigger)
        await client.send_message(made["slug"], "Ask the oracle.")
        rows = (await client.get("/api/runs")).json
        assert {row["trigger"] for row in rows if row["agent"] == "oracle"} == {
            "command",
            "slash",
            "key",
            "tool",
        }
        inbox = (await client.get("/api/inbox", session=made["slug"])).json
        mine = {row["runId"]: row for row in inbox}
        assert runs["command"] not in mine
        for trigger in ("slash", "key"):
            row = mine[runs[trigger]]
            assert (row["summary"], row["recipient"], row["status"]) == (
                "The cause is the clock.",
                made["slug"],
                "complete",
            )
            assert "oracle-" in row["transcript"]
        assert "The cause is the clock." not in await client.message_texts(made["slug"])


async def test_nobody_watches_a_session_that_was_deleted(api: OpenApi):
    async with api(watched, settings=QUICK) as client:
        made = await client.create_session()
        await client.post(f"/api/sessions/{made['slug']}/watchers", {})
        assert (await client.delete(f"/api/sessions/{made['slug']}")).status == 200
        assert (await client.get("/api/watchers")).json == []
