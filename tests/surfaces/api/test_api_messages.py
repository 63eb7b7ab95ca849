"""Messages over HTTP: one run each, answered in one shape, whoever waits, asks twice or goes away."""

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


class Gate:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()

    async def __call__(self, asked: CapturedRequest) -> FakeResponse:
        self.asked.set()
        await self.open.wait()
        return text_reply(f"Answer {asked.reply_count + 1}.")


async def test_a_message_is_answered_in_the_shape_of_agents_message(api: OpenApi):
    """Shows: C037, C039."""
    script = [tool_call_reply(("ls", {})), text_reply("There is nothing.")]
    async with api(script) as client:
        made = await client.create_session(name="Look")
        said = await client.send_message(made["slug"], "What is there?")
        duration = said.json.pop("durationMs")
        called = said.json
        assert isinstance(duration, int)
        assert called["toolCalls"][0].keys() == {"name", "durationMs"}
        assert called | {"responseId": "", "toolCalls": [], "durationMs": 0} == {
            "mode": "sync",
            "status": "complete",
            "agentId": "general",
            "sessionId": made["session_id"],
            "sessionName": "Look",
            "created": False,
            "responseId": "",
            "response": "There is nothing.",
            "truncated": False,
            "durationMs": 0,
            "toolCallCount": 1,
            "toolCalls": [],
        }
        run = (await client.get(f"/api/runs/{called['responseId']}")).json
        assert (run["task"], run["status"], run["session_id"], run["entry_point"]) == (
            "What is there?",
            "done",
            made["session_id"],
            "http",
        )
        first = (await client.get(f"/api/sessions/{made['slug']}/entries")).json[0]
        assert (first["kind"], first["role"], first["text"]) == ("message", "user", "What is there?")


async def test_the_agent_answers_with_its_own_tools_prompt_and_history(api: OpenApi):
    """Shows: C038."""
    async with api(agents={"scout": SCOUT}) as client:
        made = await client.create_session("scout")
        await client.send_message(made["slug"], "First")
        await client.send_message(made["slug"], "Second")
        asked = client.server.requests[-1]
        assert "You look around." in asked.messages[0]["content"]
        assert {each["function"]["name"] for each in asked.body["tools"]} == {"read", "ls"}
        assert [each["content"] for each in asked.messages[1:]] == ["First", "ok", "Second"]


async def test_who_stops_waiting_stops_nothing_else(api: OpenApi):
    """Shows: C040, C044."""
    gate = Gate()
    async with api(gate) as client:
        made = await client.create_session()
        late = (await client.send_message(made["slug"], "Slow", timeout=0.05)).json
        assert (late["status"], late["timeoutSeconds"], late["mode"]) == ("timeout", 0.05, "sync")
        assert (await client.get(f"/api/sessions/{made['slug']}")).json["run"] == late["responseId"]
        for mode in ("sync", "async"):
            queued = (await client.send_message(made["slug"], f"Behind it, {mode}", mode=mode)).json
            assert (queued["status"], queued["messageId"]) == ("queued", queued["responseId"])
        assert (await client.get("/api/health")).json["counts"]["queued"] == 2
        gate.open.set()
        for row in (await client.get("/api/runs")).json:
            assert (await client.wait_for_run(row["run_id"]))["status"] == "done"
        said = await client.message_texts(made["slug"])
        assert said[:2] == ["Slow", "Answer 1."]
        assert said == ["Slow", "Answer 1.", "Behind it, sync", "Answer 2.", "Behind it, async", "Answer 3."]


async def test_an_asynchronous_message_returns_before_its_answer_is_there(api: OpenApi):
    """Shows: C041, C042."""
    gate = Gate()
    async with api(gate) as client:
        made = await client.create_session()
        started = (await client.send_message(made["slug"], "Go", mode="async")).json
        assert started == {
            "mode": "async",
            "status": "started",
            "agentId": "general",
            "sessionId": made["session_id"],
            "sessionName": made["slug"],
            "created": False,
            "responseId": started["responseId"],
        }
        assert (await client.get(f"/api/runs/{started['responseId']}")).json["status"] == "running"
        gate.open.set()
        await client.wait_for_run(started["responseId"])
        assert await client.message_texts(made["slug"]) == ["Go", "Answer 1."]


async def test_a_client_that_goes_away_leaves_its_run_at_work(api: OpenApi):
    """Shows: A15."""
    gate = Gate()
    async with api(gate) as client:
        made = await client.create_session()
        waiting = asyncio.create_task(client.send_message(made["slug"], "Slow"))
        await gate.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.open.set()
        run = (await client.get("/api/runs")).json[0]
        assert (await client.wait_for_run(run["run_id"]))["text"] == "Answer 1."
        assert await client.message_texts(made["slug"]) == ["Slow", "Answer 1."]


