"""Import of agent definitions: every key gets a verdict, no file raises, and the results load."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent_import import check_definition, field_verdicts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.agents.definition_file import parse_preset
from retinue.agents.dialects import tool_names
from retinue.agents.importing.importer import check_definitions, import_definitions
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import Agent, ShellCommands

CLAUDE_AGENT = """---
name: Backend Architect
description: Use this agent when designing APIs. Examples: <example>Context: "new": service</example>
tools: Read, Write, Bash(git add:*, git status), mcp__github__search, WebSearch
disallowedTools: Bash(rm *), NotebookEdit
model: sonnet
color: blue
permissionMode: acceptEdits
maxTurns: 12
effort: high
isolation: worktree
hooks:
  PreToolUse:
    - matcher: Bash
mcpServers: [github]
memory: project
zork: {deep: [1, 2]}
---

You design things.
"""


def import_agents(path: Path, target: Path) -> dict[str, Agent]:
    names = [result.name for result in import_definitions(path, target) if result.target is not None]
    registry = FileAgentRegistry(user_dir=target)
    return {name: registry.get(name).agent for name in names}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def test_every_key_of_a_claude_code_agent_gets_one_verdict(source: Path):
    path = source / "architect.md"
    path.write_text(CLAUDE_AGENT)
    check = check_definition(path)
    assert (check.ok, check.name, check.dialect) == (True, "backend-architect", "claude-code")
    assert check.repaired_keys == ("description",)
    verdicts = field_verdicts(check)
    assert {key: verdict for key, (verdict, _) in verdicts.items()} == {
        "name": "mapped",
        "description": "mapped",
        "tools": "mapped",
        "disallowedTools": "mapped",
        "model": "mapped",
        "color": "kept",
        "permissionMode": "refused",
        "maxTurns": "honoured",
        "effort": "honoured",
        "isolation": "mapped",
        "hooks": "refused",
        "mcpServers": "refused",
        "memory": "kept",
        "zork": "kept",
    }
    assert len(check.fields) == len(verdicts)
    assert "left out: Bash(git add:*, git status)" in verdicts["tools"][1]
    assert "not built-in tools: github.search, WebSearch" in verdicts["tools"][1]
    assert verdicts["disallowedTools"][1] == (
        "shell_commands.deny: rm; no such tool here, nothing to deny: NotebookEdit"
    )


def test_a_denied_command_denies_that_command_and_not_the_whole_tool(source: Path, tmp_path: Path):
    denied = "[NotebookEdit, 'Bash(rm:*)', 'Bash(git push *)', 'Bash(npm publish)', Write, 'Bash(a * b)', 'Read(./x)']"
    (source / "x.md").write_text(
        f"---\nname: x\ntools: Read, Edit, Bash\ndisallowedTools: {denied}\n---\nHi.\n"
    )
    (imported,) = import_definitions(source / "x.md", tmp_path / "user")
    agent = parse_preset((tmp_path / "user" / "x.md").read_text(), "x.md")
    assert agent.tool_deny == ("write", "bash", "read")
    assert agent.shell_commands == ShellCommands(deny=("rm", "git push", "npm publish"))
    (note,) = (each.note for each in imported.check.fields if each.field == "disallowedTools")
    for part in ("shell_commands.deny: rm, git push, npm publish", "nothing to deny: NotebookEdit"):
        assert part in note
    assert "denied as a whole: Bash(a * b), Read(./x)" in note


def test_other_files_of_a_program_in_a_folder_are_left_alone(tmp_path: Path):
    """An agent inside a plugin's own repository is imported; a named file is imported whatever it is."""
    root = tmp_path / "project"
    files = {
        ".claude/agents/scout.md": "",
        ".claude/skills/pdf/SKILL.md": "skill",
        ".claude/skills/pdf/notes.md": "skill",
        ".claude/commands/commit.md": "command",
        ".claude/rules/style.md": "rule",
        ".cursor/rules/ts.mdc": "rule",
        ".github/prompts/ask.prompt.md": "command",
        ".github/instructions/py.instructions.md": "rule",
        "plugins/foo/.claude-plugin/plugin.json": "plugin",
        "plugins/foo/agents/plug.md": "",
        "plugins/foo/commands/do.md": "command",
        "deep/SKILL.md": "skill",
        "deep/agents/grader.md": "skill",
        ".claude/settings.json": "settings file",
        ".claude/settings.local.json": "settings file",
        ".claude/output-styles/short.md": "output style",
        ".claude/plugins/cache/bar/agents/inner.md": "plugin",
        ".claude/plugins/cache/bar/.claude-plugin/plugin.json": "plugin",
        ".codex/config.toml": "settings file",
        ".gemini/settings.json": "settings file",
        ".github/ISSUE_TEMPLATE/bug.md": "issue template",
        ".kiro/steering/tone.md": "rule",
        ".pi/prompts/plan.md": "command",
        ".windsurf/workflows/ship.md": "command",
    }
    (root / ".claude" / "worktrees" / "w" / ".claude" / "agents").mkdir(parents=True)
    (root / ".claude" / "worktrees" / "w" / ".claude" / "agents" / "copy.md").write_text(
        "---\nname: copy\n---\n"
    )
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        stem = (root / name).stem.lower()
        (root / name).write_text(
            '{"name": "p", "agents": ["./agents"]}'
            if name.endswith(".json")
            else f"---\nname: {stem}\n---\nHi.\n"
        )
    results = import_definitions(root, tmp_path / "user")
    assert {str(each.check.path.relative_to(root)): each.check.kind for each in results} == files
    assert sorted(each.name for each in results if each.target) == ["plug", "scout"]
    assert sorted(each.name for each in (tmp_path / "user").iterdir()) == ["plug.md", "scout.md"]
    (named,) = import_definitions(root / ".claude" / "commands" / "commit.md", tmp_path / "user")
    assert named.name == "commit"


