"""Messages over HTTP: each starts one run, and its response has one format, however long the client waits."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_fixture import OpenApi
from commands import RETINUE, start_process

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

SCOUT = "---\ndescription: Looks around.\ntools: [read, ls]\n---\nYou look around.\n"
CODER = "---\ndescription: Codes.\nexits: [submit_for_review, ask_for_help]\n---\nYou code.\n"


class GatedModel:
    """A model that answers once the test opens the gate."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.requested = asyncio.Event()

    async def __call__(self, request: CapturedRequest) -> FakeResponse:
        self.requested.set()
        await self.may_answer.wait()
        return text_reply(f"Answer {request.reply_count + 1}.")


async def test_a_complete_message_returns_the_thinking_that_the_model_sent(api: OpenApi):
    replies = [text_reply("Milk.", thinking="The user asks for\nmilk."), text_reply("No thoughts.")]
    async with api(replies) as client:
        session = await client.create_session()
        answer = (await client.send_message(session["slug"], "What?")).json
        assert (answer["response"], answer["thinkingText"]) == ("Milk.", "The user asks for\nmilk.")
        assert "thinkingText" not in (await client.send_message(session["slug"], "And?")).json
        assert await client.message_texts(session["slug"]) == ["What?", "Milk.", "And?", "No thoughts."]


async def test_the_response_to_a_message_has_the_format_of_agents_message(api: OpenApi):
    """Shows: C037, C039."""
    script = [tool_call_reply(("ls", {})), text_reply("There is nothing.")]
    async with api(script) as client:
        session = await client.create_session(name="Look")
        response = await client.send_message(session["slug"], "What is there?")
        duration = response.json.pop("durationMs")
        reply = response.json
        assert isinstance(duration, int)
        assert reply["toolCalls"][0].keys() == {"name", "durationMs"}
        assert reply | {"responseId": "", "toolCalls": [], "durationMs": 0} == {
            "mode": "sync",
            "status": "complete",
            "agentId": "general",
            "sessionId": session["session_id"],
            "sessionName": "Look",
            "created": False,
            "responseId": "",
            "response": "There is nothing.",
            "truncated": False,
            "durationMs": 0,
            "toolCallCount": 1,
            "toolCalls": [],
        }
        run = (await client.get(f"/api/runs/{reply['responseId']}")).json
        assert (run["task"], run["status"], run["session_id"], run["entry_point"]) == (
            "What is there?",
            "done",
            session["session_id"],
            "http",
        )
        first = (await client.get(f"/api/sessions/{session['slug']}/entries")).json[0]
        assert (first["kind"], first["role"], first["text"]) == ("message", "user", "What is there?")


async def test_the_agent_of_a_session_replies_with_its_own_tools_prompt_and_history(api: OpenApi):
    """Shows: C038."""
    async with api(agents={"scout": SCOUT}) as client:
        session = await client.create_session("scout")
        await client.send_message(session["slug"], "First")
        await client.send_message(session["slug"], "Second")
        request = client.server.requests[-1]
        assert "You look around." in request.messages[0]["content"]
        assert {item["function"]["name"] for item in request.body["tools"]} == {"read", "ls"}
        assert [item["content"] for item in request.messages[1:]] == ["First", "ok", "Second"]


async def test_a_timeout_of_the_client_does_not_stop_the_run_and_later_messages_are_queued(api: OpenApi):
    """Shows: C040, C044."""
    model = GatedModel()
    async with api(model) as client:
        session = await client.create_session()
        timed_out = (await client.send_message(session["slug"], "Slow", timeout=0.05)).json
        assert (timed_out["status"], timed_out["timeoutSeconds"], timed_out["mode"]) == (
            "timeout",
            0.05,
            "sync",
        )
        assert (await client.get(f"/api/sessions/{session['slug']}")).json["run"] == timed_out["responseId"]
        for mode in ("sync", "async"):
            queued = (await client.send_message(session["slug"], f"Behind it, {mode}", mode=mode)).json
            assert (queued["status"], queued["messageId"]) == ("queued", queued["responseId"])
        assert (await client.get("/api/health")).json["counts"]["queued"] == 2
        model.may_answer.set()
        for row in (await client.get("/api/runs")).json:
            assert (await client.wait_for_run(row["run_id"]))["status"] == "done"
        texts = await client.message_texts(session["slug"])
        assert texts[:2] == ["Slow", "Answer 1."]
        assert texts == ["Slow", "Answer 1.", "Behind it, sync", "Answer 2.", "Behind it, async", "Answer 3."]


