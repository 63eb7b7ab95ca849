"""Settings: where they come from, what they may say, and that a mistake is one sentence with its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.registry import FileAgentRegistry
from retinue.config.load import Config, Secret, load_config
from retinue.domain.limits import Limits
from retinue.domain.pricing import Price
from retinue.domain.providers import PROVIDERS
from retinue.errors import BadConfig

SEED_002 = """\
{
  "agents": [
    {
      "agentId": "reading-list",
      "displayName": "Reading List Manager",
      "systemPrompt": "You are a reading list manager. Help the user track articles, papers, and links they want to read. You can add items, list the queue, search for items, and mark items as read.",
      "toolAllowlist": ["reading_list_*"],
      "toolDenylist": ["reading_list_delete"],
      "toolExposure": "mixed",
      "skillAllowlist": ["notes"],
      "capabilityAllowlist": ["lists.*"],
      "capabilityDenylist": ["lists.write"],
      "agentAllowlist": ["todo", "journal"],
      "uiVisible": true,
      "apiExposed": false
    },
    {
      "agentId": "todo",
      "displayName": "Todo Manager",
      "systemPrompt": "You are a todo list manager. Help the user track tasks, set reminders, and stay organized.",
      "toolAllowlist": ["todo_*"],
      "uiVisible": true
    },
    {
      "agentId": "journal",
      "displayName": "Personal Journal",
      "systemPrompt": "You are a personal journal assistant. Help the user reflect on their day, capture thoughts, and review past entries.",
      "toolAllowlist": ["journal_*"],
      "uiVisible": true
    },
    {
      "agentId": "general",
      "displayName": "General Assistant",
      "systemPrompt": "You are a helpful general assistant.",
      "toolAllowlist": null,
      "uiVisible": true
    }
  ]
}
"""

SEED_004 = """\
{
  "agents": {
    "defaults": {
      "subagents": {
        "allowAgents": ["main", "research"],
        "model": "claude-sonnet-4-20250514"
      }
    }
  }
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "config"
    found.mkdir()
    return found


def loaded(folder: Path, **env: str) -> Config:
    return load_config({"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(folder / "home"), **env})


def said(folder: Path, settings: dict[str, Any], **env: str) -> Config:
    (folder / "config.json").write_text(json.dumps(settings))
    return loaded(folder, **env)


def test_without_a_file_everything_has_its_default(folder: Path):
    config = loaded(folder)
    assert (config.home, config.config_dir, config.file) == (folder / "home", folder, None)
    assert config.limits == Limits()
    assert (config.approvals, config.sandbox_minimum, config.tools, config.agents) == ("ask", "none", (), ())
    assert config.agents_dir == folder / "agents"
    assert config.default_model() is None


def test_a_home_that_is_given_beats_the_environment(folder: Path):
    config = load_config(
        {"RETINUE_CONFIG": str(folder), "RETINUE_HOME": "/elsewhere"}, home=str(folder / "mine")
    )
    assert config.home == folder / "mine"


def test_without_names_the_platforms_folders_are_used(tmp_path: Path):
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "conf")}
    config = load_config(env)
    assert (config.home, config.config_dir) == (tmp_path / "data" / "retinue", tmp_path / "conf" / "retinue")


def test_the_configuration_of_seed_002_is_valid_as_it_stands(folder: Path):
    """Shows: C002, C006."""
    (folder / "config.json").write_text(SEED_002)
    catalogue = FileAgentRegistry.from_settings(loaded(folder))
    assert {"reading-list", "todo", "journal", "general"} <= set(catalogue.agent_names())
    reading = catalogue.get("reading-list").agent
    assert (reading.title, reading.tool_allow, reading.tool_deny) == (
        "Reading List Manager",
        ("reading_list_*",),
        ("reading_list_delete",),
    )
    assert (reading.agent_allow, reading.api_exposed) == (("todo", "journal"), False)
    general = catalogue.get("general").agent
    assert (general.tool_allow, general.prompt) == (None, "You are a helpful general assistant.")


def test_the_allow_list_of_seed_004_is_valid_as_it_stands(folder: Path):
    (folder / "config.json").write_text(SEED_004)
    subagents = loaded(folder).subagents
    assert (subagents.allow_agents, subagents.model) == (("main", "research"), "claude-sonnet-4-20250514")


def test_toml_says_the_same_as_json(folder: Path):
    (folder / "config.toml").write_text(
        'model = "openai:gpt-5"\napprovals = "deny"\ntools = ["mine:send_mail"]\ndatabase = "postgresql://x"\n'
        "[limits]\nmax_depth = 2\nidle_seconds = 1.5\n[sandbox]\nminimum = 'strict'\n"
        "[deny]\ntools = ['bash']\npaths = ['/etc/**']\n[ceiling]\nwritable = false\ntools = ['read']\n"
        "[subagents]\nallow_agents = ['scout']\n[[agents]]\nname = 'scout'\nprompt = 'Look.'\n"
        "[[schedules]]\nid = 'daily'\nat = 2026-11-15T10:00:00Z\n[channels.me]\nurl = 'mailto://x'\n"
    )
    config = loaded(folder)
    assert (config.model, config.approvals, config.tools) == ("openai:gpt-5", "deny", ("mine:send_mail",))
    assert (config.limits.max_depth, config.limits.idle_seconds, config.limits.max_live) == (2, 1.5, 16)
    assert (config.sandbox_minimum, config.database) == ("strict", "postgresql://x")
    assert config.deny == {"tools": ("bash",), "paths": ("/etc/**",)}
    assert config.ceiling == {"writable": False, "tools": ("read",)}
    assert config.subagents.allow_agents == ("scout",)
    assert [each.name for each in config.agents] == ["scout"]
    assert config.schedules == ({"id": "daily", "at": "2026-11-15 10:00:00+00:00"},)
    assert config.channels == {"me": {"url": "mailto://x"}}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"modle": "x"}, "modle: is not a known setting; did you mean 'model'?"),
    ({"limits": {"max_dept": 1}}, "limits.max_dept: is not a known key; did you mean 'max_depth'?"),
    ({"limits": {"max_depth": 6}}, "limits.max_depth: must be between 0 and 5, and is 6"),
    ({"limits": {"max_live": 0}}, "limits.max_live: must be between 1"),
    ({"limits": {"idle_seconds": -1}}, "limits.idle_seconds: must be between"),
    ({"limits": {"max_live": "many"}}, "limits.max_live: must be a whole number, and is text"),
    ({"limits": []}, "limits: must be a map, and is a list"),
    ({"approvals": "maybe"}, "approvals: must be one of ask, auto, deny"),
    ({"sandbox": {"minimum": "jail"}}, "sandbox.minimum: must be one of none, landlock, strict"),
    ({"deny": {"tool": ["x"]}}, "deny.tool: is not a known key; did you mean 'tools'?"),
    ({"tools": "x:y"}, "tools: must be a list, and is text"),
    ({"ceiling": {"tools": 3}}, "ceiling.tools: must be a list, and is a number"),
    ({"agents": [{"agentId": "a"}, {"agentId": "a"}]}, "agents[1]: defines 'a' a second time"),
    ({"agents": [{"prompt": "x"}]}, "agents[0]: has no name"),
    ({"agents": [1]}, "agents[0]: must be a map, and is a number"),
    ({"agents": 3}, "agents: must be a map, and is a number"),
    ({"agents": {"default": {}}}, "agents.default: is not a known key; did you mean 'defaults'?"),
    (
        {"agents": [{"agentId": "a"}, {"agentId": "b"}, {"agentId": "c", "chat": {"provider": "foo"}}]},
        "agents[2].chat.provider: 'foo' is not a known driver",
    ),
    ({"agents": [{"agentId": "a", "type": "robot"}]}, "agents[0].type: must be one of chat, external"),
    ({"agents": [{"agentId": "a", "tolls": []}]}, "agents[0].tolls: is not a known field; did you mean 'tools'?"),
    ({"agents": [{"agentId": "A B"}]}, "agents[0].agentId: 'A B' is not a name"),
    ({"prices": {"m": {"input": 1}}}, "prices.m: has no output price; add output"),
    ({"prices": {"m": {"input": 1, "output": -1}}}, "prices.m.output: must be between 0 and"),
    ({"prices": {"m": {"inputs": 1}}}, "prices.m.inputs: is not a known key; did you mean 'input'?"),
    ({"providers": {"openai": {"base_url": "ftp://x"}}}, "providers.openai.base_url: 'ftp://x' is not a URL"),
    (
        {"subagents": {"model": "x"}, "agents": {"defaults": {"subagents": {"model": "y"}}}},
        "agents: sets 'subagents' a second time",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "says"), MISTAKES)