def test_an_imported_definition_keeps_fields_prompt_and_notes(source: Path, tmp_path: Path):
    """Shows: D08."""
    (source / "architect.md").write_text(CLAUDE_AGENT)
    (agent,) = import_agents(source, tmp_path / "agents").values()
    assert (agent.name, agent.display_name, agent.prompt) == (
        "backend-architect",
        "Backend Architect",
        "You design things.",
    )
    assert agent.description.startswith("Use this agent when designing APIs. Examples: <example>Context:")
    assert agent.tool_allow == ("read", "write", "github.search", "WebSearch")
    assert agent.shell_commands == ShellCommands(deny=("rm",))
    assert agent.model == "anthropic:claude-sonnet-5-5"
    assert agent.notes == {"color": "blue", "memory": "project", "zork": {"deep": [1, 2]}}


def test_colliding_names_get_a_number_and_no_file_is_overwritten(source: Path, tmp_path: Path):
    """Shows: D08."""
    target = tmp_path / "agents"
    target.mkdir()
    (target / "scout.md").write_text("mine")
    for number, name in enumerate(("Scout", "scout!", "SCOUT", "Reviewer")):
        (source / f"{number}.md").write_text(f"---\nname: {name}\n---\nNumber {number}.\n")
    results = import_definitions(source, target)
    assert [each.name for each in results] == ["scout-2", "scout-3", "scout-4", "reviewer-2"]
    assert (target / "scout.md").read_text() == "mine"


def test_a_definition_with_an_invalid_restriction_is_not_imported(source: Path, tmp_path: Path):
    for key in ("tools: 7", "paths: {read: 3}", "disallowedTools: {a: b}", "capabilityAllowlist: true"):
        (source / "x.md").write_text(f"---\nname: x\n{key}\n---\nHi.\n")
        check = check_definition(source / "x.md")
        assert not check.ok
        assert check.problems
        assert import_definitions(source, tmp_path / "agents")[0].target is None


@pytest.mark.parametrize(
    ("keys", "dialect"),
    [
        ({"name": "a", "tools": ["read"]}, "retinue"),
        ({"agentId": "a", "displayName": "A", "toolAllowlist": None}, "agent-config"),
        ({"id": "a", "capabilities": ["subtask"], "defaultWorkspace": {"mode": "inherit"}}, "profile"),
        ({"backend": "Claude", "model": "claude-3-7-sonnet-20250219"}, "preset"),
        ({"description": "x", "mode": "subagent", "tools": {"write": False}}, "opencode"),
        ({"name": "a", "tools": "Read, Grep"}, "claude-code"),
        ({"name": "a", "model": "inherit"}, "claude-code"),
        ({"name": "a", "wibble": 1}, "other"),
    ],
)
def test_the_dialect_of_a_definition_is_recognized(source: Path, keys: dict[str, Any], dialect: str):
    path = source / "a.json"
    path.write_text(json.dumps(keys))
    check = check_definition(path)
    assert (check.ok, check.name, check.dialect) == (True, "a", dialect)
    assert [each.field for each in check.fields] == list(keys)