async def test_an_asynchronous_message_returns_before_the_reply(api: OpenApi):
    """Shows: C041, C042."""
    model = GatedModel()
    async with api(model) as client:
        session = await client.create_session()
        started = (await client.send_message(session["slug"], "Go", mode="async")).json
        assert started == {
            "mode": "async",
            "status": "started",
            "agentId": "general",
            "sessionId": session["session_id"],
            "sessionName": session["slug"],
            "created": False,
            "responseId": started["responseId"],
        }
        assert (await client.get(f"/api/runs/{started['responseId']}")).json["status"] == "running"
        model.may_answer.set()
        await client.wait_for_run(started["responseId"])
        assert await client.message_texts(session["slug"]) == ["Go", "Answer 1."]


async def test_a_run_continues_after_its_client_disconnects(api: OpenApi):
    """Shows: A15."""
    model = GatedModel()
    async with api(model) as client:
        session = await client.create_session()
        message_task = asyncio.create_task(client.send_message(session["slug"], "Slow"))
        await model.requested.wait()
        message_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await message_task
        model.may_answer.set()
        run = (await client.get("/api/runs")).json[0]
        assert (await client.wait_for_run(run["run_id"]))["text"] == "Answer 1."
        assert await client.message_texts(session["slug"]) == ["Slow", "Answer 1."]


async def test_an_idempotency_key_creates_one_run_for_repeated_requests(api: OpenApi):
    model = GatedModel()
    model.may_answer.set()
    async with api(model) as client:
        session, other_session = await client.create_session(), await client.create_session()
        responses = await asyncio.gather(
            *(client.send_message(session["slug"], "Once", key="k-1") for _ in range(8))
        )
        assert {response.status for response in responses} == {200}
        assert len({response.json["responseId"] for response in responses}) == 1
        assert await client.message_texts(session["slug"]) == ["Once", "Answer 1."]
        repeated = await client.send_message(session["slug"], "Once", key="k-1", mode="async")
        assert repeated.json["responseId"] == responses[0].json["responseId"]
        for target, content in ((session, "Twice"), (other_session, "Once")):
            conflict = await client.send_message(target["slug"], content, key="k-1")
            assert (conflict.status, "k-1" in conflict.message) == (409, True)
        assert len((await client.get("/api/runs")).json) == 1
        assert (await client.send_message(session["slug"], "Once")).json["response"] == "Answer 2."


async def test_a_repeated_message_with_a_key_reaches_a_waiting_run_once(api: OpenApi):
    exit_call = tool_call_reply(("submit_for_review", {"summary": "Built."}))
    async with api([*[text_reply("All done.")] * 4, exit_call], agents={"coder": CODER}) as client:
        session = await client.create_session("coder")
        first = (await client.send_message(session["slug"], "Build it.")).json
        assert (first["status"], first["response"]) == ("waiting", "All done.")
        assert (await client.get(f"/api/sessions/{session['slug']}")).json["waiting_for"] == "person"
        replies = [(await client.send_message(session["slug"], "Submit it.", key="k")).json for _ in range(3)]
        assert {reply["responseId"] for reply in replies} == {first["responseId"]}
        assert [reply["response"] for reply in replies] == ["Built."] * 3
        assert (await client.message_texts(session["slug"])).count("Submit it.") == 1
        assert (await client.send_message(session["slug"], "Other", key="k")).status == 409


