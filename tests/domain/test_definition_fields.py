"""The fields of an agent definition: every spelling, every mistake, and a round trip without loss."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agents.definition_file import definition_fields, parse_preset, render_definition
from retinue.agents.dialects.tool_names import native_tool_name
from retinue.domain.agent import (
    Agent,
    AgentType,
    PathPatterns,
    Role,
    ShellCommands,
    Thinking,
    ToolExposure,
    Triggers,
    WorkspacePolicy,
)
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition


def parse_definition(front: str, body: str = "Be good.") -> Agent:
    return parse_preset(f"---\n{front}\n---\n\n{body}\n", "x.md", name="x")


def parse_error(front: str, body: str = "Be good.") -> BadDefinition:
    with pytest.raises(BadDefinition) as caught:
        parse_definition(front, body)
    return caught.value


def test_front_matter_and_body_define_an_agent():
    """Shows: B005."""
    agent = parse_definition(
        "name: helper\ndescription: Helps.\ntools: [read, 'todo_*']\ntemperature: 0.7\nmodel: gpt-4.1\nmax_tokens: 900"
    )
    assert agent == Agent(
        name="helper",
        description="Helps.",
        prompt="Be good.",
        tool_allow=("read", "todo_*"),
        temperature=0.7,
        model="gpt-4.1",
        max_tokens=900,
    )


@pytest.mark.parametrize("front", ["tools: []", "tools: null", "tools:", ""])
def test_an_empty_tool_list_allows_nothing_and_null_sets_no_restriction(front: str):
    """Shows: T05."""
    assert parse_definition(front).tool_allow == (() if "[]" in front else None)


@pytest.mark.parametrize(
    ("front", "field", "value"),
    [
        ("agentId: notes", "name", "notes"),
        ("id: notes", "name", "notes"),
        ("displayName: Notes Keeper", "display_name", "Notes Keeper"),
        ("toolAllowlist: ['notes_*']", "tool_allow", ("notes_*",)),
        ("toolDenylist: [notes_delete]", "tool_deny", ("notes_delete",)),
        ("toolExposure: mixed", "tool_exposure", ToolExposure.MIXED),
        ("skillAllowlist: [notes]", "skill_allow", ("notes",)),
        ("skillDenylist: [mail]", "skill_deny", ("mail",)),
        ("capabilityAllowlist: ['lists.*']", "capability_allow", ("lists.*",)),
        ("capabilityDenylist: [lists.write]", "capability_deny", ("lists.write",)),
        ("agentAllowlist: [todo]", "agent_allow", ("todo",)),
        ("agentDenylist: ['*']", "agent_deny", ("*",)),
        ("uiVisible: false", "ui_visible", False),
        ("apiExposed: true", "api_exposed", True),
        ("type: external", "type", AgentType.EXTERNAL),
        ("maxTokens: 12", "max_tokens", 12),
        ("fallback_models: [openai:b, haiku]", "fallback_models", ("openai:b", "anthropic:claude-haiku-5-5")),
        ("fallback_models: []", "fallback_models", ()),
        ("fallback_models: null", "fallback_models", None),
        ("fallbackModels: openai:b, house:c", "fallback_models", ("openai:b", "house:c")),
        ("fallback-model: opus", "fallback_models", ("anthropic:claude-opus-5-5",)),
        ("model: [sonnet]", "model", "anthropic:claude-sonnet-5-5"),
        ("model: [openai:a, haiku]", "fallback_models", ("anthropic:claude-haiku-5-5",)),
        ("model: {primary: openai:a, fallbacks: [openai:b]}", "fallback_models", ("openai:b",)),
        ("maxTurns: 3", "max_turns", 3),
        ("temperature: 0.70", "temperature", 0.7),
        ("backend: Claude", "driver", "anthropic"),
        ("backend: ChatGPT", "driver", "openai"),
        ("driver: openai-compatible", "driver", "openai-compatible"),
        ("chat: {provider: claude-cli}", "driver", "claude-cli"),
        ("chat: {model: gpt-5}", "model", "gpt-5"),
        ("chat: {config: {workdir: /x}}", "driver_settings", {"workdir": "/x"}),
        ("capabilities: [subtask, watcher]\ntools: [read]", "roles", (Role.SUBTASK, Role.WATCHER)),
        ("mode: subagent", "roles", (Role.SUBTASK,)),
        ("triggers: {slash: [/oracle], hotkeys: [Ctrl+O]}", "triggers", Triggers(slash=("/oracle",), hotkeys=("Ctrl+O",))),
        (
            "defaultWorkspace: {mode: inherit, allowWrites: false}",
            "workspace",
            WorkspacePolicy(isolation=Isolation.SHARED, writable=False),
        ),
        (
            "defaultWorkspace: {mode: custom, customPath: /srv}",
            "workspace",
            WorkspacePolicy(isolation=Isolation.CUSTOM, path="/srv"),
        ),
        ("isolation: worktree", "workspace", WorkspacePolicy(isolation=Isolation.SANDBOX, writable=True)),
        ("permissionOverrides: {allowShell: false, allowNetwork: false}", "tool_deny", ("bash", "web_fetch")),
        ("permissionOverrides: {allowWrites: false}", "workspace", WorkspacePolicy(writable=False)),
        ("permissionMode: plan", "workspace", WorkspacePolicy(writable=False)),
        ("tools: {read: {enabled: true}, bash: {enabled: false}}", "tool_allow", ("read",)),
        ("tools: {write: false, edit: false}", "tool_deny", ("write", "edit")),
        ("tools: Read, Grep, WebFetch, TodoWrite", "tool_allow", ("read", "grep", "web_fetch", "todo")),
        ("tools: Task MultiEdit Edit LS", "tool_allow", ("agent", "edit", "ls")),
        ("tools: [mcp__github__search, mcp__jira, NotOurs]", "tool_allow", ("github.search", "jira.*", "NotOurs")),
        ("disallowedTools: Bash, Write", "tool_deny", ("bash", "write")),
        ("model: sonnet", "model", "anthropic:claude-sonnet-5-5"),
        ("model: opus", "model", "anthropic:claude-opus-5-5"),
        ("model: haiku", "model", "anthropic:claude-haiku-5-5"),
        ("model: inherit", "model", None),
        ("effort: max", "thinking", Thinking.MAX),
        ("thinking: off", "thinking", Thinking.OFF),
        ("color: blue", "notes", {"color": "blue"}),
        ("subagents: {allowAgents: [main]}", "agent_allow", ("main",)),
        ("skills: [pdf]", "skill_allow", ("pdf",)),
        ("systemPrompt: Hi", "prompt", "Hi"),
        ("limits: {max_depth: 2}", "limits", {"max_depth": 2}),
        ("thinking: true", "thinking", Thinking.MEDIUM),
        ("thinking: false", "thinking", Thinking.OFF),
        ("chat: {models: [a, b]}", "notes", {"chat_models": ["a", "b"]}),
        ("chat: {provider: null}", "driver", None),
        ("defaultWorkspace: {label: mine}", "notes", {"workspace_label": "mine"}),
        ("subagents: {model: m}", "notes", {"subagents": {"model": "m"}}),
        ("isolation: sandbox", "workspace", WorkspacePolicy(isolation=Isolation.SANDBOX)),
        ("workspace: {path: /srv}", "workspace", WorkspacePolicy(isolation=Isolation.CUSTOM, path="/srv")),
        ("permissionMode: default", "notes", {"permissionMode": "default"}),
        ("hidden: true", "ui_visible", False),
        ("permission: {edit: deny, bash: ask, webfetch: allow}", "tool_deny", ("edit", "write")),
        ("permission: {bash: {'*': deny, 'git *': allow}}", "tool_deny", ("bash",)),
        ("permission: {bash: {'git push *': deny}}", "tool_deny", ("bash",)),
        ("permission: deny", "tool_deny", ("*",)),
        ("permission: ask", "tool_deny", None),
        ("triggers: {hotkey: Ctrl+X}", "triggers", Triggers(hotkeys=("Ctrl+X",))),
        ("tools: {'*': false, Read: true}", "tool_allow", ("read",)),
        ("tools: {read: true}", "tool_allow", None),
        ("tools: {bash: {mode: read, notes: only git}}", "notes", {"tools": {"bash": {"mode": "read", "notes": "only git"}}}),
        ("backend: Ollama", "driver", "ollama"),
        ("roles: primary, subtask", "roles", (Role.PRIMARY, Role.SUBTASK)),
        ("exits: [submit_for_review]", "exits", ("submit_for_review",)),
        ("external: {inputUrl: 'https://a.example'}", "external", {"inputUrl": "https://a.example"}),
        ("shell_commands: {allow: ['git *']}", "shell_commands", ShellCommands(allow=("git *",))),
        ("ceiling: {tools: [read], writable: false}", "ceiling", {"tools": ("read",), "writable": False}),
    ],
)  # fmt: skip
def test_other_spellings_of_a_field_are_equivalent(front: str, field: str, value: object):
    """Shows: C002, C009, D005, D006."""
    body = "" if "systemPrompt" in front else "Be good."
    assert getattr(parse_definition(front, body), field) == value


@pytest.mark.parametrize(
    ("front", "location", "message"),
    [
        ("name: x\ntolls: [read]", "x.md:3", "tolls: is not a known field; did you mean 'tools'?"),
        ("zzzz: 1", "x.md:2", "zzzz: is not a known field; valid values:"),
        ("tools: [read]\ntoolAllowlist: [write]", "x.md:3", "toolAllowlist: is the same setting as 'tools'"),
        ("chat: {provider: openai}\ndriver: openai", "x.md:3", "driver: is the same setting as 'chat'"),
        ("temperature: hot", "x.md:2", "temperature: must be a number, but is text"),
        ("temperature: 9", "x.md:2", "temperature: must be between 0 and 2"),
        ("max_turns: 0", "x.md:2", "max_turns: must be between 1"),
        ("max_turns: 1.5", "x.md:2", "max_turns: must be a whole number"),
        ("max_tokens: true", "x.md:2", "max_tokens: must be a whole number, but is true or false"),
        ("ui_visible: no", "x.md:2", "ui_visible: must be true or false, but is text"),
        ("description: 12", "x.md:2", "description: must be text, but is a number; put it in quotes"),
        ("name: 12", "x.md:2", "name: must be text"),
        ("type: robot", "x.md:2", "type: must be one of chat, external"),
        ("chat:\n  provider: foo", "x.md:3", "chat.provider: 'foo' is not a known driver"),
        ("chat:\n  modle: foo", "x.md:3", "chat.modle: is not a known key; did you mean 'model'?"),
        ("paths:\n  raed: []", "x.md:3", "paths.raed: is not a known key; did you mean 'read'?"),
        ("paths: [a]", "x.md:2", "paths: must be a map, but is a list"),
        ("paths:\n  read:\n    - /a\n    - 3", "x.md:5", "paths.read[1]: must be text"),
        ("roles: [boss]", "x.md:2", "roles[0]: must be one of primary, subtask, watcher, orchestrator"),
        ("roles: []", "x.md:2", "roles: must name at least one role"),
        ("tools: 3", "x.md:2", "tools: must be a list, but is a number"),
        ("tools: ['']", "x.md:2", "tools[0]: must not be empty"),
        ("tools: ['Bash(git *)']", "x.md:2", "limits a tool to certain arguments"),
        ("hooks: {}", "x.md:2", "hooks: hooks are not supported"),
        ("mcpServers: [x]", "x.md:2", "mcpServers: servers are set up in the configuration"),
        ("permissionMode: bypassPermissions", "x.md:2", "would approve calls in advance"),
        ("limits: {max_dept: 3}", "x.md:2", "limits.max_dept: is not a known key; did you mean 'max_depth'?"),
        ("promptPath: p.md", "x.md:1", "has a prompt both in a field and below"),
        ("prompt: hi", "x.md:1", "has a prompt both in a field and below"),
        ("workspace: {isolation: custom}", "x.md", "workspace.path: is missing"),
        ("workspace: {isolation: sandbox, path: /x}", "x.md", "workspace.path: is only for a custom workspace"),
        ("description: [a]", "x.md:2", "description: must be text, but is a list"),
        ('display_name: "a\\nb"', "x.md:2", "display_name: must be on one line"),
        ("paths: {read: ['']}", "x.md:2", "paths.read[0]: must not be empty"),
        (f"tools: ['{'x' * 1025}']", "x.md:2", "tools[0]: is longer than 1024 characters"),
        (f"tools: [{', '.join(['a'] * 1001)}]", "x.md:2", "tools: has 1001 items; the maximum is 1000"),
        ("permission: {edit: never}", "x.md:2", "permission.edit: must be one of allow, ask, deny"),
        ("isolation: jail", "x.md:2", "isolation: must be one of shared, sandbox, custom"),
        ("- a", "x.md:2", "the front matter must be fields"),
        ("a: 'x", "x.md:2", ""),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_the_key(front: str, location: str, message: str):
    """Shows: D13, D04, D05."""
    error = parse_error(front)
    assert error.location == location
    assert message in error.problem


@pytest.mark.parametrize(
    "name",
    ["../../x", "a/b", ".", "..", "CON", "Ab", "-a", "a_b", "x" * 65, "a\\nb", "re\u0455earcher", "🚀", "\\u202eabc", "a b", ""],
)  # fmt: skip
def test_an_agent_name_consists_of_lower_case_letters_digits_and_hyphens(name: str):
    """Shows: D07, D08."""
    assert "name" in str(parse_error(f'name: "{name}"'))


def test_an_invalid_agent_name_gets_a_suggestion():
    assert "such as 'backend-architect'" in str(parse_error("name: Backend Architect!"))


@pytest.mark.parametrize(
    ("default_writes", "override", "writable"),
    [("", "allowWrites: false", False), (", allowWrites: false", "allowWrites: true", True), (", allowWrites: true", "allowShell: false", True)],
)  # fmt: skip
@pytest.mark.parametrize("is_override_first", [True, False])
def test_permission_overrides_override_the_default_workspace_of_a_profile(
    default_writes: str, override: str, writable: bool, is_override_first: bool
):
    """Shows: D006."""
    lines = [f"defaultWorkspace: {{mode: sandbox{default_writes}}}", f"permissionOverrides: {{{override}}}"]
    agent = parse_definition("\n".join(reversed(lines) if is_override_first else lines))
    assert agent.workspace == WorkspacePolicy(isolation=Isolation.SANDBOX, writable=writable)


@pytest.mark.parametrize(
    "front",
    [
        "roles: [watcher]",
        "roles: [watcher]\ntools: [read, write]",
        "roles: [watcher]\ntools: [read, bash]",
        "roles: [watcher]\ntools: ['*']",
        "roles: [watcher]\ntools: [read]\nworkspace: {writable: true}",
        "capabilities: [watcher]\ntools: {read: {enabled: true}, bash: {enabled: true, mode: execute}}",
        "capabilities: [watcher]\ntools: [read]\npermissionOverrides: {allowWrites: true}",
    ],
)
def test_a_watcher_that_could_change_something_is_refused(front: str):
    """Shows: D010."""
    assert "the watcher 'x' must be read-only" in str(parse_error(front))


@pytest.mark.parametrize(
    "front",
    [
        "roles: [watcher]\ntools: [read, grep]",
        "roles: [watcher]\ntools: ['*']\ntool_deny: [write, edit, bash]",
        "capabilities: [watcher]\ntools: {read: {enabled: true}, bash: {enabled: true, mode: read}}",
    ],
)
def test_a_watcher_with_reading_tools_gets_a_read_only_workspace(front: str):
    """Shows: D010."""
    assert parse_definition(front).workspace.writable is False


TEXT = st.text(max_size=30)
WORD = st.text(min_size=1, max_size=12).filter(
    lambda text: text == text.strip() and "\n" not in text and "\x00" not in text
)
WORDS = st.none() | st.lists(WORD, max_size=3).map(tuple)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True)
JSON = st.recursive(
    st.booleans() | st.integers(-1000, 1000) | st.floats(-10, 10) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
TOOLS = st.none() | st.lists(
    WORD.filter(lambda word: "(" not in word and word[0].islower() and native_tool_name(word) == word),
    max_size=3,
    unique=True,
).map(tuple)
PROVIDERS = st.tuples(
    st.sampled_from([None, "openai", "anthropic"]), st.dictionaries(TEXT, JSON, max_size=2)
) | st.tuples(
    st.just("claude-cli"),
    st.sampled_from([{}, {"workdir": "/srv", "extraArgs": ["--add-dir", "/a b"], "hosts": ["a.example"]}]),
)


def make_agent(
    provider: tuple[str | None, dict[str, Any]], fallback_models: tuple[str, ...] | None, **fields: Any
) -> Agent:
    driver, driver_settings = provider
    fallbacks = None if driver == "claude-cli" else fallback_models
    return Agent(driver=driver, driver_settings=driver_settings, fallback_models=fallbacks, **fields)


AGENTS = st.builds(
    make_agent,
    provider=PROVIDERS,
    name=NAMES,
    display_name=st.none() | WORD,
    description=TEXT.filter(lambda text: "\x00" not in text),
    prompt=TEXT.filter(lambda text: "\x00" not in text),
    model=st.none() | WORD.filter(lambda word: word not in ("sonnet", "opus", "haiku", "inherit")),
    temperature=st.none() | st.floats(0, 2),
    fallback_models=st.sampled_from([None, (), ("house:b", "house:c")]),
    max_tokens=st.none() | st.integers(1, 10**6),
    max_turns=st.none() | st.integers(1, 100),
    thinking=st.none() | st.sampled_from(Thinking),
    type=st.sampled_from(AgentType),
    roles=st.lists(st.sampled_from([Role.PRIMARY, Role.SUBTASK, Role.ORCHESTRATOR]), min_size=1, unique=True).map(tuple),
    triggers=st.builds(Triggers, slash=st.sampled_from([(), ("/a",)]), hotkeys=st.sampled_from([(), ("Ctrl+A",)])),
    tool_allow=TOOLS,
    tool_deny=TOOLS,
    tool_exposure=st.sampled_from(ToolExposure),
    skill_allow=WORDS,
    capability_deny=WORDS,
    agent_allow=WORDS,
    ui_visible=st.booleans(),
    api_exposed=st.none() | st.booleans(),
    paths=st.none() | st.builds(PathPatterns, read=WORDS, write=WORDS, deny=WORDS),
    shell_commands=st.none() | st.builds(ShellCommands, allow=WORDS, deny=WORDS),
    workspace=st.builds(
        WorkspacePolicy,
        isolation=st.sampled_from([Isolation.SHARED, Isolation.SANDBOX]),
        writable=st.none() | st.booleans(),
    ) | st.builds(WorkspacePolicy, isolation=st.just(Isolation.CUSTOM), path=WORD),
    exits=WORDS,
    limits=st.sampled_from([{}, {"max_depth": 2, "idle_seconds": 0.5}]),
    ceiling=st.sampled_from([None, {}, {"tools": ("read",), "writable": False, "paths": {"read": ("/a/**",)}}]),
    extends=st.none() | NAMES,
    external=st.sampled_from([None, {"inputUrl": "https://a.example/in"}]),
    notes=st.dictionaries(TEXT, JSON, max_size=2),
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(AGENTS)
def test_a_rendered_definition_parses_to_the_same_agent(agent: Agent):
    assert parse_preset(render_definition(agent), "x.md") == agent


@settings(max_examples=60, deadline=None)
@given(AGENTS)
def test_a_rendered_definition_has_only_the_fields_that_were_set(agent: Agent):
    fields = definition_fields(agent)
    assert set(fields) <= set(definition_fields(agent, include_defaults=True))
    assert render_definition(agent) == render_definition(parse_preset(render_definition(agent), "x.md"))


TEMPLATE = """---
name: researcher
description: Looks things up
tools:
  - read
  - grep
tool_deny: [bash]
paths:
  read:
    - "/project/**"
  deny:
    - "**/.env"
workspace:
  writable: false
---

You look things up.
"""


def test_a_truncated_preset_is_an_error_or_has_the_same_permissions():
    """Shows: P13."""
    whole = parse_preset(TEMPLATE, "preset.md")
    permissions = (whole.tool_allow, whole.tool_deny, whole.paths, whole.workspace)
    readable = 0
    for cut in range(len(TEMPLATE)):
        try:
            truncated = parse_preset(TEMPLATE[:cut], "preset.md")
        except BadDefinition:
            continue
        readable += 1
        assert (
            truncated.tool_allow,
            truncated.tool_deny,
            truncated.paths,
            truncated.workspace,
        ) == permissions
    assert 0 < readable < 30
