"""Messages to an agent over HTTP: the session they go to, agents that cannot be reached, and asynchronous replies."""

import asyncio
from pathlib import Path
from typing import Any

from api_fixture import OpenApi

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SCOUT = "---\ndescription: Looks around.\ntools: [read, ls]\n---\nYou look around.\n"
HIDDEN = "---\ndescription: Is not shown.\nui_visible: false\n---\nYou hide.\n"


async def test_a_message_to_an_agent_goes_to_its_latest_a_new_or_a_named_session(api: OpenApi):
    """Shows: C016, C031, C032, C033, C034, C035."""
    async with api(agents={"scout": SCOUT}) as client:
        document = (await client.get("/api/openapi.json")).json
        fields = document["components"]["schemas"]["AgentMessageBody"]["properties"]
        assert {name: field.get("default") for name, field in fields.items()} == {
            "content": None,
            "session": "latest-or-create",
            "mode": "sync",
            "timeout": 300,
            "workspace": None,
            "allow_home": False,
        }

        async def send(session: str | None = None, **fields: Any) -> Any:
            body = {"content": "Look", "workspace": str(client.workspace)} | (
                {"session": session} if session else {}
            )
            return await client.post("/api/agents/scout/messages", body | fields)

        no_session = await send("latest")
        assert (no_session.status, no_session.code) == (404, "agent_session_error")
        assert no_session.message.startswith("No existing session for agent")
        assert (await client.get("/api/sessions")).json == []
        first = (await send()).json
        assert (first["created"], first["status"], first["response"]) == (True, "complete", "ok")
        second = (await send()).json
        assert (second["created"], second["sessionId"]) == (False, first["sessionId"])
        created = [(await send("create")).json for _ in range(2)]
        assert [item["created"] for item in created] == [True, True]
        assert len({first["sessionId"], *(item["sessionId"] for item in created)}) == 3
        assert (await send("latest")).json["sessionId"] == created[-1]["sessionId"]
        assert (await send(first["sessionId"])).json["sessionId"] == first["sessionId"]
        assert (await send("latest", mode="async")).json["status"] == "started"
        unknown = await send("nobody-there")
        assert (unknown.status, unknown.code) == (404, "agent_session_error")
        assert unknown.message.startswith("Session not found")
        of_other_agent = await client.create_session("general")
        foreign = await send(of_other_agent["session_id"])
        assert (foreign.status, foreign.code) == (409, "agent_session_error")
        assert foreign.message.startswith("Session does not belong to this agent")
        for run in (await client.get("/api/runs")).json:
            await client.wait_for_run(run["run_id"])
        for session in (await client.get("/api/sessions", agent="scout")).json:
            assert (await client.delete(f"/api/sessions/{session['session_id']}")).status == 200
        assert (await send()).json["created"] is True


async def test_an_idempotency_key_creates_one_session_for_repeated_messages(api: OpenApi):
    async with api() as client:
        body = {"content": "Once", "session": "create", "workspace": str(client.workspace)}
        replies = [(await client.post("/api/agents/general/messages", body, key="k")).json for _ in range(3)]
        assert len({(reply["sessionId"], reply["responseId"], reply["created"]) for reply in replies}) == 1
        assert replies[0]["created"] is True
        assert len((await client.get("/api/sessions")).json) == 1
        conflict = await client.post("/api/agents/reviewer/messages", body, key="k")
        assert (conflict.status, conflict.code) == (409, "agent_session_error")


async def test_a_message_to_a_hidden_denied_or_unknown_agent_is_refused_and_creates_no_session(api: OpenApi):
    """Shows: C036."""
    async with api(agents={"hidden": HIDDEN}, settings='[deny]\nagents = ["reviewer"]\n') as client:
        for agent, expected in (
            ("hidden", (403, "agent_not_accessible")),
            ("reviewer", (403, "agent_not_accessible")),
            ("nobody", (404, "agent_not_found")),
        ):
            response = await client.post(
                f"/api/agents/{agent}/messages", {"content": "x", "workspace": str(client.workspace)}
            )
            assert (response.status, response.code) == expected, response.raw
            assert agent in response.message
        assert (await client.get("/api/sessions")).json == []
        assert list(Path(client.home).glob("sessions/*")) == []
        assert client.server.requests == []


async def test_an_asynchronous_reply_is_appended_to_the_callers_session_and_wakes_its_model(
    api: OpenApi,
):
    """Shows: C045."""
    gate = asyncio.Event()

    async def model(request: CapturedRequest) -> FakeResponse:
        if "You look around." in request.messages[0]["content"]:
            await gate.wait()
            return text_reply("Two files.")
        if not request.reply_count:
            return tool_call_reply(
                ("agents_message", {"agentId": "scout", "content": "How many?", "mode": "async"})
            )
        reply_count = sum("Async response" in str(message["content"]) for message in request.messages)
        return text_reply(f"Received {reply_count}.")

    async with api(model, agents={"scout": SCOUT}) as client:
        session = await client.create_session()
        path = f"/api/sessions/{session['session_id']}"
        run = (await client.send_message(session["slug"], "Ask the scout", mode="async")).json["responseId"]
        assert (await client.wait_for_run(run))["text"] == "Received 0."
        assert await client.message_texts(session["slug"]) == ["Ask the scout", "", "Received 0."]
        gate.set()
        await client.wait_until(path, _has_received_reply)
        assert (await client.wait_for_run(run))["text"] == "Received 0."
        (scout_run,) = [item for item in (await client.get("/api/runs")).json if item["agent"] == "scout"]
        entries = (await client.get(f"{path}/entries")).json
        (notice,) = [item for item in entries if item["kind"] == "notice"]
        assert f"[Async response, responseId={scout_run['run_id']}]: Two files." in notice["text"]


def _has_received_reply(session: dict[str, Any]) -> bool:
    return session["last_snippet"] == "Received 1."
