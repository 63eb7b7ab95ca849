"""Agents are definitions: what a file or the configuration says is what the model's server is asked."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.app.run_options import SpawnOptions
from retinue.domain.exit_tools import EXIT_TOOLS
from retinue.domain.system_prompt import SUBAGENT_PREAMBLE
from retinue.domain.transcript import ToolResult
from retinue.domain.watch import INTERJECT_TOOL
from retinue.errors import BadConfig, NotFound
from retinue.testing.replies import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.tools.registry import built_in_tools

MANAGERS: dict[str, Any] = {
    "agents": [
        {
            "agentId": "reading-list",
            "displayName": "Reading List Manager",
            "systemPrompt": "You keep a reading list.",
            "toolAllowlist": ["reading_list_*"],
            "toolDenylist": ["reading_list_delete"],
            "toolExposure": "mixed",
            "skillAllowlist": ["notes"],
            "capabilityAllowlist": ["lists.*"],
            "capabilityDenylist": ["lists.write"],
            "agentAllowlist": ["todo", "journal"],
            "uiVisible": True,
            "apiExposed": False,
        },
        {"agentId": "todo", "displayName": "Todo Manager", "toolAllowlist": ["todo_*"], "uiVisible": True},
        {
            "agentId": "journal",
            "displayName": "Personal Journal",
            "description": "Keeps a diary.",
            "toolAllowlist": ["journal_*"],
        },
        {
            "agentId": "general",
            "displayName": "General Assistant",
            "systemPrompt": "You are a helpful general assistant.",
            "toolAllowlist": None,
            "uiVisible": True,
        },
    ]
}
"""The shape of seed 002's example, with every field it has."""


def named(name: str, *capabilities: str) -> Any:
    @tool(name=name, capabilities=capabilities, effect="read")
    def answer() -> str:
        """Answers. At length."""
        return name

    return answer


async def test_the_configurations_agents_are_asked_for_as_they_are_written(machine: UserMachine):
    """Shows: C002, C006, C007, C009, C057, C058, C060, C061, C068, C069, C071, C072."""
    machine.write_config(**MANAGERS)
    tools = [
        named("reading_list_add", "lists.read"),
        named("reading_list_delete", "lists.read"),
        named("reading_list_move", "lists.read", "lists.write"),
        named("todo_add"),
    ]
    async with machine.serve_models([text_reply("a")] * 4) as server, machine.open(tools=tools) as app:
        assert {"reading-list", "todo", "journal", "general"} <= set(app.agents.registry.agent_names())
        for name in ("reading-list", "todo", "journal", "general"):
            await app.run("Hi", agent=name, workspace=machine.folder)
    offered = [machine.tool_names(request) for request in server.requests]
    assert offered[:3] == [["reading_list_add"], ["todo_add"], []]
    assert set(offered[3]) > {"read", "ls", "todo_add", "reading_list_delete"}
    prompts = [machine.system_prompt(request) for request in server.requests]
    assert prompts[0] == "You keep a reading list.\n\nAvailable tools:\n- reading_list_add: Answers."
    assert prompts[1] == "You are Todo Manager.\n\nAvailable tools:\n- todo_add: Answers."
    assert prompts[2] == "You are Personal Journal. Keeps a diary."
    assert prompts[3].startswith("You are a helpful general assistant.\n\nAvailable tools:\n- ")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"agents": [{"agentId": "a"}, {"agentId": "a"}]}, "'a' a second time"),
    ({"agents": [{"agentId": "a", "type": "chta"}]}, "type"),
    ({"agents": [{"agentId": "a", "chat": {"provider": "openia"}}]}, "provider"),
    ({"agents": [{"systemPrompt": "x"}]}, "no name"),
    ({"agents": [{"agentId": "a", "toolAlowlist": []}]}, "toolAlowlist"),
    ({"limits": {"max_dept": 2}}, "max_dept"),
    ({"modle": "openai:x"}, "modle"),
    (
        {"agents": [{"agentId": "w", "roles": ["watcher"], "permissionOverrides": {"allowWrites": True}}]},
        "w",
    ),
]


@pytest.mark.parametrize(("settings", "words"), WRONG)
async def test_a_wrong_configuration_is_one_sentence_that_names_the_key(
    machine: UserMachine, settings: dict[str, Any], words: str
):
    """Shows: C003, C004, D010."""
    machine.write_config(**settings)
    with pytest.raises((BadConfig, NotFound)) as wrong:
        async with machine.open() as app:
            app.agents.registry.get("w")
    assert words in str(wrong.value)
    assert "\n" not in str(wrong.value)