async def test_error_codes_are_those_of_agents_message(api: OpenApi):
    """Shows: C046."""
    async with api(
        [http_error(400, "no such model")] * 9,
        agents={"scout": SCOUT},
        settings='[deny]\nagents = ["planner"]\n',
    ) as client:
        session, scout = await client.create_session(), await client.create_session("scout")
        denied = await client.create_session("reviewer")
        (Path(client.app.config.config_dir) / "config.toml").write_text('[deny]\nagents = ["reviewer"]\n')
        (Path(client.app.config.config_dir) / "agents" / "scout.md").unlink()
        failed = await client.send_message(session["slug"], "Try")
        assert (failed.status, failed.code) == (422, "agent_message_failed")
        details = failed.json["error"]["details"]
        assert (details["sessionId"], details["runStatus"]) == (session["session_id"], "failed")
        for ref, body, expected in (
            (session["slug"], {"content": " "}, (400, "invalid_arguments")),
            (session["slug"], {"content": "x", "mode": "later"}, (400, "invalid_arguments")),
            (session["slug"], {"content": "x", "timeout": -1}, (400, "invalid_arguments")),
            (session["slug"], {"content": 7}, (400, "invalid_arguments")),
            ("nobody", {"content": "x"}, (404, "agent_session_error")),
            (scout["slug"], {"content": "x"}, (404, "agent_not_found")),
            (denied["slug"], {"content": "x"}, (403, "agent_not_accessible")),
        ):
            response = await client.post(f"/api/sessions/{ref}/messages", body)
            assert (response.status, response.code) == expected, (body, response.raw)


async def test_an_agent_whose_model_has_no_key_is_not_available(api: OpenApi):
    """Shows: C046."""
    agents = {"poor": "---\ndescription: x\nmodel: anthropic:claude\n---\nYou wait.\n"}
    async with api(agents=agents) as client:
        session = await client.create_session("poor")
        response = await client.send_message(session["slug"], "Hello?")
        assert (response.status, response.code) == (400, "agent_not_available")
        assert (await client.get("/api/runs")).json == []


async def test_a_repeated_message_with_a_key_is_sent_once_although_the_daemon_was_killed(
    isolated_env: dict[str, str], tmp_path: Path
):
    """Shows: P02."""
    home = Path(isolated_env["RETINUE_HOME"])
    model = GatedModel()
    async with FakeModelServer(model) as server:
        env = isolated_env | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test"}
        first = await _start_daemon(env, tmp_path)
        session = await _request_json(
            home, "POST", "/api/sessions", {"agent": "general", "workspace": str(tmp_path)}
        )
        path = f"/api/sessions/{session['session_id']}/messages"
        message_task = asyncio.create_task(_request_json(home, "POST", path, {"content": "Once"}, key="k"))
        await model.requested.wait()
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        with pytest.raises((aiohttp.ClientError, OSError)):
            await message_task
        model.may_answer.set()
        second = await _start_daemon(env, tmp_path)
        repeated = await _request_json(home, "POST", path, {"content": "Once"}, key="k")
        entries = await _request_json(home, "GET", f"/api/sessions/{session['session_id']}/entries")
        second.terminate()
        await second.wait()
    assert (repeated["status"], repeated["response"]) == ("complete", "Answer 1.")
    assert [entry["text"] for entry in entries] == ["Once", "Answer 1."]


async def _start_daemon(env: dict[str, str], folder: Path) -> asyncio.subprocess.Process:
    command = [*RETINUE, "serve", "--port", "0"]
    process = await start_process(command, env=env, cwd=folder, stdin=DEVNULL, stderr=DEVNULL)
    while await daemon_client.ping_daemon(Path(env["RETINUE_HOME"])) is None:
        assert process.returncode is None
        await asyncio.sleep(0.02)
    return process


async def _request_json(home: Path, method: str, path: str, body: object = None, key: str = "") -> Any:
    with daemon_client.socket_path(home) as socket:
        connector = aiohttp.UnixConnector(socket)
        headers = {"Idempotency-Key": key} if key else {}
        async with (
            aiohttp.ClientSession("http://daemon", connector=connector) as http,
            http.request(method, path, json=body, headers=headers) as response,
        ):
            return json.loads(await response.read())


