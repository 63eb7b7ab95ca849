"""Messages to an agent over HTTP: in which of its conversations they are said, whom they reach, and who hears of them."""

import asyncio
from pathlib import Path
from typing import Any

from api_fixture import OpenApi

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SCOUT = "---\ndescription: Looks around.\ntools: [read, ls]\n---\nYou look around.\n"
HIDDEN = "---\ndescription: Is not shown.\nui_visible: false\n---\nYou hide.\n"


async def test_a_message_to_an_agent_finds_or_makes_the_conversation_that_is_meant(api: OpenApi):
    """Shows: C016, C031, C032, C033, C034, C035."""
    async with api(agents={"scout": SCOUT}) as client:
        document = (await client.get("/api/openapi.json")).json
        fields = document["components"]["schemas"]["AgentMessageBody"]["properties"]
        assert {name: each.get("default") for name, each in fields.items()} == {
            "content": None,
            "session": "latest-or-create",
            "mode": "sync",
            "timeout": 300,
            "workspace": None,
        }

        async def say(session: str | None = None, **more: Any) -> Any:
            body = {"content": "Look", "workspace": str(client.work)} | (
                {"session": session} if session else {}
            )
            return await client.post("/api/agents/scout/messages", body | more)

        none = await say("latest")
        assert (none.status, none.code) == (404, "agent_session_error")
        assert none.message.startswith("No existing session for agent")
        assert (await client.get("/api/sessions")).json == []
        first = (await say()).json
        assert (first["created"], first["status"], first["response"]) == (True, "complete", "ok")
        again = (await say()).json
        assert (again["created"], again["sessionId"]) == (False, first["sessionId"])
        new = [(await say("create")).json for _ in range(2)]
        assert [each["created"] for each in new] == [True, True]
        assert len({first["sessionId"], *(each["sessionId"] for each in new)}) == 3
        assert (await say("latest")).json["sessionId"] == new[-1]["sessionId"]
        assert (await say(first["sessionId"])).json["sessionId"] == first["sessionId"]
        assert (await say("latest", mode="async")).json["status"] == "started"
        missing = await say("nobody-there")
        assert (missing.status, missing.code) == (404, "agent_session_error")
        assert missing.message.startswith("Session not found")
        other = await client.create_session("general")
        foreign = await say(other["session_id"])
        assert (foreign.status, foreign.code) == (409, "agent_session_error")
        assert foreign.message.startswith("Session does not belong to this agent")
        for run in (await client.get("/api/runs")).json:
            await client.wait_for_run(run["run_id"])
        for session in (await client.get("/api/sessions", agent="scout")).json:
            assert (await client.delete(f"/api/sessions/{session['session_id']}")).status == 200
        assert (await say()).json["created"] is True


async def test_a_key_makes_one_conversation_of_many_messages(api: OpenApi):
    async with api() as client:
        body = {"content": "Once", "session": "create", "workspace": str(client.work)}
        many = [(await client.post("/api/agents/general/messages", body, key="k")).json for _ in range(3)]
        assert len({(each["sessionId"], each["responseId"], each["created"]) for each in many}) == 1
        assert many[0]["created"] is True
        assert len((await client.get("/api/sessions")).json) == 1
        taken = await client.post("/api/agents/reviewer/messages", body, key="k")
        assert (taken.status, taken.code) == (409, "agent_session_error")


async def test_who_is_hidden_denied_or_not_there_is_not_reached_and_nothing_is_written(api: OpenApi):
    """Shows: C036."""
    async with api(agents={"hidden": HIDDEN}, settings='[deny]\nagents = ["reviewer"]\n') as client:
        for agent, wanted in (
            ("hidden", (403, "agent_not_accessible")),
            ("reviewer", (403, "agent_not_accessible")),
            ("nobody", (404, "agent_not_found")),
        ):
            found = await client.post(
                f"/api/agents/{agent}/messages", {"content": "x", "workspace": str(client.work)}
            )
            assert (found.status, found.code) == wanted, found.raw
            assert agent in found.message
        assert (await client.get("/api/sessions")).json == []
        assert list(Path(client.home).glob("sessions/*")) == []
        assert client.server.requests == []


async def test_the_answer_to_another_agent_is_told_in_the_callers_conversation_and_its_model_asked_again(
    api: OpenApi,
):
    """While the answer is owed the caller's conversation is not deleted.

    Shows: C045."""
    gate = asyncio.Event()

    async def model(asked: CapturedRequest) -> FakeResponse:
        if "You look around." in asked.messages[0]["content"]:
            await gate.wait()
            return text_reply("Two files.")
        if not asked.reply_count:
            return tool_call_reply(
                ("agents_message", {"agentId": "scout", "content": "How many?", "mode": "async"})
            )
        heard = sum("Async response" in str(each["content"]) for each in asked.messages)
        return text_reply(f"Heard {heard}.")

    async with api(model, agents={"scout": SCOUT}) as client:
        made = await client.create_session()
        path = f"/api/sessions/{made['session_id']}"
        run = (await client.send_message(made["slug"], "Ask the scout", mode="async")).json["responseId"]
        await client.wait_until(path, _waits_for_another)
        assert await client.message_texts(made["slug"]) == ["Ask the scout", "", "Heard 0."]
        assert (await client.delete(path)).status == 409
        gate.set()
        assert (await client.wait_for_run(run))["text"] == "Heard 1."
        (asked,) = [each for each in (await client.get("/api/runs")).json if each["agent"] == "scout"]
        entries = (await client.get(f"{path}/entries")).json
        (told,) = [each for each in entries if each["kind"] == "notice"]
        assert f"[Async response, responseId={asked['run_id']}]: Two files." in told["text"]


def _waits_for_another(session: dict[str, Any]) -> bool:
    return session["waiting_for"] == "child"
