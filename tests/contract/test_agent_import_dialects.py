"""Import of other programs' definitions: restrictions are kept, and their terms are translated."""

import json
from pathlib import Path
from typing import Any

import pytest
from agent_import import check_definition, field_verdicts, import_agent
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retinue.agents.fields import KNOWN_KEYS
from retinue.agents.importing.importer import check_definitions, import_definitions
from retinue.agents.registry import FileAgentRegistry
from retinue.domain.agent import PathPatterns
from retinue.domain.workspace import Isolation


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def write_definition(source: Path, front: str, body: str = "Be good.\n") -> Path:
    path = source / "sample.md"
    path.write_text(f"---\n{front}\n---\n{body}")
    return path


READ_ONLY = ("write", "edit", "bash")


@pytest.mark.parametrize(
    ("front", "expected"),
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
def test_restrictions_of_other_programs_are_kept(
    source: Path, tmp_path: Path, front: str, expected: dict[str, Any]
):
    path = write_definition(source, f"name: sample\n{front}")
    assert "kept among" not in field_verdicts(check_definition(path))[front.partition(":")[0]][1]
    agent = import_agent(path, tmp_path / "agents")
    assert {key: getattr(agent, key) for key in expected} == expected


def test_a_read_only_agent_stays_read_only_in_an_isolated_workspace(source: Path, tmp_path: Path):
    for number, lines in enumerate(
        ("permissionMode: plan\nisolation: worktree", "isolation: worktree\nreadonly: true")
    ):
        agent = import_agent(write_definition(source, f"name: reader\n{lines}"), tmp_path / f"agents{number}")
        assert (agent.workspace.isolation, agent.workspace.writable) == (Isolation.SANDBOX, False)


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("permissions: [files:read]", "must be allow, ask or deny"),
        ("permissions: {read_paths: [/a]}", "must be allow, ask or deny"),
        ("permission: {edit: perhaps}", "permission.edit: must be one of allow, ask, deny"),
        ("readonly: maybe", "readonly: must be true or false"),
        ("groups: [everything]", "groups[0]: must be one of"),
        ("disable: true", "the agent is disabled in this file"),
    ],
)
def test_a_definition_with_an_unclear_restriction_is_not_imported(
    source: Path, tmp_path: Path, front: str, message: str
):
    path = write_definition(source, f"name: sample\n{front}")
    assert message in check_definition(path).problems[0]
    assert import_definitions(path, tmp_path / "agents")[0].target is None


@pytest.mark.parametrize(
    ("tools", "expected", "note"),
    [
        ("['read', 'search', 'edit']", ("read", "grep", "glob", "ls", "edit", "write"), "search is grep, glob, ls, edit is edit, write"),
        ("[search/codebase, edit/editFiles, execute/runInTerminal, read/problems]",
         ("grep", "glob", "ls", "edit", "write", "bash", "read/problems"), "not built-in tools: read/problems"),
        ("read, find, fetch_content", ("read", "glob", "web_fetch"), "find is glob, fetch_content is web_fetch"),
        ("[run_shell_command, read_file, glob]", ("bash", "read", "glob"), "run_shell_command is bash"),
        ("Read, Edit, KillBash", ("read", "edit", "bash"), "KillBash is bash"),
        ("[my_search, server/read_file]", ("my_search", "server/read_file"), "not built-in tools: my_search, server/read_file"),
        ("['*']", None, "every tool"),
        ("{'*': false, read: true, list: true}", ("read", "ls"), "tool_allow: read, ls"),
        ("", None, "empty, so it is ignored"),
    ],
)  # fmt: skip
def test_tool_names_of_other_programs_are_translated(
    source: Path, tmp_path: Path, tools: str, expected: tuple[str, ...] | None, note: str
):
    path = write_definition(source, f"name: sample\ntools: {tools}".rstrip())
    verdict, actual_note = field_verdicts(check_definition(path))["tools"]
    assert verdict == "mapped"
    assert note in actual_note
    assert import_agent(path, tmp_path / "agents").tool_allow == expected