async def test_a_question_of_the_agent_is_in_the_response_and_the_next_message_answers_it_once(api: OpenApi):
    ask_call = tool_call_reply(
        ("ask_user", {"question": "Which colour?", "options": ["red", "blue"]}), text="One moment."
    )
    async with api([ask_call, text_reply("So be it.")]) as client:
        session = await client.create_session()
        first = (await client.send_message(session["slug"], "Paint")).json
        assert (first["status"], first["response"]) == ("waiting", "One moment.")
        assert first["message"].startswith("Which colour? (red / blue)")
        run = (await client.get(f"/api/runs/{first['responseId']}")).json
        assert [each["question"] for each in run["questions"]] == ["Which colour?"]
        replies = [(await client.send_message(session["slug"], "2", key="k")).json for _ in range(2)]
        assert [(each["responseId"], each["response"]) for each in replies] == [
            (first["responseId"], "So be it.")
        ] * 2
        results = [
            each
            for each in (await client.get(f"/api/sessions/{session['slug']}/entries")).json
            if each["kind"] == "tool_result"
        ]
        assert [each["text"] for each in results] == ["blue"]
        assert len((await client.get("/api/runs")).json) == 1


async def test_messages_to_a_session_that_waits_for_an_approval_are_queued(api: OpenApi):
    """In each mode, the response names what the session waits for.

    Shows: C044.
    """
    script = [
        tool_call_reply(("bash", {"command": "true"})),
        text_reply("Ran."),
        text_reply("Second."),
        text_reply("Third."),
    ]
    async with api(script) as client:
        session = await client.create_session()
        first = (await client.send_message(session["slug"], "Run it")).json
        (approval,) = (await client.get("/api/approvals")).json
        for mode in ("sync", "async"):
            queued = (await client.send_message(session["slug"], f"And {mode}", mode=mode)).json
            assert (queued["status"], queued["messageId"]) == ("queued", queued["responseId"])
            assert queued["message"].startswith("general is waiting for approval of bash")
            assert f"POST /api/approvals/{approval['id']}" in queued["message"]
        current = (await client.get(f"/api/sessions/{session['slug']}")).json
        assert (current["status"], current["run"]) == ("waiting", first["responseId"])
        await client.post(f"/api/approvals/{approval['id']}", {"answer": "deny"})
        for row in (await client.get("/api/runs")).json:
            assert (await client.wait_for_run(row["run_id"]))["status"] == "done"
        texts = await client.message_texts(session["slug"])
        assert texts == ["Run it", "", "Ran.", "And sync", "Second.", "And async", "Third."]


@pytest.mark.parametrize(
    ("call", "expected_text"),
    [
        (("bash", {"command": "true"}), "approval of bash. View the request with GET /api/approvals/"),
        (("ask_user", {"question": "Which colour?"}), "Which colour?"),
    ],
)
async def test_a_waiting_client_is_notified_at_once_of_what_a_child_agent_needs_from_a_person(
    api: OpenApi, call: tuple[str, dict[str, Any]], expected_text: str
):
    delegate_call = ("PersistentAgent", {"preset": "worker", "description": "do it", "prompt": "Do it."})

    def model(request: CapturedRequest) -> FakeResponse:
        is_worker = "You are a worker." in request.messages[0]["content"]
        return (
            tool_call_reply(call if is_worker else delegate_call)
            if not request.reply_count
            else text_reply("Done.")
        )

    async with api(model, agents={"worker": "---\ndescription: Works.\n---\nYou are a worker.\n"}) as client:
        session = await client.create_session()
        first = (await client.send_message(session["slug"], "Hand it on", key="k", timeout=0)).json
        (approval,) = (await client.get("/api/approvals")).json
        assert (first["status"], f"POST /api/approvals/{approval['id']}" in first["message"]) == (
            "timeout",
            True,
        )
        await client.post(f"/api/approvals/{approval['id']}", {"answer": "allow"})
        repeated = (await client.send_message(session["slug"], "Hand it on", key="k", timeout=0)).json
        assert (repeated["responseId"], repeated["status"]) == (first["responseId"], "timeout")
        assert repeated["message"].startswith("worker is waiting for"), repeated["message"]
        assert expected_text in repeated["message"]
