"""Agents that ask each other, through the command: one answer for the person, and a conversation for whoever was asked."""

import asyncio
import json
from pathlib import Path
from typing import Any

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

LISTS = "You keep lists."
TODO = 'display_name: Todo List Manager\ndescription: "manages tasks and reminders"\ntools: [todo]\n'
SECTION = "- todo: Todo List Manager - manages tasks and reminders"
HOW = "Use agents_message to ask another agent to perform a task."


def spoken(request: CapturedRequest) -> str:
    return request.messages[-1]["content"]


def answered(request: CapturedRequest) -> list[Any]:
    """What came back from the calls of this conversation."""
    return [json.loads(each["content"]) for each in request.messages if each["role"] == "tool"]


async def test_a_person_asks_one_agent_and_it_asks_another(machine: UserMachine):
    """Shows: C025, C026, C027, C028, C037, C038, C039, C081, C082."""
    machine.write_agent("todo", TODO, LISTS)
    asks = tool_call_reply(("agents_message", {"agentId": "todo", "content": "Add buy milk."}))

    def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            said = spoken(request) == "Add buy milk."
            return (
                tool_call_reply(("todo", {"items": ["buy milk"]})) if said else text_reply("Added: buy milk.")
            )
        return text_reply("It is on the list.") if answered(request) else asks

    async with machine.serve_models(script) as server:
        ran = await machine("run", "Ask todo to add buy milk")
    assert (ran.code, ran.out.strip()) == (0, "It is on the list.")
    first, inner, _, last = server.requests
    assert f"\n{SECTION}\n" in machine.system_prompt(first)
    assert machine.system_prompt(first).endswith(HOW)
    assert "- general:" not in machine.system_prompt(first)
    assert machine.tool_names(inner) == ["todo"]
    assert HOW not in machine.system_prompt(inner)
    (answer,) = answered(last)
    assert (answer["status"], answer["response"], answer["created"]) == ("complete", "Added: buy milk.", True)
    assert (answer["toolCallCount"], [each["name"] for each in answer["toolCalls"]]) == (1, ["todo"])
    listed = (await machine("sessions", "list", "--json")).json
    (own,) = [each for each in listed if each["agent"] == "todo"]
    assert (own["session_id"], own["parent"]) == (answer["sessionId"], None)
    text = Path(own["path"]).read_text()
    assert text.index("Add buy milk.") < text.index("Added: buy milk.")


async def test_the_time_is_up_and_the_answer_comes_after_all(machine: UserMachine):
    """Shows: C040, C045, C09."""
    machine.write_agent("todo", TODO, LISTS)
    gate = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if machine.system_prompt(request).startswith(LISTS):
            await gate.wait()
            return text_reply("Added: buy milk.")
        if "]: Added: buy milk." in spoken(request):
            return text_reply("It is on the list after all.")
        if answered(request):
            gate.set()
            return text_reply("No answer yet.")
        return tool_call_reply(
            ("agents_message", {"agentId": "todo", "content": "Add buy milk.", "timeout": 1})
        )

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Ask todo to add buy milk")
    assert (ran.code, ran.json["text"]) == (0, "It is on the list after all.")
    (answer,) = answered(server.requests[-1])
    assert (answer["status"], answer["timeoutSeconds"]) == ("timeout", 1)
    heard = f"[Async response, responseId={answer['responseId']}]: Added: buy milk."
    assert heard in spoken(server.requests[-1])
    runs = (await machine("runs", "history", "--json")).json
    (later,) = [each for each in runs if each["run_id"] == answer["responseId"]]
    assert (later["status"], later["text"]) == ("done", "Added: buy milk.")
    assert "Added: buy milk." in Path(later["path"]).read_text()


async def test_a_message_to_one_who_is_hidden_or_denied_writes_nothing(machine: UserMachine):
    """Shows: C036, C046, C064, T13."""
    machine.write_agent("hidden", "ui_visible: false\n", LISTS)
    machine.write_agent("secret", "", LISTS)
    machine.write_config(deny={"agents": ["secret"]})
    wishes = [
        ("agents_message", {"agentId": each, "content": "Hi."}) for each in ("hidden", "secret", "nobody")
    ]
    script = [tool_call_reply(*wishes, ("agents_list", {})), text_reply("None of them.")]
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Ask them")
    assert (ran.code, ran.json["children"]) == (0, [])
    *refused, others = answered(server.requests[-1])
    assert [(each["error"]["code"], each["error"]["message"]) for each in refused] == [
        ("agent_not_accessible", "Agent not accessible: hidden"),
        ("agent_not_accessible", "Agent not accessible: secret"),
        ("agent_not_found", "Agent not found: nobody"),
    ]
    assert not {"hidden", "secret", "general"} & {each["agentId"] for each in others["agents"]}
    assert [each["agent"] for each in (await machine("sessions", "list", "--json")).json] == ["general"]


async def test_what_the_configuration_denies_is_there_for_nobody(machine: UserMachine):
    """Shows: C065."""
    machine.write_agent("asks", "tools: [agents_message, agents_list, read]\n")
    machine.write_config(deny={"tools": ["agents_*"]})
    async with machine.serve_models([text_reply("Hi."), text_reply("Hi.")]) as server:
        await machine("run", "Hi")
        await machine("run", "--agent", "asks", "Hi")
    general, asks = server.requests
    assert not {"agents_message", "agents_list"} & set(machine.tool_names(general))
    assert machine.tool_names(asks) == ["read"]
    assert "agents_message" not in machine.system_prompt(general)
    rows = {each["name"]: each for each in (await machine("tools", "list", "--agent", "asks", "--json")).json}
    assert (rows["agents_message"]["available"], rows["agents_list"]["available"]) == (False, False)
    assert rows["agents_message"]["rule"].startswith("operator deny")


async def test_the_list_of_tools_says_who_can_ask_others(machine: UserMachine):
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


async def test_a_person_goes_to_another_agent_with_words_and_back_with_what_was_decided(machine: UserMachine):
    """Shows: C024, C029, C030."""
    machine.write_agent("a", "model: openai:x\n", "You are A.\n")
    machine.write_agent("b", "model: openai:x\n", "You are B.\n")

    def echo(asked: CapturedRequest) -> FakeResponse:
        return text_reply(f"I hear: {asked.messages[-1]['content']}")

    lines = "Hello.\n/agent b What do you think?\n/agent a B thinks so too.\n/quit\n"
    async with machine.serve_models(echo):
        ran = await machine("chat", "--agent", "a", "--json", stdin=lines.encode())
    said = {run["text"]: run["slug"] for run in ran.json}
    assert [run["agent"] for run in ran.json] == ["a", "b", "a"]
    assert said["I hear: Hello."] == said["I hear: B thinks so too."]
    assert said["I hear: What do you think?"] != said["I hear: Hello."]