def test_a_mistake_is_one_sentence_with_the_file_and_the_key(
    folder: Path, settings: dict[str, Any], says: str
):
    """Shows: C003, C004, D13."""
    with pytest.raises(BadConfig) as caught:
        said(folder, settings)
    assert str(caught.value).startswith(f"{folder / 'config.json'}: {says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", "{", "config.json:1: is not JSON"),
        ("config.json", '{"model": "a", "model": "b"}', "'model' is said twice"),
        ("config.json", "[" * 100_000, "nested deeper"),
        ("config.json", "[]", "must be a map of settings, but is a list"),
        ("config.toml", "model = ", "invalid TOML"),
        ("config.toml", "a = " + "[" * 5_000, "nested deeper"),
        ("config.toml", "model = 'a'\nmodel = 'b'\n", "invalid TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_so(folder: Path, name: str, text: str, says: str):
    (folder / name).write_text(text)
    with pytest.raises(BadConfig, match=says.replace("[", r"\[")):
        loaded(folder)


def test_a_watcher_that_could_change_something_stops_the_start(folder: Path):
    """Shows: D010."""
    with pytest.raises(BadConfig, match=r"config\.json: agents: .*the watcher 'spy' must be read-only"):
        said(folder, {"agents": [{"id": "spy", "capabilities": ["watcher"], "tools": ["read", "write"]}]})
    good = {"id": "spy", "capabilities": ["watcher"], "tools": ["read"]}
    assert [
        each.name for each in said(folder, {"agents": [good, {"id": "pair", "roles": ["watcher"]}]}).agents
    ] == [
        "spy",
        "pair",
    ]


def test_two_files_are_one_too_many(folder: Path):
    (folder / "config.toml").write_text("")
    with pytest.raises(BadConfig, match=r"contains both config\.toml and config\.json"):
        said(folder, {})


def test_a_configuration_that_is_a_link_is_not_followed(folder: Path, tmp_path: Path):
    """Shows: D12."""
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (folder / "config.json").symlink_to(secret)
    with pytest.raises(BadConfig, match="symbolic link"):
        loaded(folder)


def test_prices_are_said_by_model_and_decide_nothing(folder: Path):
    before = loaded(folder).fingerprint()
    priced = said(
        folder, {"prices": {"openai:m": {"input": 1, "output": 2.5, "cache_read": None}, "n": None}}
    )
    assert priced.prices == {"openai:m": Price(input=1, output=2.5)}
    (folder / "config.json").write_text("{}")
    assert priced.fingerprint() == loaded(folder).fingerprint() != before


def test_null_says_nothing(folder: Path):
    """Shows: T05."""
    config = said(
        folder, {"model": None, "limits": {"max_depth": None}, "ceiling": None, "deny": {"tools": None}}
    )
    assert (config.model, config.limits, config.ceiling, config.deny) == (None, Limits(), None, {})


@pytest.mark.parametrize(
    ("settings", "env", "model"),
    [
        ({}, {}, None),
        ({}, {"OPENAI_API_KEY": "k"}, PROVIDERS["openai"].default_model),
        ({}, {"ANTHROPIC_API_KEY": "k"}, PROVIDERS["anthropic"].default_model),
        ({}, {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, PROVIDERS["openai"].default_model),
        ({"model": "openai:x"}, {"ANTHROPIC_API_KEY": "k"}, "openai:x"),
        ({"model": "openai:x"}, {"RETINUE_MODEL": "scripted:f.json"}, "scripted:f.json"),
        ({"model": "sonnet"}, {}, "anthropic:claude-sonnet-4-5"),
        ({"providers": {"anthropic": {"api_key": "k"}}}, {}, PROVIDERS["anthropic"].default_model),
        ({}, {"OPENAI_API_KEY": ""}, None),
    ],
)
def test_the_default_model_is_the_first_that_is_said(
    folder: Path, settings: dict[str, Any], env: dict[str, str], model: str | None
):
    assert said(folder, settings, **env).default_model() == model


def test_the_servers_are_the_makers_unless_the_user_says_otherwise(folder: Path, tmp_path: Path):
    """Shows: M23."""
    project = tmp_path / ".retinue"
    project.mkdir()
    (project / "config.json").write_text('{"providers": {"openai": {"base_url": "https://evil.example"}}}')
    plain = loaded(folder).providers
    assert (plain["openai"].base_url, plain["openai"].is_default) == ("https://api.openai.com/v1", True)
    own = said(
        folder,
        {"providers": {"openai": {"base_url": "http://file.example"}}},
        ANTHROPIC_BASE_URL="http://127.0.0.1:9",
    ).providers
    assert (own["openai"].base_url, own["openai"].is_default) == ("http://file.example", False)
    assert own["anthropic"].base_url == "http://127.0.0.1:9"
    with pytest.raises(BadConfig, match="OPENAI_BASE_URL is 'nonsense', which is not a URL"):
        loaded(folder, OPENAI_BASE_URL="nonsense")


def test_keys_are_used_and_never_shown(folder: Path):
    config = loaded(folder, OPENAI_API_KEY="sk-very-secret", ANTHROPIC_API_KEY="sk-ant-secret\n")
    assert config.secrets() == ("sk-very-secret", "sk-ant-secret")
    assert "secret" not in repr(config)
    assert f"Bearer {config.providers['openai'].api_key}" == "Bearer sk-very-secret"
    assert (repr(Secret("x")), repr(Secret())) == ("Secret(…)", "Secret()")


def test_what_the_environment_calls_a_key_is_a_secret_if_it_looks_like_one(tmp_path: Path):
    """Shows: X09."""
    env = {
        "RETINUE_HOME": str(tmp_path / "home"),
        "RETINUE_CONFIG": str(tmp_path),
        "DEPLOY_TOKEN": "a1b2c3d4e5f6a7b8",
        "db_password": "correct-horse-7-battery",
        "SSH_KEY": "/home/someone/.ssh/id_ed25519",
        "PGPASSWORD": "postgres",
        "MAX_TOKEN": "1000000000000000",
        "EDITOR": "a1b2c3d4e5f6a7b8x",
    }
    assert load_config(env).secrets() == ("a1b2c3d4e5f6a7b8", "correct-horse-7-battery")


@pytest.mark.parametrize("name", ["", "agents"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, name: str):
    folder = tmp_path / "config"
    if name:
        folder.mkdir()
    (folder / name).write_text("")
    with pytest.raises(BadConfig, match="must be a folder, but is a file"):
        load_config({"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(tmp_path / "home")})
