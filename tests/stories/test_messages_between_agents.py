"""Messages between agents, started by commands: one reply for the user, and a session of the agent that was asked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

LISTS = "You keep lists."
TODO = 'display_name: Todo List Manager\ndescription: "manages tasks and reminders"\ntools: [todo]\n'
AGENT_LINE = "- todo: Todo List Manager - manages tasks and reminders"
INSTRUCTION = "Use agents_message to ask another agent to perform a task."


def last_message(request: CapturedRequest) -> str:
    return request.messages[-1]["content"]


def tool_results(request: CapturedRequest) -> list[Any]:
    """Return the decoded tool results of a request."""
    return [json.loads(each["content"]) for each in request.messages if each["role"] == "tool"]


async def test_an_agent_asks_another_agent_and_uses_its_response(machine: UserMachine):
    """Shows: C025, C026, C027, C028, C037, C038, C039, C081, C082."""
    machine.write_agent("todo", TODO, LISTS)
    message_call = tool_call_reply(("agents_message", {"agentId": "todo", "content": "Add buy milk."}))

    def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            is_task = last_message(request) == "Add buy milk."
            return (
                tool_call_reply(("todo", {"items": ["buy milk"]}))
                if is_task
                else text_reply("Added: buy milk.")
            )
        return text_reply("It is on the list.") if tool_results(request) else message_call

    async with machine.serve_models(script) as server:
        ran = await machine("run", "Ask todo to add buy milk")
    assert (ran.code, ran.out.strip()) == (0, "It is on the list.")
    first, inner, _, last = server.requests
    assert f"\n{AGENT_LINE}\n" in machine.system_prompt(first)
    assert machine.system_prompt(first).endswith(INSTRUCTION)
    assert "- general:" not in machine.system_prompt(first)
    assert machine.tool_names(inner) == ["todo"]
    assert INSTRUCTION not in machine.system_prompt(inner)
    (answer,) = tool_results(last)
    assert (answer["status"], answer["response"], answer["created"]) == ("complete", "Added: buy milk.", True)
    assert (answer["toolCallCount"], [each["name"] for each in answer["toolCalls"]]) == (1, ["todo"])
    listed = (await machine("sessions", "list", "--json")).json
    (todo_session,) = [each for each in listed if each["agent"] == "todo"]
    assert (todo_session["session_id"], todo_session["parent"]) == (answer["sessionId"], None)
    text = Path(todo_session["path"]).read_text()
    assert text.index("Add buy milk.") < text.index("Added: buy milk.")


async def test_a_response_after_the_timeout_is_announced(machine: UserMachine):
    """Shows: C040, C045, C09."""
    machine.write_agent("todo", TODO, LISTS)
    gate = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            await gate.wait()
            return text_reply("Added: buy milk.")
        if "]: Added: buy milk." in last_message(request):
            return text_reply("It is on the list after all.")
        if tool_results(request):
            gate.set()
            return text_reply("No answer yet.")
        return tool_call_reply(
            ("agents_message", {"agentId": "todo", "content": "Add buy milk.", "timeout": 1})
        )

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Ask todo to add buy milk")
    assert (ran.code, ran.json["text"]) == (0, "It is on the list after all.")
    (answer,) = tool_results(server.requests[-1])
    assert (answer["status"], answer["timeoutSeconds"]) == ("timeout", 1)
    announcement = f"[Async response, responseId={answer['responseId']}]: Added: buy milk."
    assert announcement in last_message(server.requests[-1])
    runs = (await machine("runs", "history", "--json")).json
    (late_run,) = [each for each in runs if each["run_id"] == answer["responseId"]]
    assert (late_run["status"], late_run["text"]) == ("done", "Added: buy milk.")
    assert "Added: buy milk." in Path(late_run["path"]).read_text()


async def test_a_message_to_a_hidden_or_denied_agent_is_refused_and_creates_no_session(machine: UserMachine):
    """Shows: C036, C046, C064, T13."""
    machine.write_agent("hidden", "ui_visible: false\n", LISTS)
    machine.write_agent("secret", "", LISTS)
    machine.write_config(deny={"agents": ["secret"]})
    calls = [
        ("agents_message", {"agentId": each, "content": "Hi."}) for each in ("hidden", "secret", "nobody")
    ]
    script = [tool_call_reply(*calls, ("agents_list", {})), text_reply("None of them.")]
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Ask them")
    assert (ran.code, ran.json["children"]) == (0, [])
    *refused, others = tool_results(server.requests[-1])
    assert [(each["error"]["code"], each["error"]["message"]) for each in refused] == [
        ("agent_not_accessible", "Agent not accessible: hidden"),
        ("agent_not_accessible", "Agent not accessible: secret"),
        ("agent_not_found", "Agent not found: nobody"),
    ]
    assert not {"hidden", "secret", "general"} & {each["agentId"] for each in others["agents"]}
    assert [each["agent"] for each in (await machine("sessions", "list", "--json")).json] == ["general"]


async def test_tools_denied_by_the_configuration_are_available_to_no_agent(machine: UserMachine):
    """Shows: C065."""
    machine.write_agent("asks", "tools: [agents_message, agents_list, read]\n")
    machine.write_config(deny={"tools": ["agents_*"]})
    async with machine.serve_models([text_reply("Hi."), text_reply("Hi.")]) as server:
        await machine("run", "Hi")
        await machine("run", "--agent", "asks", "Hi")
    general, sender = server.requests
    assert not {"agents_message", "agents_list"} & set(machine.tool_names(general))
    assert machine.tool_names(sender) == ["read"]
    assert "agents_message" not in machine.system_prompt(general)
    rows = {each["name"]: each for each in (await machine("tools", "list", "--agent", "asks", "--json")).json}
    assert (rows["agents_message"]["available"], rows["agents_list"]["available"]) == (False, False)
    assert rows["agents_message"]["rule"].startswith("operator deny")


async def test_tools_list_shows_which_agents_can_send_messages(machine: UserMachine):
    """Shows: C065."""
    machine.write_agent("reader", "tools: [read]\n")
    machine.write_agent("lister", "capability_allow: ['agents.read']\n")
    found: dict[str, list[bool]] = {}
    for agent in ("general", "reader", "lister"):
        rows = {
            each["name"]: each for each in (await machine("tools", "list", "--agent", agent, "--json")).json
        }
        found[agent] = [rows[name]["available"] for name in ("agents_message", "agents_list")]
        assert (rows["agents_message"]["is_delegation"], rows["agents_message"]["approval"]) == (
            True,
            "never",
        )
        assert (rows["agents_list"]["is_delegation"], rows["agents_list"]["effect"]) == (False, "read")
    assert found == {"general": [True, True], "reader": [False, False], "lister": [False, True]}


async def test_switching_agents_in_a_chat_continues_the_session_of_each_agent(machine: UserMachine):
    """Shows: C024, C029, C030."""
    machine.write_agent("a", "model: openai:x\n", "You are A.\n")
    machine.write_agent("b", "model: openai:x\n", "You are B.\n")

    def echo(request: CapturedRequest) -> FakeResponse:
        return text_reply(f"You said: {request.messages[-1]['content']}")

    lines = "Hello.\n/agent b What do you think?\n/agent a B thinks so too.\n/quit\n"
    async with machine.serve_models(echo):
        ran = await machine("chat", "--agent", "a", "--json", stdin=lines.encode())
    slug_by_text = {run["text"]: run["slug"] for run in ran.json}
    assert [run["agent"] for run in ran.json] == ["a", "b", "a"]
    assert slug_by_text["You said: Hello."] == slug_by_text["You said: B thinks so too."]
    assert slug_by_text["You said: What do you think?"] != slug_by_text["You said: Hello."]


async def test_a_run_prints_its_own_answer_and_stays_until_the_agent_it_messaged_has_ended(
    machine: UserMachine,
):
    """Shows: C041, C042, C045, L019, L020."""
    machine.write_agent("todo", TODO, LISTS)
    gate = asyncio.Event()
    call = ("agents_message", {"agentId": "todo", "content": "Add buy milk.", "mode": "async"})

    async def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            await gate.wait()
            return text_reply("Added: buy milk.")
        if "]: Added: buy milk." in last_message(request):
            return text_reply("Noted for later.")
        return text_reply("I passed it on.") if tool_results(request) else tool_call_reply(call)

    async with machine.serve_models(script):
        process = await machine.start("run", "Ask todo to add buy milk")
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"I passed it on.\n"
        (peer,) = (await machine("runs", "list", "--json")).json
        assert (peer["agent"], peer["status"], process.returncode) == ("todo", "running", None)
        gate.set()
        rest, _ = await process.communicate()
    assert (process.returncode, rest) == (0, b"")
    callback, answered, asked = (await machine("runs", "history", "--json")).json
    assert (asked["text"], answered["text"]) == ("I passed it on.", "Added: buy milk.")
    assert (callback["session_id"], callback["text"]) == (asked["session_id"], "Noted for later.")
    assert "Added: buy milk." in Path(answered["path"]).read_text()


async def test_a_sync_http_message_returns_the_answer_of_its_own_turn(machine: UserMachine):
    """Shows: C039, C042."""
    machine.write_agent("todo", TODO, LISTS)
    gate = asyncio.Event()
    call = ("agents_message", {"agentId": "todo", "content": "Add buy milk.", "mode": "async"})

    async def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            await gate.wait()
            return text_reply("Added: buy milk.")
        if "]: Added: buy milk." in last_message(request):
            return text_reply("Noted for later.")
        if last_message(request) == "And now?":
            return text_reply("Still waiting.")
        if last_message(request) == "First.":
            return text_reply("Hello.")
        return text_reply("I passed it on.") if tool_results(request) else tool_call_reply(call)

    async with machine.serve_models(script), machine.daemon():
        first = (await machine("run", "--json", "First.")).json
        answers = [
            await post_message(machine, first["session_id"], each) for each in ("Ask todo.", "And now?")
        ]
        assert [(each["status"], each["response"]) for each in answers] == [
            ("complete", "I passed it on."),
            ("complete", "Still waiting."),
        ]
        gate.set()
        await machine.wait_for_live_runs()
    history = (await machine("runs", "history", "--json")).json
    assert [each["text"] for each in history if each["session_id"] == first["session_id"]] == [
        "Noted for later.",
        "Still waiting.",
        "I passed it on.",
        "Hello.",
    ]


async def post_message(machine: UserMachine, session: str, content: str) -> dict[str, Any]:
    """Send a sync message over the daemon's socket."""
    connector = aiohttp.UnixConnector(str(machine.home / "daemon.sock"))
    async with aiohttp.ClientSession(connector=connector) as client:
        url = f"http://localhost/api/sessions/{session}/messages"
        async with client.post(url, json={"content": content, "mode": "sync"}) as response:
            return await response.json()