async def test_a_key_makes_one_run_of_many_requests(api: OpenApi):
    gate = Gate()
    gate.open.set()
    async with api(gate) as client:
        made, other = await client.create_session(), await client.create_session()
        many = await asyncio.gather(*(client.send_message(made["slug"], "Once", key="k-1") for _ in range(8)))
        assert {each.status for each in many} == {200}
        assert len({each.json["responseId"] for each in many}) == 1
        assert await client.message_texts(made["slug"]) == ["Once", "Answer 1."]
        late = await client.send_message(made["slug"], "Once", key="k-1", mode="async")
        assert late.json["responseId"] == many[0].json["responseId"]
        for session, content in ((made, "Twice"), (other, "Once")):
            taken = await client.send_message(session["slug"], content, key="k-1")
            assert (taken.status, "k-1" in taken.message) == (409, True)
        assert len((await client.get("/api/runs")).json) == 1
        assert (await client.send_message(made["slug"], "Once")).json["response"] == "Answer 2."


async def test_words_with_a_key_reach_a_run_that_waits_for_them_once(api: OpenApi):
    leaves = tool_call_reply(("submit_for_review", {"summary": "Built."}))
    async with api([*[text_reply("All done.")] * 4, leaves], agents={"coder": CODER}) as client:
        made = await client.create_session("coder")
        asks = (await client.send_message(made["slug"], "Build it.")).json
        assert (asks["status"], asks["response"]) == ("waiting", "All done.")
        assert (await client.get(f"/api/sessions/{made['slug']}")).json["waiting_for"] == "person"
        again = [(await client.send_message(made["slug"], "Submit it.", key="k")).json for _ in range(3)]
        assert {each["responseId"] for each in again} == {asks["responseId"]}
        assert [each["response"] for each in again] == ["Built."] * 3
        assert (await client.message_texts(made["slug"])).count("Submit it.") == 1
        assert (await client.send_message(made["slug"], "Other", key="k")).status == 409


async def test_errors_are_called_as_agents_message_calls_them(api: OpenApi):
    """Shows: C046."""
    async with api(
        [http_error(400, "no such model")] * 9,
        agents={"scout": SCOUT},
        settings='[deny]\nagents = ["planner"]\n',
    ) as client:
        made, scout = await client.create_session(), await client.create_session("scout")
        denied = await client.create_session("reviewer")
        (Path(client.app.config.config_dir) / "config.toml").write_text('[deny]\nagents = ["reviewer"]\n')
        (Path(client.app.config.config_dir) / "agents" / "scout.md").unlink()
        failed = await client.send_message(made["slug"], "Try")
        assert (failed.status, failed.code) == (422, "agent_message_failed")
        details = failed.json["error"]["details"]
        assert (details["sessionId"], details["runStatus"]) == (made["session_id"], "failed")
        for session, body, wanted in (
            (made["slug"], {"content": " "}, (400, "invalid_arguments")),
            (made["slug"], {"content": "x", "mode": "later"}, (400, "invalid_arguments")),
            (made["slug"], {"content": "x", "timeout": -1}, (400, "invalid_arguments")),
            (made["slug"], {"content": 7}, (400, "invalid_arguments")),
            ("nobody", {"content": "x"}, (404, "agent_session_error")),
            (scout["slug"], {"content": "x"}, (404, "agent_not_found")),
            (denied["slug"], {"content": "x"}, (403, "agent_not_accessible")),
        ):
            found = await client.post(f"/api/sessions/{session}/messages", body)
            assert (found.status, found.code) == wanted, (body, found.raw)


async def test_an_agent_without_a_model_is_not_available(api: OpenApi):
    """Shows: C046."""
    agents = {"poor": "---\ndescription: x\nmodel: anthropic:claude\n---\nYou wait.\n"}
    async with api(agents=agents) as client:
        made = await client.create_session("poor")
        found = await client.send_message(made["slug"], "Hello?")
        assert (found.status, found.code) == (400, "agent_not_available")
        assert (await client.get("/api/runs")).json == []