async def test_a_definitions_model_and_temperature_are_what_is_asked_for(machine: UserMachine):
    """Shows: B005, B016, C099, A032."""
    machine.write_agent(
        "cool", "model: anthropic:claude-cool\ntemperature: 0.1\nmax_tokens: 321\n", "Stay cool."
    )
    machine.write_agent("warm", "model: openai:gpt-warm\ntemperature: 0.8\nmax_tokens: 123\n", "Stay warm.")
    async with (
        machine.serve_models([text_reply("a"), text_reply("b"), text_reply("c")]) as server,
        machine.open() as app,
    ):
        await app.run("Hi", agent="cool", workspace=machine.folder)
        await app.run("Hi", agent="warm", workspace=machine.folder)
        await app.run("Hi", workspace=machine.folder)
    cool, warm, plain = (request.body for request in server.requests)
    assert (cool["model"], cool["temperature"], cool["max_tokens"]) == ("claude-cool", 0.1, 321)
    assert (warm["model"], warm["temperature"]) == ("gpt-warm", 0.8)
    assert 123 in (warm.get("max_tokens"), warm.get("max_completion_tokens"))
    assert (plain["model"], "temperature" in plain) == ("test-model", False)


async def test_tools_that_are_named_are_all_an_agent_gets(machine: UserMachine):
    """Shows: B012, B013, C055, C056, T01."""
    machine.write_agent("narrow", "model: openai:x\ntools: [read]\n")
    machine.write_agent("wide", "model: openai:x\n")
    (machine.folder / "a.txt").write_text("needle")
    script = [
        tool_call_reply(("grep", {"pattern": "needle"}), ("read", {"path": "a.txt"})),
        text_reply("a"),
        text_reply("b"),
    ]
    async with machine.serve_models(script) as server, machine.open() as app:
        run = await app.run("Go", agent="narrow", workspace=machine.folder)
        await app.run("Go", agent="wide", workspace=machine.folder)
        results = [entry for entry in await app.sessions.entries(run.slug) if isinstance(entry, ToolResult)]
        every = sorted(
            each.spec.name
            for each, _ in await app.permissions.tool_verdicts(agent="wide")
            if each.spec.name not in (*EXIT_TOOLS, INTERJECT_TOOL)
        )
    assert machine.tool_names(server.requests[0]) == ["read"]
    assert machine.tool_names(server.requests[2]) == every
    assert sorted(result.ok for result in results) == [False, True]
    assert server.requests[1].raw_body.count(b"needle") == 2


async def test_a_broken_definition_is_not_listed_and_cannot_be_started(machine: UserMachine):
    """Shows: B007, D01."""
    bad = machine.write_agent("bad", "tools: [read\n")
    machine.write_agent("worse", "tolls: [read]\n")
    async with machine.serve_models([]) as server:
        listed = await machine("agents", "list", "--json")
        assert not {"bad", "worse"} & {row["name"] for row in listed.json}
        assert f"{bad}:" in listed.err
        assert "tolls" in listed.err
        ran = await machine("run", "--agent", "worse", "Go")
        assert (ran.code, ran.out) == (7, "")
        assert ran.err.startswith("retinue: Agent 'worse' not found")
        assert len(ran.err.splitlines()) == 1
        assert server.requests == []


