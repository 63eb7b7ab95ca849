"""Definitions in the ways of other programs: what they take away stays taken away, and their words mean our things."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retinue.agents.fields import KNOWN_KEYS
from retinue.agents.importing import importer
from retinue.agents.importing.importer import DefinitionCheck, check_definitions, import_definitions
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import Agent, PathPatterns
from retinue.domain.workspace import Isolation


def one(path: Path) -> DefinitionCheck:
    (found,) = check_definitions(path)
    return found


def verdicts(checked: DefinitionCheck) -> dict[str, tuple[str, str]]:
    return {each.field: (str(each.verdict), each.note) for each in checked.fields}


def brought(path: Path, target: Path) -> Agent:
    (found,) = import_definitions(path, target)
    assert found.target is not None, found.check.problems
    return FileAgentRegistry(user_dir=target).get(found.name).agent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "source"
    found.mkdir()
    return found


def written(source: Path, front: str, body: str = "Be good.\n") -> Path:
    path = source / "sample.md"
    path.write_text(f"---\n{front}\n---\n{body}")
    return path


READ_ONLY = ("write", "edit", "bash")


@pytest.mark.parametrize(
    ("front", "facts"),
    [
        ("readonly: true", {"tool_deny": READ_ONLY}),
        ("readOnly: true", {"tool_deny": READ_ONLY}),
        ("readonly: false", {"tool_deny": None}),
        ("sandbox_mode: read-only", {"tool_deny": READ_ONLY}),
        ("sandbox_mode: workspace-write", {"tool_deny": None}),
        ("canEdit: false", {"tool_deny": ("write", "edit")}),
        ("canEdit: true", {"tool_deny": None}),
        ("disable: false", {"tool_deny": None}),
        ("permissions: {edit: deny}", {"tool_deny": ("edit", "write")}),
        ("permission: {todowrite: deny, question: deny, list: deny}", {"tool_deny": ("todo", "ask_user", "ls")}),
        ("permission: {task: deny}", {"tool_deny": ("agent",), "agent_deny": ("*",)}),
        ("permission: {skill: deny}", {"tool_deny": None, "skill_deny": ("*",)}),
        ("permission: {'*': deny, read: allow, grep: ask}", {"tool_allow": ("read", "grep"), "tool_deny": None}),
        ("permission: {'*': deny, edit: allow, write: deny}", {"tool_allow": ("edit",)}),
        ("tools: {edit: false, patch: true, bash: true}", {"tool_deny": ("edit",)}),
        ("permission: {task: {'*': deny, Code Scout: allow}}", {"agent_allow": ("code-scout",), "tool_deny": None}),
        ("permission: {task: {'secret-*': deny}}", {"agent_deny": ("secret-*",)}),
        ("permission: {skill: {'*': deny, notes: allow}}", {"skill_allow": ("notes",)}),
        ("permission: {edit: {'*.lock': deny, 'dist/*': deny}}", {"paths": PathPatterns(deny=("**/**.lock", "dist/**"))}),
        ("permission: {edit: {'*': deny, 'src/**': allow}}", {"tool_deny": ("edit", "write"), "paths": None}),
        ("permission: {read: {'*': deny, './docs/**': allow, '*.md': allow}}", {"paths": PathPatterns(read=("docs/**", "./**/*.md"))}),
        ("permission: {bash: {'*': allow, 'rm *': deny}}", {"tool_deny": ("bash",)}),
        ("permission: {bash: {'*': ask, 'ls *': allow}}", {"tool_deny": None}),
        ("disallowedTools: Task", {"tool_deny": ("agent",), "agent_deny": ("*",)}),
        ("tools_denied: [execute_command]", {"tool_deny": ("bash",)}),
        ("denied_paths: [secrets/, '*.key']", {"paths": PathPatterns(deny=("secrets/**", "**/*.key"))}),
        ("forbidden_paths: [.env, ./keys/private]", {"paths": PathPatterns(deny=("**/.env", "**/.env/**", "keys/private", "keys/private/**"))}),
        ("allowed_paths: [docs/**]", {"paths": PathPatterns(read=("docs/**",), write=("docs/**",))}),
        ("allowedPaths: ['**/*.md', ./]", {"paths": PathPatterns(read=("./**/*.md", "./**"), write=("./**/*.md", "./**"))}),
        ("file_access: {read_paths: [./], write_paths: [out/]}", {"paths": PathPatterns(read=("./**",), write=("out/**",))}),
        ("file_access: {read: [src/**], deny: [secrets]}", {"paths": PathPatterns(read=("src/**",), deny=("**/secrets", "**/secrets/**"))}),
        ("network_access: false", {"tool_deny": ("web_fetch",)}),
        ("network_access: true", {"tool_deny": None}),
        ("restricted_tools: [Bash, write_file]", {"tool_deny": ("bash", "write")}),
        ("spawns: scout, helper", {"agent_allow": ("scout", "helper")}),
        ("permission_mode: plan", {"tool_deny": READ_ONLY}),
        ("agents: [Go Adviser, 'x-*']", {"agent_allow": ("go-adviser", "x-*")}),
        ("groups: [read, [edit, {fileRegex: 'md$'}], browser]", {"tool_allow": ("read", "ls", "glob", "grep", "web_fetch", "ask_user", "todo")}),
    ],
)  # fmt: skip
def test_what_is_taken_away_elsewhere_is_taken_away_here(
    source: Path, tmp_path: Path, front: str, facts: dict[str, Any]
):
    path = written(source, f"name: sample\n{front}")
    assert "kept among" not in verdicts(one(path))[front.partition(":")[0]][1]
    agent = brought(path, tmp_path / "agents")
    assert {key: getattr(agent, key) for key in facts} == facts


def test_what_reads_only_stays_so_in_a_workspace_of_its_own(source: Path, tmp_path: Path):
    for at, lines in enumerate(
        ("permissionMode: plan\nisolation: worktree", "isolation: worktree\nreadonly: true")
    ):
        agent = brought(written(source, f"name: reader\n{lines}"), tmp_path / f"agents{at}")
        assert (agent.workspace.isolation, agent.workspace.writable) == (Isolation.SANDBOX, False)


@pytest.mark.parametrize(
    ("front", "say"),
    [
        ("permissions: [files:read]", "must answer allow, ask or deny"),
        ("permissions: {read_paths: [/a]}", "must answer allow, ask or deny"),
        ("permission: {edit: perhaps}", "permission.edit: must be one of allow, ask, deny"),
        ("readonly: maybe", "readonly: must be true or false"),
        ("groups: [everything]", "groups[0]: must be one of"),
        ("disable: true", "is switched off where it comes from"),
    ],
)
def test_a_limit_in_other_words_is_never_left_out(source: Path, tmp_path: Path, front: str, say: str):
    path = written(source, f"name: sample\n{front}")
    assert say in one(path).problems[0]
    assert import_definitions(path, tmp_path / "agents")[0].target is None


@pytest.mark.parametrize(
    ("tools", "ours", "note"),
    [
        ("['read', 'search', 'edit']", ("read", "grep", "glob", "ls", "edit", "write"), "search is grep, glob, ls, edit is edit, write"),
        ("[search/codebase, edit/editFiles, execute/runInTerminal, read/problems]",
         ("grep", "glob", "ls", "edit", "write", "bash", "read/problems"), "naming no built-in tool: read/problems"),
        ("read, find, fetch_content", ("read", "glob", "web_fetch"), "find is glob, fetch_content is web_fetch"),
        ("[run_shell_command, read_file, glob]", ("bash", "read", "glob"), "run_shell_command is bash"),
        ("Read, Edit, KillBash", ("read", "edit", "bash"), "KillBash is bash"),
        ("[my_search, server/read_file]", ("my_search", "server/read_file"), "naming no built-in tool: my_search, server/read_file"),
        ("['*']", None, "every tool"),
        ("{'*': false, read: true, list: true}", ("read", "ls"), "tool_allow: read, ls"),
        ("", None, "empty, so it says nothing"),
    ],
)  # fmt: skip
def test_tools_by_other_names_are_ours(
    source: Path, tmp_path: Path, tools: str, ours: tuple[str, ...] | None, note: str
):
    path = written(source, f"name: sample\ntools: {tools}".rstrip())
    verdict, said = verdicts(one(path))["tools"]
    assert verdict == "mapped"
    assert note in said
    assert brought(path, tmp_path / "agents").tool_allow == ours


@pytest.mark.parametrize(
    ("model", "ours", "note"),
    [
        ("anthropic/claude-x-1", "anthropic:claude-x-1", "is anthropic:claude-x-1"),
        ("openai/gpt-x", "openai:gpt-x", "is openai:gpt-x"),
        ("Claude Sonnet 4.5 (copilot)", "anthropic:claude-sonnet-4-5", "is anthropic:claude-sonnet-4-5"),
        ("[Claude Opus 4, GPT-5]", "anthropic:claude-opus-4-5", "the first of several"),
        ("Opus", "anthropic:claude-opus-4-5", "is anthropic:claude-opus-4-5"),
        ("GPT-4.1", "gpt-4.1", "is gpt-4.1"),
        ("Gem Flash (High)", None, "is a title, not the name of a model"),
        ("fast", None, "is the default model"),
        ("zai/glm", "zai/glm", "served by 'zai' there"),
        ("gpt-x", "gpt-x", ""),
    ],
)
def test_models_by_other_names_are_models_here(
    source: Path, tmp_path: Path, model: str, ours: str | None, note: str
):
    path = written(source, f"name: sample\nmodel: {model}")
    assert note in verdicts(one(path))["model"][1]
    assert brought(path, tmp_path / "agents").model == ours


def test_an_id_is_the_name_and_the_name_is_for_people(source: Path, tmp_path: Path):
    agent = brought(written(source, "id: talker\nname: The Talker"), tmp_path / "one")
    assert (agent.name, agent.display_name) == ("talker", "The Talker")
    path = written(source, "id: 0d3a7c1e-0000-4000-8000-000000000000\nname: Talker")
    agent = brought(path, tmp_path / "two")
    assert (agent.name, agent.notes) == ("talker", {"id": "0d3a7c1e-0000-4000-8000-000000000000"})
    assert [each.field for each in one(path).fields] == ["id", "name"]


def test_words_that_mean_something_else_elsewhere_are_kept(source: Path, tmp_path: Path):
    path = written(
        source,
        "name: x\ntype: coordinator\ncapabilities: [juggling]\nmode: agent\ntriggers: [now]\nwhenToUse: now\ndescription: d",
    )
    said = verdicts(one(path))
    assert {key for key, (verdict, _) in said.items() if verdict == "kept"} == {
        "type", "capabilities", "mode", "whenToUse", "triggers",
    }  # fmt: skip
    agent = brought(path, tmp_path / "agents")
    assert agent.notes == {
        "whenToUse": "now", "type": "coordinator", "capabilities": ["juggling"], "mode": "agent", "triggers": ["now"],
    }  # fmt: skip
    assert agent.description == "d"


def test_a_list_of_modes_holds_several_with_prompts_in_two_parts(source: Path, tmp_path: Path):
    modes = [
        {"slug": "first", "name": "🔍 First", "roleDefinition": "You look.", "customInstructions": "Look twice.",
         "groups": ["read"], "whenToUse": "when looking"},
        {"slug": "second", "name": "Second", "roleDefinition": "You run.", "groups": ["command"]},
    ]  # fmt: skip
    (source / "modes.json").write_text(json.dumps({"customModes": modes}))
    found = check_definitions(source)
    assert [(each.path.name, each.ok, each.dialect) for each in found] == [
        ("modes.json#customModes[0]", True, "roo"),
        ("modes.json#customModes[1]", True, "roo"),
    ]
    assert [each.field for each in found[0].fields] == list(modes[0])
    import_definitions(source, tmp_path / "agents")
    agent = FileAgentRegistry(user_dir=tmp_path / "agents").get("first").agent
    assert (agent.prompt, agent.display_name, agent.description) == (
        "You look.\n\nLook twice.\n",
        "🔍 First",
        "when looking",
    )


def test_toml_is_read_too(source: Path, tmp_path: Path):
    path = source / "scout.toml"
    path.write_text(
        'name = "scout_one"\nsandbox_mode = "read-only"\nmodel_reasoning_effort = "xhigh"\n'
        "since = 2025-01-02\ndeveloper_instructions = '''\nLook.\n'''\n"
    )
    checked = one(path)
    assert (checked.ok, checked.name, checked.dialect) == (True, "scout-one", "codex")
    agent = brought(path, tmp_path / "agents")
    assert (agent.prompt, agent.thinking, agent.notes) == ("Look.\n", "high", {"since": "2025-01-02"})
    deep = ".".join("a" * 500)
    for text in ("name = ", "a = " + "[" * 5000, f"name = 'x'\n{deep} = 1\n"):
        path.write_text(text)
        assert one(path).problems


def test_a_prompt_that_names_its_file_is_that_file(source: Path, tmp_path: Path):
    path = source / "tool.json"
    path.write_text(
        json.dumps({"agent": {"builder": {"prompt": "{file:./prompts/b.txt}", "mode": "primary"}}})
    )
    assert "there is no file" in one(path).problems[0]
    (source / "prompts").mkdir()
    (source / "prompts" / "b.txt").write_text("Build.\n")
    assert [each.field for each in one(path).fields] == ["name", "prompt", "mode"]
    assert brought(path, tmp_path / "agents").prompt == "Build."


def test_files_of_other_kinds_in_a_folder_are_no_agents(source: Path):
    (source / "package.json").write_text('{"name": "pack", "version": "1.0.0", "description": "All of it"}')
    (source / "ci.yml").write_text("name: CI\non: push\njobs: {}\n")
    (source / "pyproject.toml").write_text('[project]\nname = "x"\n')
    found = check_definitions(source)
    assert [each.ok for each in found] == [False, False, False]
    assert all("is no definition" in each.problems[0] for each in found)
    assert one(source / "package.json").ok


def test_text_above_the_front_matter_is_named(source: Path):
    path = source / "sample.md"
    path.write_text("<!-- from elsewhere -->\n\n---\nname: sample\n---\nBe good.\n")
    assert one(path).problems == ("line 3: has text above its front matter; delete the lines before it (2)",)


def test_paths_beyond_the_workspace_are_pointed_out(source: Path):
    path = written(source, "name: sample\npaths: {read: [src/**, /etc/**], write: ['**/x'], deny: [/y]}")
    assert "reaches beyond the workspace: /etc/**, **/x; take it out" in verdicts(one(path))["paths"][1]
    path = written(source, "name: sample\npaths: {read: [src/**], deny: [/y]}")
    assert verdicts(one(path))["paths"] == ("honoured", "")


def test_a_page_that_shows_a_definition_is_a_page(source: Path):
    example = "---\nname: sample\n---\nBe good.\n"
    for text in (f"# How to\n\n```markdown\n{example}```\n", "A line.\n" * 30 + example):
        (source / "page.md").write_text(text)
        assert "has no front matter" in one(source / "page.md").problems[0]
        assert check_definitions(source)[0].is_skipped
    (source / "page.md").write_text(f"```markdown\n{example}```\n")
    assert "delete the lines before it (1)" in one(source / "page.md").problems[0]


def test_examples_at_the_margin_belong_to_the_description(source: Path, tmp_path: Path):
    lines = ["<example>", "Context: a thing", 'user: "do: it"', "</example>", ""]
    front = "\n".join(
        ["name: sample", "description: Use it when: needed", "", *lines, *lines, "# aside", "model: opus"]
    )
    path = written(source, front)
    checked = one(path)
    assert ([each.field for each in checked.fields], checked.repaired_keys) == (
        ["name", "description", "model"],
        ("description",),
    )
    agent = brought(path, tmp_path / "agents")
    assert agent.description.count('user: "do: it"') == 2
    assert "aside" not in agent.description


def test_hooks_that_guard_are_said_to_be_gone(source: Path):
    checked = one(written(source, "name: sample\nhooks: {PreToolUse: [{matcher: Bash}]}"))
    assert verdicts(checked)["hooks"] == (
        "refused",
        "hooks are not run here, so what they stop is not stopped; remove them",
    )


def test_servers_are_the_operators_however_they_are_spelled(source: Path):
    for key in ("mcpServers", "mcp-servers", "mcp_servers"):
        checked = one(written(source, f"name: sample\n{key}: {{a: {{command: b}}}}"))
        assert verdicts(checked)[key][0] == "refused"


def test_what_it_extends_is_said_to_be_needed(source: Path):
    assert verdicts(one(written(source, "name: sample\nextends: other")))["extends"][1] == (
        "loads only where there is an agent of that name"
    )


WORDS = st.sampled_from(
    ["", "a", "Read", "search/x", "*", "deny", "allow", "read", "edit", "opus", "a/b", "Some Model", "{file:x}", "x\ny",
     "Agent(x)", "plan", "read-only", "mcp", "-" * 70]
)  # fmt: skip
VALUES = st.recursive(
    WORDS | st.sampled_from([None, True, False, 0, -1, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*sorted(KNOWN_KEYS - {"extends"}), "customInstructions", "zork", ""])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=6))
@example({"agents": {"a/b": {}}})
def test_any_key_with_any_value_gets_one_verdict_and_what_is_imported_loads(
    source: Path, tmp_path: Path, keys: dict[str, Any]
):
    path = source / "sample.json"
    path.write_text(json.dumps(keys))
    target = tmp_path / "agents"
    for found in import_definitions(path, target):
        if not found.check.path.name.partition("#")[2] and found.check.dialect != "none":
            assert [each.field for each in found.check.fields] == list(keys)
        assert found.target is not None or found.check.problems
        if found.target is not None:
            assert FileAgentRegistry(user_dir=target).get(found.name).agent.name == found.name
            found.target.unlink()


@pytest.mark.parametrize("key", ["tolls", "Tools", "toosl", "disallowedToolz", "tool_alow"])
def test_a_misspelt_limit_is_a_problem_and_not_a_note(tmp_path: Path, key: str):
    """Shows: D13."""
    file = tmp_path / "typo.md"
    file.write_text(f"---\ndescription: x\n{key}: [read]\n---\nHi.\n")
    [checked] = importer.check_definitions(file)
    assert not checked.ok
    assert f"{key}: is not a known field; did you mean" in checked.problems[0]
    assert importer.import_definitions(file, tmp_path / "agents")[0].target is None


@pytest.mark.parametrize("line", ["<<: {model: x}", "  tools: Read"])
def test_a_field_gone_astray_in_a_text_is_named_and_not_taken_as_words(tmp_path: Path, line: str):
    file = tmp_path / "astray.md"
    file.write_text(f"---\nname: astray\ndescription: use it: well\n{line}\n---\nHi.\n")
    [checked] = importer.check_definitions(file)
    assert not checked.ok
    assert "looks like a field and stands inside 'description'" in checked.problems[0]


def test_what_would_not_load_as_it_stands_is_said(tmp_path: Path):
    file = tmp_path / "hot.md"
    file.write_text("---\ndescription: x\ntemperature: hot\n---\nHi.\n")
    [checked] = importer.check_definitions(file)
    assert checked.load_problem == "temperature: must be a number, and is text"
    file.write_text("---\ndescription: x\n---\nHi.\n")
    assert importer.check_definitions(file)[0].load_problem == ""


def test_a_key_in_a_definition_is_never_shown_again(tmp_path: Path):
    file = tmp_path / "keyed.json"
    file.write_text(json.dumps({"name": "keyed", "chat": {"config": {"apiKey": "sk-very-secret"}}}))
    assert "sk-very-secret" not in str(check_definitions(file))


@pytest.mark.parametrize("key", ["baseUrl", "base_url", "api_key_env", "apiKeyEnv"])
def test_an_import_lets_no_stranger_choose_the_server_or_the_key(tmp_path: Path, key: str):
    """Shows: M23."""
    file = tmp_path / "far.json"
    file.write_text(json.dumps({"name": "far", "chat": {"config": {key: "OPENAI_API_KEY"}}}))
    [found] = import_definitions(file, tmp_path / "agents")
    assert found.target is None
    assert "which server is asked" in found.check.problems[0]