@pytest.mark.parametrize(
    ("model", "expected", "note"),
    [
        ("anthropic/claude-x-1", "anthropic:claude-x-1", "is anthropic:claude-x-1"),
        ("openai/gpt-x", "openai:gpt-x", "is openai:gpt-x"),
        ("Claude Sonnet 4.5 (copilot)", "anthropic:claude-sonnet-5-5", "is anthropic:claude-sonnet-5-5"),
        ("[Claude Opus 4, GPT-5]", "anthropic:claude-opus-5-5", "the others are fallback_models"),
        ("[fast, GPT-5]", None, "the models after it are left out"),
        ("Opus", "anthropic:claude-opus-5-5", "is anthropic:claude-opus-5-5"),
        ("GPT-4.1", "gpt-4.1", "is gpt-4.1"),
        ("Gem Flash (High)", None, "is a title, not a model name"),
        ("fast", None, "is the default model"),
        ("zai/glm", "zai/glm", "served by 'zai' in the source"),
        ("gpt-x", "gpt-x", ""),
    ],
)
def test_model_names_of_other_programs_are_translated(
    source: Path, tmp_path: Path, model: str, expected: str | None, note: str
):
    path = write_definition(source, f"name: sample\nmodel: {model}")
    assert note in field_verdicts(check_definition(path))["model"][1]
    assert import_agent(path, tmp_path / "agents").model == expected


@pytest.mark.parametrize(
    ("front", "key", "expected", "note"),
    [
        ("model: [Claude Opus 4, GPT-5, openai/gpt-x]", "model", ("gpt-5", "openai:gpt-x"), ""),
        ("model: [opus, Gem Flash (High), GPT-5]", "model", ("gpt-5",), "left out: Gem Flash (High)"),
        (
            "model: {primary: anthropic/claude-x, fallbacks: [openai/gpt-x]}",
            "model",
            ("openai:gpt-x",),
            "the others are fallback_models",
        ),
        (
            "fallbackModels: [anthropic/claude-x, haiku]",
            "fallbackModels",
            ("anthropic:claude-x", "anthropic:claude-haiku-5-5"),
            "",
        ),
        ("model: [opus]", "model", None, ""),
    ],
)
def test_models_to_try_in_order_are_the_model_and_its_fallbacks(
    source: Path, tmp_path: Path, front: str, key: str, expected: tuple[str, ...] | None, note: str
):
    path = write_definition(source, f"name: sample\n{front}")
    verdict, actual_note = field_verdicts(check_definition(path))[key]
    assert (verdict, note in actual_note) == ("mapped", True), actual_note
    assert import_agent(path, tmp_path / "agents").fallback_models == expected


def test_an_id_becomes_the_name_and_the_name_the_display_name(source: Path, tmp_path: Path):
    agent = import_agent(write_definition(source, "id: talker\nname: The Talker"), tmp_path / "one")
    assert (agent.name, agent.display_name) == ("talker", "The Talker")
    path = write_definition(source, "id: 0d3a7c1e-0000-4000-8000-000000000000\nname: Talker")
    agent = import_agent(path, tmp_path / "two")
    assert (agent.name, agent.notes) == ("talker", {"id": "0d3a7c1e-0000-4000-8000-000000000000"})
    assert [each.field for each in check_definition(path).fields] == ["id", "name"]


def test_fields_with_a_different_meaning_are_kept_as_notes(source: Path, tmp_path: Path):
    path = write_definition(
        source,
        "name: x\ntype: coordinator\ncapabilities: [juggling]\nmode: agent\ntriggers: [now]\nwhenToUse: now\ndescription: d",
    )
    verdicts = field_verdicts(check_definition(path))
    assert {key for key, (verdict, _) in verdicts.items() if verdict == "kept"} == {
        "type", "capabilities", "mode", "whenToUse", "triggers",
    }  # fmt: skip
    agent = import_agent(path, tmp_path / "agents")
    assert agent.notes == {
        "whenToUse": "now", "type": "coordinator", "capabilities": ["juggling"], "mode": "agent", "triggers": ["now"],
    }  # fmt: skip
    assert agent.description == "d"


