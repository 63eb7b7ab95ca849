"""Agent definitions in files and in the configuration decide what the model server receives."""

import asyncio
import ctypes
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import require_pipe
from user_machine import UserMachine, spawn_and_wait

from retinue.domain.exit_tools import EXIT_TOOLS
from retinue.domain.system_prompt import SUBAGENT_PREAMBLE
from retinue.domain.transcript import ToolResult
from retinue.domain.watch import INTERJECT_TOOL
from retinue.errors import BadConfig, NotFound
from retinue.interfaces import Tool
from retinue.testing.replies import text_reply, tool_call_reply
from retinue.tools.define import tool
from retinue.tools.registry import built_in_tools

MANAGER_AGENTS: dict[str, Any] = {
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
"""The example of the specification, with all its fields."""


def make_tool(name: str, *capabilities: str) -> Tool:
    @tool(name=name, capabilities=capabilities, effect="read")
    def answer() -> str:
        """Answers. At length."""
        return name

    return answer


async def test_agents_of_the_configuration_have_the_prompts_and_tools_written_there(machine: UserMachine):
    """Shows: C002, C006, C007, C009, C057, C058, C060, C061, C068, C069, C071, C072."""
    machine.write_config(**MANAGER_AGENTS)
    tools = [
        make_tool("reading_list_add", "lists.read"),
        make_tool("reading_list_delete", "lists.read"),
        make_tool("reading_list_move", "lists.read", "lists.write"),
        make_tool("todo_add"),
    ]
    async with machine.serve_models([text_reply("a")] * 4) as server, machine.open(tools=tools) as app:
        assert {"reading-list", "todo", "journal", "general"} <= set(app.agents.registry.agent_names())
        for name in ("reading-list", "todo", "journal", "general"):
            await app.run("Hi", agent=name, workspace=machine.folder)
    visible_tools = [machine.tool_names(request) for request in server.requests]
    assert visible_tools[:3] == [["reading_list_add"], ["todo_add"], []]
    assert set(visible_tools[3]) > {"read", "ls", "todo_add", "reading_list_delete"}
    prompts = [machine.system_prompt(request) for request in server.requests]
    assert prompts[0] == "You keep a reading list.\n\nAvailable tools:\n- reading_list_add: Answers."
    assert prompts[1] == "You are Todo Manager.\n\nAvailable tools:\n- todo_add: Answers."
    assert prompts[2] == "You are Personal Journal. Keeps a diary."
    assert prompts[3].startswith("You are a helpful general assistant.\n\nAvailable tools:\n- ")


INVALID_SETTINGS: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("settings", "message"), INVALID_SETTINGS)
async def test_an_invalid_configuration_is_reported_in_one_line_that_names_the_key(
    machine: UserMachine, settings: dict[str, Any], message: str
):
    """Shows: C003, C004, D010."""
    machine.write_config(**settings)
    with pytest.raises((BadConfig, NotFound)) as error:
        async with machine.open() as app:
            app.agents.registry.get("w")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


async def test_requests_use_the_model_and_temperature_of_the_definition(machine: UserMachine):
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


async def test_an_agent_gets_only_the_tools_that_its_definition_names(machine: UserMachine):
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
        all_tools = sorted(
            each.spec.name
            for each, _ in await app.permissions.tool_verdicts(agent="wide")
            if each.spec.name not in (*EXIT_TOOLS, INTERJECT_TOOL)
        )
    assert machine.tool_names(server.requests[0]) == ["read"]
    assert machine.tool_names(server.requests[2]) == all_tools
    assert sorted(result.ok for result in results) == [False, True]
    assert server.requests[1].raw_body.count(b"needle") == 2


async def test_an_invalid_definition_is_not_listed_and_cannot_be_run(machine: UserMachine):
    """Shows: B007, D01."""
    bad = machine.write_agent("bad", "tools: [read\n")
    machine.write_agent("worse", "tolls: [read]\n")
    async with machine.serve_models([]) as server:
        listed = await machine("agents", "list", "--json")
        assert not {"bad", "worse"} & {row["name"] for row in listed.json}
        assert f"{bad}:" in listed.err
        assert "tolls" in listed.err
        ran = await machine("run", "--agent", "worse", "Go")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("retinue: Agent 'worse' not found")
        assert len(ran.err.splitlines()) == 1
        assert server.requests == []