async def test_the_general_agent_is_written_down_for_a_person_to_change(machine: UserMachine):
    """Shows: B009, B010, B011."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]) as server, machine.open() as app:
        assert not machine.agents.exists()
        await app.run("Hi", workspace=machine.folder)
        own = machine.agents / "general.md"
        assert own.is_file()
        own.write_text(own.read_text().split("---\n")[0] + "---\nname: general\n---\n\nI was changed.\n")
        await app.run("Hi", workspace=machine.folder)
        assert machine.system_prompt(server.requests[1]).startswith("I was changed.")
        with pytest.raises(Exception, match="cannot be deleted"):
            app.agents.registry.delete("general")


async def test_a_definition_is_read_again_only_when_it_changed(machine: UserMachine):
    """Shows: B043, B044."""
    file = machine.write_agent("brief", "model: openai:x\n", "One.")
    os.utime(file, (1e9, 1e9))
    async with machine.open() as app:
        assert app.agents.registry.get("brief").agent.prompt.strip() == "One."
        reads = app.agents.registry.files_read
        for _ in range(5):
            app.agents.registry.get("brief")
        assert app.agents.registry.files_read == reads
        app.agents.registry.save("brief", file.read_text().replace("One.", "Two."))
        assert app.agents.registry.get("brief").agent.prompt.strip() == "Two."
        assert app.agents.registry.files_read > reads


async def test_agents_are_made_by_files_and_not_by_a_command(machine: UserMachine):
    """Shows: C001."""
    said = (await machine("agents", "--help")).out
    assert not {"create", "new", "add"} & set(said.split())


async def test_an_agent_that_is_hidden_is_not_shown_to_choose_from(machine: UserMachine):
    """Shows: C008."""
    machine.write_config(agents=[{"agentId": "secretive", "uiVisible": False}, {"agentId": "open"}])
    shown, every = [
        {row["name"] for row in (await machine("agents", "list", "--json", *more)).json}
        for more in ([], ["--all"])
    ]
    assert (every - shown, "open" in shown) == ({"secretive"}, True)


async def test_definitions_are_merged_field_by_field_and_inherit_where_they_say_so(machine: UserMachine):
    """Shows: D005, D006, D007, C094."""
    machine.agents.mkdir()
    (machine.agents / "oracle.json").write_text(json.dumps({"id": "oracle", "temperature": 0.7}))
    machine.write_agent("sibyl", "extends: oracle\ndescription: Her sister.\n", "Speak softly.")
    machine.write_config(
        agents=[
            {
                "id": "oracle",
                "model": "openai:delphi",
                "capabilities": ["subtask", "orchestrator"],
                "tools": {"read": {"enabled": True, "mode": "read"}, "grep": {"enabled": False}},
                "defaultWorkspace": {"mode": "sandbox", "allowWrites": False},
                "triggers": {"slash": ["ask"], "hotkeys": ["ctrl+o"]},
            }
        ]
    )
    async with machine.serve_models([text_reply("a"), text_reply("b")]) as server, machine.open() as app:
        defined = app.agents.registry.get("oracle")
        await app.run("Hi", agent="oracle", workspace=machine.folder)
        await app.run("Hi", agent="sibyl", workspace=machine.folder)
    assert (defined.agent.temperature, defined.agent.model) == (0.7, "openai:delphi")
    assert [str(role) for role in defined.agent.roles] == ["subtask", "orchestrator"]
    assert (defined.sources["model"], Path(defined.sources["temperature"]).name) == ("inline", "oracle.json")
    for request in server.requests:
        assert (request.body["model"], request.body["temperature"]) == ("delphi", 0.7)
        assert machine.tool_names(request) == ["read"]
    assert machine.system_prompt(server.requests[1]).startswith("Speak softly.")


async def test_a_childs_prompt_begins_with_what_every_child_is_told(machine: UserMachine):
    """Shows: C067, C071."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        await app.runs.wait(
            (await app.runs.spawn("Go", SpawnOptions(parent=parent.slug, agent="general"))).id
        )
    top, child = (machine.system_prompt(request) for request in server.requests)
    doors = tuple(f"- {name}:" for name, tool in built_in_tools().items() if tool.is_delegation)
    others = top.index("\n\nAvailable agents")
    own = "\n".join(line for line in top[:others].splitlines() if not line.startswith(doors))
    assert child == f"{SUBAGENT_PREAMBLE}\n\n{own}"


async def test_what_the_operator_wrote_is_never_rewritten(machine: UserMachine):
    """Comments, order and blank lines of the configuration and of definitions are the operator's.

    Shows: D14.
    """
    config = machine.agents.parent / "config.toml"
    config.write_text("# my settings\n\n[limits]\nmax_live = 3   # enough\n")
    agent = machine.write_agent("mine")
    agent.write_text("---\n# who it is\ndescription:   Mine.\n---\nBe brief.\n\n\n")
    before = (config.read_bytes(), agent.read_bytes())
    async with machine.serve_models([text_reply("Done.")]), machine.open() as app:
        await app.run("Go.", agent="mine", workspace=machine.folder)
        await app.repair.diagnose()
        app.agents.registry.list_definitions()
    assert (config.read_bytes(), agent.read_bytes()) == before