def test_custom_modes_of_roo_become_several_agents_with_joined_prompts(source: Path, tmp_path: Path):
    modes = [
        {"slug": "first", "name": "🔍 First", "roleDefinition": "You look.", "customInstructions": "Look twice.",
         "groups": ["read"], "whenToUse": "when looking"},
        {"slug": "second", "name": "Second", "roleDefinition": "You run.", "groups": ["command"]},
    ]  # fmt: skip
    (source / "modes.json").write_text(json.dumps({"customModes": modes}))
    results = check_definitions(source)
    assert [(each.path.name, each.ok, each.dialect) for each in results] == [
        ("modes.json#customModes[0]", True, "roo"),
        ("modes.json#customModes[1]", True, "roo"),
    ]
    assert [each.field for each in results[0].fields] == list(modes[0])
    import_definitions(source, tmp_path / "agents")
    agent = FileAgentRegistry(user_dir=tmp_path / "agents").get("first").agent
    assert (agent.prompt, agent.display_name, agent.description) == (
        "You look.\n\nLook twice.\n",
        "🔍 First",
        "when looking",
    )


def test_a_toml_definition_is_imported(source: Path, tmp_path: Path):
    path = source / "scout.toml"
    path.write_text(
        'name = "scout_one"\nsandbox_mode = "read-only"\nmodel_reasoning_effort = "xhigh"\n'
        "since = 2025-01-02\ndeveloper_instructions = '''\nLook.\n'''\n"
    )
    check = check_definition(path)
    assert (check.ok, check.name, check.dialect) == (True, "scout-one", "codex")
    agent = import_agent(path, tmp_path / "agents")
    assert (agent.prompt, agent.thinking, agent.notes) == ("Look.\n", "max", {"since": "2025-01-02"})
    deep = ".".join("a" * 500)
    for text in ("name = ", "a = " + "[" * 5000, f"name = 'x'\n{deep} = 1\n"):
        path.write_text(text)
        assert check_definition(path).problems


def test_a_prompt_that_refers_to_a_file_is_read_from_it(source: Path, tmp_path: Path):
    path = source / "tool.json"
    path.write_text(
        json.dumps({"agent": {"builder": {"prompt": "{file:./prompts/b.txt}", "mode": "primary"}}})
    )
    assert "does not exist" in check_definition(path).problems[0]
    (source / "prompts").mkdir()
    (source / "prompts" / "b.txt").write_text("Build.\n")
    assert [each.field for each in check_definition(path).fields] == ["name", "prompt", "mode"]
    assert import_agent(path, tmp_path / "agents").prompt == "Build."


def test_other_kinds_of_files_in_a_folder_are_not_imported(source: Path):
    (source / "package.json").write_text('{"name": "pack", "version": "1.0.0", "description": "All of it"}')
    (source / "ci.yml").write_text("name: CI\non: push\njobs: {}\n")
    (source / "pyproject.toml").write_text('[project]\nname = "x"\n')
    results = check_definitions(source)
    assert [each.ok for each in results] == [False, False, False]
    assert all("is not a definition" in each.problems[0] for each in results)
    assert check_definition(source / "package.json").ok


def test_text_above_the_front_matter_is_reported(source: Path):
    path = source / "sample.md"
    path.write_text("<!-- from elsewhere -->\n\n---\nname: sample\n---\nBe good.\n")
    assert check_definition(path).problems == (
        "line 3: has text above its front matter; delete the lines before it (2)",
    )


def test_paths_outside_the_workspace_are_reported(source: Path):
    path = write_definition(
        source, "name: sample\npaths: {read: [src/**, /etc/**], write: ['**/x'], deny: [/y]}"
    )
    assert (
        "is outside the workspace: /etc/**, **/x; remove it"
        in field_verdicts(check_definition(path))["paths"][1]
    )
    path = write_definition(source, "name: sample\npaths: {read: [src/**], deny: [/y]}")
    assert field_verdicts(check_definition(path))["paths"] == ("honoured", "")


def test_a_document_that_contains_an_example_definition_is_not_imported(source: Path):
    example = "---\nname: sample\n---\nBe good.\n"
    for text in (f"# How to\n\n```markdown\n{example}```\n", "A line.\n" * 30 + example):
        (source / "page.md").write_text(text)
        assert "has no front matter" in check_definition(source / "page.md").problems[0]
        assert check_definitions(source)[0].is_skipped
    (source / "page.md").write_text(f"```markdown\n{example}```\n")
    assert "delete the lines before it (1)" in check_definition(source / "page.md").problems[0]