async def test_the_general_agent_is_written_to_a_file_that_a_person_can_edit(machine: UserMachine):
    """Shows: B009, B010, B011."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]) as server, machine.open() as app:
        assert not machine.agents.exists()
        await app.run("Hi", workspace=machine.folder)
        file = machine.agents / "general.md"
        assert file.is_file()
        file.write_text(file.read_text().split("---\n")[0] + "---\nname: general\n---\n\nI was changed.\n")
        await app.run("Hi", workspace=machine.folder)
        assert machine.system_prompt(server.requests[1]).startswith("I was changed.")
        with pytest.raises(Exception, match="cannot be deleted"):
            app.agents.registry.delete("general")


async def test_the_registry_reads_a_definition_again_only_after_it_changed(machine: UserMachine):
    """Shows: B043, B044."""
    file = machine.write_agent("brief", "model: openai:x\n", "One.")
    async with machine.open() as app:
        reads = -1
        while reads != app.agents.registry.files_read:  # until the stamp is old enough to be trusted
            reads = app.agents.registry.files_read
            assert app.agents.registry.get("brief").agent.prompt.strip() == "One."
        for _ in range(5):
            app.agents.registry.get("brief")
        assert app.agents.registry.files_read == reads
        app.agents.registry.save("brief", file.read_text().replace("One.", "Two."))
        assert app.agents.registry.get("brief").agent.prompt.strip() == "Two."
        assert app.agents.registry.files_read > reads


IN_OPEN = 0x20


class OpenCounter:
    """Counts how often any process opens a file, with inotify."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def read_count(self) -> int:
        """Return how often the file was opened since the last call; successive events may be merged into one."""
        try:
            # Events about one file have no name and are 16 bytes each.
            return len(os.read(self._handle, 65536)) // 16
        except BlockingIOError:
            return 0


@contextmanager
def count_opens(path: Path) -> Generator[OpenCounter]:
    libc = ctypes.CDLL(None, use_errno=True)
    handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(handle, os.fsencode(path), IN_OPEN) > 0
    try:
        yield OpenCounter(handle)
    finally:
        os.close(handle)


async def wait_for_output(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdout is not None
    output = b""
    async with asyncio.timeout(45):
        while text.encode() not in output:
            piece = await process.stdout.read(4096)
            assert piece, f"the process ended before it printed {text!r}"
            output += piece


async def test_a_running_chat_reads_a_definition_again_only_after_it_changed(machine: UserMachine):
    """Shows: B043, B044."""
    file = machine.write_agent("brief", "model: openai:x\n", "Speak of ONE.")
    async with machine.serve_models(
        [text_reply("first."), text_reply("second."), text_reply("third.")]
    ) as server:
        with count_opens(file) as counter:
            chat = await machine.start("chat", "--agent", "brief")
            for message, reply in ((b"a\n", "first."), (b"b\n", "second.")):
                require_pipe(chat.stdin).write(message)
                await wait_for_output(chat, reply)
                assert (counter.read_count() > 0) == (reply == "first.")
        file.write_text(file.read_text().replace("ONE", "TWO"))
        with count_opens(file) as counter:
            require_pipe(chat.stdin).write(b"c\n")
            await wait_for_output(chat, "third.")
            assert counter.read_count() > 0
        require_pipe(chat.stdin).close()
        assert await chat.wait() == 0
    assert ["TWO" in machine.system_prompt(request) for request in server.requests] == [False, False, True]


async def test_no_command_creates_an_agent(machine: UserMachine):
    """Shows: C001."""
    output = (await machine("agents", "--help")).out
    assert not {"create", "new", "add"} & set(output.split())


async def test_a_hidden_agent_is_listed_only_with_all(machine: UserMachine):
    """Shows: C008."""
    machine.write_config(agents=[{"agentId": "secretive", "uiVisible": False}, {"agentId": "open"}])
    visible, all_names = [
        {row["name"] for row in (await machine("agents", "list", "--json", *more)).json}
        for more in ([], ["--all"])
    ]
    assert (all_names - visible, "open" in visible) == ({"secretive"}, True)


async def test_definitions_are_merged_field_by_field_and_inherit_with_extends(machine: UserMachine):
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
        definition = app.agents.registry.get("oracle")
        await app.run("Hi", agent="oracle", workspace=machine.folder)
        await app.run("Hi", agent="sibyl", workspace=machine.folder)
    assert (definition.agent.temperature, definition.agent.model) == (0.7, "openai:delphi")
    assert [str(role) for role in definition.agent.roles] == ["subtask", "orchestrator"]
    assert (definition.sources["model"], Path(definition.sources["temperature"]).name) == (
        "inline",
        "oracle.json",
    )
    for request in server.requests:
        assert (request.body["model"], request.body["temperature"]) == ("delphi", 0.7)
        assert machine.tool_names(request) == ["read"]
    assert machine.system_prompt(server.requests[1]).startswith("Speak softly.")


async def test_a_childs_prompt_begins_with_the_preamble_for_sub_agents(machine: UserMachine):
    """Shows: C067, C071."""
    async with machine.serve_models([text_reply("a"), text_reply("b")]) as server, machine.open() as app:
        parent = await app.run("Hi", workspace=machine.folder)
        await spawn_and_wait(app, parent.slug, "general")
    top, child = (machine.system_prompt(request) for request in server.requests)
    delegation_lines = tuple(f"- {name}:" for name, tool in built_in_tools().items() if tool.is_delegation)
    agents_section = top.index("\n\nAvailable agents")
    own_prompt = "\n".join(
        line for line in top[:agents_section].splitlines() if not line.startswith(delegation_lines)
    )
    assert child == f"{SUBAGENT_PREAMBLE}\n\n{own_prompt}"


async def test_files_that_the_operator_wrote_are_never_rewritten(machine: UserMachine):
    """Comments, order and blank lines of the configuration and of definitions are kept.

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