def test_a_file_may_hold_several_definitions(source: Path, tmp_path: Path):
    (source / "config.json").write_text(
        json.dumps(
            {"agents": [{"agentId": "one"}, {"agentId": "two words", "chat": {"provider": "pi-cli"}}, 7]}
        )
    )
    (source / "map.json").write_text(json.dumps({"agent": {"three": {"prompt": "Hi", "temperature": 0.2}}}))
    (source / "plain.yml").write_text("name: four\nprompt: |\n  Hello\n")
    results = check_definitions(source)
    assert [(each.path.name, each.ok, each.name) for each in results] == [
        ("config.json#agents[0]", True, "one"),
        ("config.json#agents[1]", True, "two-words"),
        ("config.json#agents[2]", False, ""),
        ("map.json#agent.three", True, "three"),
        ("plain.yml", True, "four"),
    ]
    agents = import_agents(source, tmp_path / "agents")
    assert agents["two-words"].driver == "pi-cli"
    assert (agents["three"].temperature, agents["four"].prompt) == (0.2, "Hello\n")


def test_a_prompt_file_next_to_the_definition_is_imported(source: Path, tmp_path: Path):
    (source / "coach.json").write_text(json.dumps({"id": "coach", "promptPath": "coach.txt"}))
    assert "does not exist" in check_definition(source / "coach.json").problems[0]
    (source / "coach.txt").write_text("Coach.\n")
    assert import_agents(source, tmp_path / "agents")["coach"].prompt == "Coach."


UNUSUAL_FILES: dict[str, bytes] = {
    "no-front-matter.md": b"# Just a page\n",
    "empty.md": b"",
    "bom.md": "\ufeff---\nname: bom\n---\nHi\n".encode(),
    "crlf.md": b"---\r\nname: crlf\r\ndescription: a: b\r\ntools: Read\r\n---\r\nHi\r\n",
    "tabs.md": b"---\nname:\ttabs\ndescription:\tUse it\ntools:\tRead\n---\nHi\n",
    "star.md": b"---\nname: star\ntools: *\n---\nHi\n",
    "unclosed.md": b"---\nname: x\n",
    "unclosed-quote.md": b"---\nname: quote\ndescription: \"it's open\ntools: Read\n---\nHi\n",
    "twice.md": b"---\nname: twice\ntools: [read]\ntools: ['*']\n---\nHi\n",
    "emoji-🚀.md": "---\nname: 🚀\ndescription: 🎉\n---\nHi 🎉\n".encode(),
    "list.md": b"---\n- a\n- b\n---\n",
    "huge.md": b"---\nname: huge\n---\n" + b"x" * 400_000,
    "huge-front.md": b"---\nname: huge\ndescription: " + b"x" * 70_000 + b"\n---\n",
    "binary.md": bytes(range(256)) * 4,
    "utf16.md": "---\nname: x\n---\n".encode("utf-16"),
    "nul.md": b"---\nname: nul\n---\n\x00",
    "latin.md": b"---\nname: latin\ndescription: caf\xe9\n---\n",
    "bomb.md": b"---\na: &a [x]\nb: [*a, *a]\n---\n",
    "deep.md": b"---\nname: deep\nx: " + b"[" * 500 + b"\n---\nHi\n",
    "multi.yml": b"name: a\n---\nname: b\n",
    "broken.json": b'{"name": ',
    "odd.json": b'{"name": 5, "tools": [1, {"a": []}], "model": ["x"]}',
    "scalar.json": b"7",
    "null.json": b"null",
    "keys.json": b'{"": 1, "a\\nb": {"c": null}, "name": "keys", "notes": {"x": 1}}',
    "two-prompts.md": b"---\nname: two\nsystemPrompt: a\n---\nb\n",
    "rtl.md": "---\nname: rtl\ndescription: \u202eevil\u2066\n---\nHi\n".encode(),
}