def test_unindented_examples_belong_to_the_description(source: Path, tmp_path: Path):
    lines = ["<example>", "Context: a thing", 'user: "do: it"', "</example>", ""]
    front = "\n".join(
        ["name: sample", "description: Use it when: needed", "", *lines, *lines, "# aside", "model: opus"]
    )
    path = write_definition(source, front)
    check = check_definition(path)
    assert ([each.field for each in check.fields], check.repaired_keys) == (
        ["name", "description", "model"],
        ("description",),
    )
    agent = import_agent(path, tmp_path / "agents")
    assert agent.description.count('user: "do: it"') == 2
    assert "aside" not in agent.description


def test_hooks_are_refused_with_a_warning(source: Path):
    check = check_definition(write_definition(source, "name: sample\nhooks: {PreToolUse: [{matcher: Bash}]}"))
    assert field_verdicts(check)["hooks"] == (
        "refused",
        "hooks are not supported, so they would block nothing; remove them",
    )


def test_mcp_servers_of_a_definition_are_refused_in_every_spelling(source: Path):
    for key in ("mcpServers", "mcp-servers", "mcp_servers"):
        check = check_definition(write_definition(source, f"name: sample\n{key}: {{a: {{command: b}}}}"))
        assert field_verdicts(check)[key][0] == "refused"


def test_the_verdict_of_extends_names_the_needed_agent(source: Path):
    assert field_verdicts(check_definition(write_definition(source, "name: sample\nextends: other")))[
        "extends"
    ][1] == ("loads only if an agent with that name exists")


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
def test_any_key_with_any_value_gets_one_verdict_and_imported_agents_load(
    source: Path, tmp_path: Path, keys: dict[str, Any]
):
    path = source / "sample.json"
    path.write_text(json.dumps(keys))
    target = tmp_path / "agents"
    for result in import_definitions(path, target):
        if not result.check.path.name.partition("#")[2] and result.check.dialect != "none":
            assert [each.field for each in result.check.fields] == list(keys)
        assert result.target is not None or result.check.problems
        if result.target is not None:
            assert FileAgentRegistry(user_dir=target).get(result.name).agent.name == result.name
            result.target.unlink()


@pytest.mark.parametrize("key", ["tolls", "Tools", "toosl", "disallowedToolz", "tool_alow"])
def test_a_misspelled_restriction_is_a_problem_and_not_a_note(tmp_path: Path, key: str):
    """Shows: D13."""
    file = tmp_path / "typo.md"
    file.write_text(f"---\ndescription: x\n{key}: [read]\n---\nHi.\n")
    check = check_definition(file)
    assert not check.ok
    assert f"{key}: is not a known field; did you mean" in check.problems[0]
    assert import_definitions(file, tmp_path / "agents")[0].target is None


@pytest.mark.parametrize("line", ["<<: {model: x}", "  tools: Read"])
def test_a_field_inside_a_text_is_reported_as_a_problem(tmp_path: Path, line: str):
    file = tmp_path / "astray.md"
    file.write_text(f"---\nname: astray\ndescription: use it: well\n{line}\n---\nHi.\n")
    check = check_definition(file)
    assert not check.ok
    assert "looks like a field, but is inside 'description'" in check.problems[0]


def test_a_definition_that_would_not_load_unchanged_is_reported(tmp_path: Path):
    file = tmp_path / "hot.md"
    file.write_text("---\ndescription: x\ntemperature: hot\n---\nHi.\n")
    check = check_definition(file)
    assert check.load_problem == "temperature: must be a number, but is text"
    file.write_text("---\ndescription: x\n---\nHi.\n")
    assert check_definition(file).load_problem == ""


def test_an_api_key_in_a_definition_is_never_shown(tmp_path: Path):
    file = tmp_path / "keyed.json"
    file.write_text(json.dumps({"name": "keyed", "chat": {"config": {"apiKey": "sk-very-secret"}}}))
    assert "sk-very-secret" not in str(check_definitions(file))


@pytest.mark.parametrize("key", ["baseUrl", "base_url", "api_key_env", "apiKeyEnv"])
def test_a_definition_that_sets_the_server_or_the_key_is_not_imported(tmp_path: Path, key: str):
    """Shows: M23."""
    file = tmp_path / "far.json"
    file.write_text(json.dumps({"name": "far", "chat": {"config": {key: "OPENAI_API_KEY"}}}))
    [result] = import_definitions(file, tmp_path / "agents")
    assert result.target is None
    assert "which server is used" in result.check.problems[0]
