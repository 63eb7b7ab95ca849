"""Watchers over HTTP, and agents started by slash command and key."""

import asyncio
import json
from typing import Any

from api_fixture import ApiClient, OpenApi

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SHORT_QUIET_TIME = "[limits]\nwatch_quiet_seconds = 0.001\n"
WARNING_CALL = (
    "interject",
    {"severity": "warning", "reason": "It rewrites all of it.", "suggestion": "Change line 12 only."},
)


def answer_as_pair(request: CapturedRequest) -> FakeResponse:
    """The pair agent warns once about each message that announces a rewrite."""
    if "You watch the work of another agent" not in request.messages[0]["content"]:
        return text_reply("I rewrite it.")
    last = str(request.messages[-1]["content"])
    return tool_call_reply(WARNING_CALL) if "I rewrite it." in last else text_reply("ok")


async def wait_for_stream_event(client: ApiClient, kind: str, *, after: int) -> dict[str, Any]:
    """Return the first event of a kind from the event stream."""
    async with client.http.get("/api/events", params={"after": str(after), "deltas": "none"}) as stream:
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


async def test_a_watcher_comments_without_being_asked_and_its_comment_can_be_dismissed_or_promoted(
    api: OpenApi,
):
    """Shows: D026, D031."""
    async with api(answer_as_pair, settings=SHORT_QUIET_TIME) as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['slug']}/watchers"
        watcher = await client.post(path, {"agent": "pair", "trigger": "key"})
        assert (watcher.status, watcher.json["name"], watcher.json["trigger"]) == (201, "pair#1", "key")
        assert (await client.post(path, {})).json == watcher.json
        assert (await client.get(path)).json == (await client.get("/api/watchers")).json == [watcher.json]
        seq = (await client.get("/api/health")).json["seq"]
        event_task = asyncio.create_task(wait_for_stream_event(client, "interjection.posted", after=seq))
        await client.send_message(session["slug"], "Fix the typo")
        event = await event_task
        assert (event["session"], event["severity"], event["reason"], event["suggestion"]) == (
            session["session_id"],
            "warning",
            "It rewrites all of it.",
            "Change line 12 only.",
        )
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 1
        (row,) = (await client.get("/api/inbox", session=session["slug"])).json
        assert (row["kind"], row["severity"], row["reason"], row["suggestion"], row["delivery"]) == (
            "interjection",
            "warning",
            "It rewrites all of it.",
            "Change line 12 only.",
            "pending",
        )
        assert (row["recipient"], row["capability"], row["sessionId"]) == (
            session["slug"],
            "watcher",
            watcher.json["watcher"],
        )
        dismissed = await client.post(f"/api/inbox/{row['id']}/dismiss")
        assert (dismissed.status, dismissed.json["delivery"]) == (200, "delivered")
        assert (await client.get("/api/health")).json["counts"]["inbox"] == 0
        assert (await client.post("/api/inbox/nothing/dismiss")).status == 404
        assert "It rewrites" not in str(await client.message_texts(session["slug"]))
        promoted = await client.post(f"/api/inbox/{row['id']}/promote")
        assert (promoted.status, promoted.json["already_promoted"]) == (200, False)
        last = (await client.message_texts(session["slug"]))[-1]
        assert last.startswith("The user forwarded this comment from the watcher pair:")
        assert "Change line 12 only." in last
        assert (await client.post(f"/api/inbox/{row['id']}/promote")).json["already_promoted"] is True


async def test_a_removed_watcher_runs_no_more(api: OpenApi):
    async with api(answer_as_pair, settings=SHORT_QUIET_TIME) as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['slug']}/watchers"
        assert (await client.delete(path)).status == 404
        watcher = await client.post(path, {})
        (removed,) = (await client.delete(path)).json
        assert (removed["watching"], removed["watcher"]) == (False, watcher.json["watcher"])
        assert (await client.get(path)).json == []
        await client.send_message(session["slug"], "Fix the typo")
        assert (await client.get("/api/runs", session=watcher.json["watcher"])).json == []
        assert (await client.post(path, {"agent": "oracle"})).status == 403
        assert (await client.post(path, {"agent": "nobody"})).status == 404
        assert (await client.post(f"/api/sessions/{watcher.json['watcher']}/watchers", {})).status == 403


async def test_runs_of_an_agent_record_whether_a_command_a_key_or_a_tool_started_them(api: OpenApi):
    """Shows: D002."""
    spawn_call = ("spawn_subagent", {"agentId": "oracle", "prompt": "Think.", "capability": "subtask"})

    def model(request: CapturedRequest) -> FakeResponse:
        if "You are asked when another agent is stuck" in request.messages[0]["content"]:
            return text_reply("The cause is the clock.")
        return text_reply("Received.") if request.reply_count else tool_call_reply(spawn_call)

    async with api(model, settings='approvals = "auto"\n') as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['slug']}/children"
        runs: dict[str, str] = {}
        for trigger in ("command", "slash", "key"):
            started = await client.post(
                path, {"agent": "oracle", "content": "Why?", "trigger": trigger}, key=trigger
            )
            assert (started.status, started.json["trigger"]) == (201, trigger)
            repeated = await client.post(
                path, {"agent": "oracle", "content": "Why?", "trigger": trigger}, key=trigger
            )
            assert repeated.json["run_id"] == started.json["run_id"]
            runs[trigger] = started.json["run_id"]
            ended = await client.wait_for_run(started.json["run_id"])
            assert (ended["text"], ended["trigger"]) == ("The cause is the clock.", trigger)
        await client.send_message(session["slug"], "Ask the oracle.")
        rows = (await client.get("/api/runs")).json
        assert {row["trigger"] for row in rows if row["agent"] == "oracle"} == {
            "command",
            "slash",
            "key",
            "tool",
        }
        inbox = (await client.get("/api/inbox", session=session["slug"])).json
        rows_by_run = {row["runId"]: row for row in inbox}
        for trigger in ("command", "slash", "key"):
            row = rows_by_run[runs[trigger]]
            assert (row["summary"], row["recipient"], row["status"]) == (
                "The cause is the clock.",
                session["slug"],
                "complete",
            )
            assert "oracle-" in row["transcript"]
        assert "The cause is the clock." not in await client.message_texts(session["slug"])


async def test_deleting_a_session_ends_its_watchers(api: OpenApi):
    async with api(answer_as_pair, settings=SHORT_QUIET_TIME) as client:
        session = await client.create_session()
        await client.post(f"/api/sessions/{session['slug']}/watchers", {})
        assert (await client.delete(f"/api/sessions/{session['slug']}")).status == 200
        assert (await client.get("/api/watchers")).json == []