def test_unusual_and_damaged_files_are_imported_or_reported(source: Path, tmp_path: Path):
    """Shows: D06."""
    folder = source / "a" / "b" / ".claude" / "agents"
    folder.mkdir(parents=True)
    for name, data in UNUSUAL_FILES.items():
        (folder / name).write_bytes(data)
    (source / "link.md").symlink_to(folder / "bom.md")
    os.mkfifo(source / "pipe.md")
    (source / "node_modules").mkdir()
    (source / "node_modules" / "x.md").write_bytes(UNUSUAL_FILES["bom.md"])
    results = check_definitions(source)
    assert {each.path.name for each in results} == {*UNUSUAL_FILES, "link.md", "pipe.md"}
    assert {each.path.name: each.name for each in results if each.ok} == {
        "bom.md": "bom",
        "crlf.md": "crlf",
        "tabs.md": "tabs",
        "star.md": "star",
        "unclosed-quote.md": "quote",
        "emoji-🚀.md": "emoji",
        "deep.md": "deep",
        "keys.json": "keys",
        "rtl.md": "rtl",
        "bomb.md": "bomb",
    }
    assert all(each.problems for each in results if not each.ok)
    assert all("\n" not in problem for each in results for problem in each.problems)
    agents = import_agents(source, tmp_path / "agents")
    assert FileAgentRegistry(user_dir=tmp_path / "agents").find_broken() == []
    assert (agents["crlf"].description, agents["crlf"].tool_allow) == ("a: b", ("read",))
    assert agents["star"].tool_allow is None


def test_hundreds_of_definitions_are_imported(source: Path, tmp_path: Path):
    for number in range(300):
        (source / f"agent-{number:03}.md").write_text(
            CLAUDE_AGENT.replace("Backend Architect", f"Agent {number}")
        )
    results = import_definitions(source, tmp_path / "agents")
    assert len([each for each in results if each.target is not None]) == 300


def test_a_missing_path_is_reported(tmp_path: Path):
    (check,) = check_definitions(tmp_path / "nowhere")
    assert (check.ok, check.problems) == (False, ("the file does not exist",))
    assert import_definitions(tmp_path / "nowhere", tmp_path / "agents")[0].target is None


LINES = st.lists(
    st.sampled_from(
        ["name: a b", "name: x", "tools: *", "tools: [a, (b]", "tools:\n  - Read\n  - Bash(x y)", "description: a: b: c",
         "model: opus", "x: &a b", "y: *a", "hooks:\n  a:\n   - b", "\tz: 1", "- q", "color: #fff", "? k", "prompt: p",
         "workspace: {path: /x}", "temperature: hot", "paths: null", "capabilities: [watcher]", "agentId: [x]", "---"]
    ) | st.text(max_size=15),
    max_size=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.text(max_size=20))
def test_any_front_matter_is_checked_without_error_and_each_key_appears_once(
    source: Path, lines: list[str], body: str
):
    text = "---\n" + "\n".join(lines) + "\n---\n" + body
    path = source / "wild.md"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    check = check_definition(path)
    names = [each.field for each in check.fields]
    assert len(names) == len(set(names))
    assert check.ok or check.problems


def test_skill_fields_are_honoured_with_a_note_about_tool_exposure(tmp_path: Path):
    path = tmp_path / "keeper.md"
    path.write_text(
        "---\nname: keeper\ntoolExposure: mixed\nskill_allow: [notes]\nskill_deny: [x]\n---\n\nHi.\n"
    )
    assert field_verdicts(check_definition(path)) == {
        "name": ("honoured", ""),
        "toolExposure": ("honoured", "as tool_exposure"),
        "skill_allow": ("honoured", "has an effect only if tool_exposure is skills or mixed"),
        "skill_deny": ("honoured", "has an effect only if tool_exposure is skills or mixed"),
    }


def test_names_of_mcp_tools_are_translated():
    names = ("mcp__github__search", "mcp__github__get_*", "mcp__github", "mcp__*", "mcp__a__b__c", "mcp__")
    assert [tool_names.native_tool_name(name) for name in names] == [
        "github.search",
        "github.get_*",
        "github.*",
        "*.*",
        "a.b__c",
        "mcp__",
    ]