async def test_a_daemon_killed_before_it_answers_says_a_message_with_a_key_once(
    isolated_env: dict[str, str], tmp_path: Path
):
    """Shows: P02."""
    home = Path(isolated_env["RETINUE_HOME"])
    gate = Gate()
    async with FakeModelServer(gate) as server:
        env = isolated_env | {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test"}
        first = await _daemon(env, tmp_path)
        made = await _asks(home, "POST", "/api/sessions", {"agent": "general", "workspace": str(tmp_path)})
        path = f"/api/sessions/{made['session_id']}/messages"
        waiting = asyncio.create_task(_asks(home, "POST", path, {"content": "Once"}, key="k"))
        await gate.asked.wait()
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        with pytest.raises((aiohttp.ClientError, OSError)):
            await waiting
        gate.open.set()
        second = await _daemon(env, tmp_path)
        again = await _asks(home, "POST", path, {"content": "Once"}, key="k")
        entries = await _asks(home, "GET", f"/api/sessions/{made['session_id']}/entries")
        second.terminate()
        await second.wait()
    assert (again["status"], again["response"]) == ("complete", "Answer 1.")
    assert [each["text"] for each in entries] == ["Once", "Answer 1."]


async def _daemon(env: dict[str, str], folder: Path) -> asyncio.subprocess.Process:
    words = [*RETINUE, "serve", "--port", "0"]
    process = await start_process(words, env=env, cwd=folder, stdin=DEVNULL, stderr=DEVNULL)
    while await daemon_client.ping_daemon(Path(env["RETINUE_HOME"])) is None:
        assert process.returncode is None
        await asyncio.sleep(0.02)
    return process


async def _asks(home: Path, method: str, path: str, body: Any = None, key: str = "") -> Any:
    with daemon_client.socket_path(home) as place:
        connector = aiohttp.UnixConnector(place)
        headers = {"Idempotency-Key": key} if key else {}
        async with (
            aiohttp.ClientSession("http://daemon", connector=connector) as http,
            http.request(method, path, json=body, headers=headers) as response,
        ):
            return json.loads(await response.read())


async def test_a_question_is_told_and_answered_once_by_the_next_message(api: OpenApi):
    asks = tool_call_reply(
        ("ask_user", {"question": "Which colour?", "options": ["red", "blue"]}), text="One moment."
    )
    async with api([asks, text_reply("So be it.")]) as client:
        made = await client.create_session()
        told = (await client.send_message(made["slug"], "Paint")).json
        assert (told["status"], told["response"]) == ("waiting", "One moment.")
        assert told["message"].startswith("Which colour? (red / blue)")
        shown = (await client.get(f"/api/runs/{told['responseId']}")).json
        assert [each["question"] for each in shown["questions"]] == ["Which colour?"]
        again = [(await client.send_message(made["slug"], "2", key="k")).json for _ in range(2)]
        assert [(each["responseId"], each["response"]) for each in again] == [
            (told["responseId"], "So be it.")
        ] * 2
        returned = [
            each
            for each in (await client.get(f"/api/sessions/{made['slug']}/entries")).json
            if each["kind"] == "tool_result"
        ]
        assert [each["text"] for each in returned] == ["blue"]
        assert len((await client.get("/api/runs")).json) == 1


async def test_words_to_a_session_that_waits_for_a_yes_are_queued_and_say_so(api: OpenApi):
    """Whoever asks, and in which mode: the answer names what the session waits for.

    Shows: C044."""
    script = [
        tool_call_reply(("bash", {"command": "true"})),
        text_reply("Ran."),
        text_reply("Second."),
        text_reply("Third."),
    ]
    async with api(script) as client:
        made = await client.create_session()
        first = (await client.send_message(made["slug"], "Run it")).json
        (asked,) = (await client.get("/api/approvals")).json
        for mode in ("sync", "async"):
            queued = (await client.send_message(made["slug"], f"And {mode}", mode=mode)).json
            assert (queued["status"], queued["messageId"]) == ("queued", queued["responseId"])
            assert queued["message"].startswith("general waits for an approval of bash")
            assert f"POST /api/approvals/{asked['id']}" in queued["message"]
        now = (await client.get(f"/api/sessions/{made['slug']}")).json
        assert (now["status"], now["run"]) == ("waiting", first["responseId"])
        await client.post(f"/api/approvals/{asked['id']}", {"answer": "deny"})
        for row in (await client.get("/api/runs")).json:
            assert (await client.wait_for_run(row["run_id"]))["status"] == "done"
        said = await client.message_texts(made["slug"])
        assert said == ["Run it", "", "Ran.", "And sync", "Second.", "And async", "Third."]


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        (("bash", {"command": "true"}), "approval of bash. Show it with GET /api/approvals/"),
        (("ask_user", {"question": "Which colour?"}), "Which colour?"),
    ],
)
async def test_who_waits_hears_at_once_what_an_agent_below_needs_of_a_person(
    api: OpenApi, wish: tuple[str, dict[str, Any]], named: str
):
    hands_on = ("PersistentAgent", {"preset": "worker", "description": "do it", "prompt": "Do it."})

    def model(asked: CapturedRequest) -> FakeResponse:
        worker = "You are a worker." in asked.messages[0]["content"]
        return tool_call_reply(wish if worker else hands_on) if not asked.reply_count else text_reply("Done.")

    async with api(model, agents={"worker": "---\ndescription: Works.\n---\nYou are a worker.\n"}) as client:
        made = await client.create_session()
        first = (await client.send_message(made["slug"], "Hand it on", key="k", timeout=0)).json
        (asked,) = (await client.get("/api/approvals")).json
        assert (first["status"], f"POST /api/approvals/{asked['id']}" in first["message"]) == (
            "timeout",
            True,
        )
        await client.post(f"/api/approvals/{asked['id']}", {"answer": "allow"})
        told = (await client.send_message(made["slug"], "Hand it on", key="k", timeout=0)).json
        assert (told["responseId"], told["status"]) == (first["responseId"], "timeout")
        assert told["message"].startswith("worker waits for"), told["message"]
        assert named in told["message"]
