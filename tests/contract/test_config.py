"""The configuration: its sources, its checks, and error messages that name the file and the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.agents.registry import FileAgentRegistry
from retinue.config.load import Config, Secret, load_config
from retinue.domain.limits import Limits
from retinue.domain.model_turn import Model
from retinue.domain.pricing import Price
from retinue.domain.providers import PROVIDERS
from retinue.errors import BadConfig
from retinue.providers.interface import server_access
from retinue.providers.registry import check_model

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
    path = tmp_path / "config"
    path.mkdir()
    return path


def load_folder(folder: Path, **env: str) -> Config:
    return load_config({"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(folder / "home"), **env})


def load_settings(folder: Path, settings: dict[str, Any], **env: str) -> Config:
    (folder / "config.json").write_text(json.dumps(settings))
    return load_folder(folder, **env)


def test_without_a_file_everything_has_its_default(folder: Path):
    config = load_folder(folder)
    assert (config.home, config.config_dir, config.file) == (folder / "home", folder, None)
    assert config.limits == Limits()
    assert (config.approvals, config.sandbox_minimum, config.tools, config.agents) == ("ask", "none", (), ())
    assert config.agents_dir == folder / "agents"
    assert config.default_model() is None


def test_an_explicit_home_overrides_the_environment(folder: Path):
    config = load_config(
        {"RETINUE_CONFIG": str(folder), "RETINUE_HOME": "/elsewhere"}, home=str(folder / "mine")
    )
    assert config.home == folder / "mine"


def test_the_default_folders_are_those_of_the_platform(tmp_path: Path):
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "conf")}
    config = load_config(env)
    assert (config.home, config.config_dir) == (tmp_path / "data" / "retinue", tmp_path / "conf" / "retinue")


def test_the_configuration_of_seed_002_is_valid_unchanged(folder: Path):
    """Shows: C002, C006."""
    (folder / "config.json").write_text(SEED_002)
    registry = FileAgentRegistry.from_settings(load_folder(folder))
    assert {"reading-list", "todo", "journal", "general"} <= set(registry.agent_names())
    reading = registry.get("reading-list").agent
    assert (reading.title, reading.tool_allow, reading.tool_deny) == (
        "Reading List Manager",
        ("reading_list_*",),
        ("reading_list_delete",),
    )
    assert (reading.agent_allow, reading.api_exposed) == (("todo", "journal"), False)
    general = registry.get("general").agent
    assert (general.tool_allow, general.prompt) == (None, "You are a helpful general assistant.")


def test_the_allow_list_of_seed_004_is_valid_unchanged(folder: Path):
    (folder / "config.json").write_text(SEED_004)
    subagents = load_folder(folder).subagents
    assert (subagents.allow_agents, subagents.model) == (("main", "research"), "claude-sonnet-4-20250514")


def test_toml_and_json_have_the_same_settings(folder: Path):
    (folder / "config.toml").write_text(
        'model = "openai:gpt-5"\napprovals = "deny"\ntools = ["mine:send_mail"]\ndatabase = "postgresql://x"\n'
        "[limits]\nmax_depth = 2\nidle_seconds = 1.5\n[sandbox]\nminimum = 'strict'\n"
        "[deny]\ntools = ['bash']\npaths = ['/etc/**']\n[ceiling]\nwritable = false\ntools = ['read']\n"
        "[subagents]\nallow_agents = ['scout']\n[[agents]]\nname = 'scout'\nprompt = 'Look.'\n"
    )
    config = load_folder(folder)
    assert (config.model, config.approvals, config.tools) == ("openai:gpt-5", "deny", ("mine:send_mail",))
    assert (config.limits.max_depth, config.limits.idle_seconds, config.limits.max_live) == (2, 1.5, 16)
    assert (config.sandbox_minimum, config.database) == ("strict", "postgresql://x")
    assert config.deny == {"tools": ("bash",), "paths": ("/etc/**",)}
    assert config.ceiling == {"writable": False, "tools": ("read",)}
    assert config.subagents.allow_agents == ("scout",)
    assert [each.name for each in config.agents] == ["scout"]


INVALID_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"channels": {"me": {"url": "mailto://x"}}}, "channels: is not supported yet; remove it"),
    ({"chanels": {}}, "chanels: is not a known setting; valid values: agents, approvals, ceiling, context_windows, database"),
    (
        {"schedules": [{"id": "daily"}]},
        "schedules: is not a known setting; schedules are not part of the configuration, remove it",
    ),
    ({"modle": "x"}, "modle: is not a known setting; did you mean 'model'?"),
    ({"limits": {"max_dept": 1}}, "limits.max_dept: is not a known key; did you mean 'max_depth'?"),
    ({"limits": {"max_depth": 6}}, "limits.max_depth: must be between 0 and 5, but is 6"),
    ({"limits": {"max_live": 0}}, "limits.max_live: must be between 1"),
    ({"limits": {"idle_seconds": -1}}, "limits.idle_seconds: must be between"),
    ({"limits": {"max_live": "many"}}, "limits.max_live: must be a whole number, but is text"),
    ({"limits": []}, "limits: must be a map, but is a list"),
    ({"approvals": "maybe"}, "approvals: must be one of ask, auto, deny"),
    ({"sandbox": {"minimum": "jail"}}, "sandbox.minimum: must be one of none, landlock, strict"),
    ({"deny": {"tool": ["x"]}}, "deny.tool: is not a known key; did you mean 'tools'?"),
    ({"tools": "x:y"}, "tools: must be a list, but is text"),
    ({"ceiling": {"tools": 3}}, "ceiling.tools: must be a list, but is a number"),
    ({"agents": [{"agentId": "a"}, {"agentId": "a"}]}, "agents[1]: defines 'a' a second time"),
    ({"agents": [{"prompt": "x"}]}, "agents[0]: has no name"),
    ({"agents": [1]}, "agents[0]: must be a map, but is a number"),
    ({"agents": 3}, "agents: must be a map, but is a number"),
    ({"agents": {"default": {}}}, "agents.default: is not a known key; did you mean 'defaults'?"),
    (
        {"agents": [{"agentId": "a"}, {"agentId": "b"}, {"agentId": "c", "chat": {"provider": "foo"}}]},
        "agents[2].chat.provider: 'foo' is not a known driver",
    ),
    ({"agents": [{"agentId": "a", "type": "robot"}]}, "agents[0].type: must be one of chat, external"),
    ({"agents": [{"agentId": "a", "tolls": []}]}, "agents[0].tolls: is not a known field; did you mean 'tools'?"),
    ({"agents": [{"agentId": "A B"}]}, "agents[0].agentId: 'A B' is not a valid name"),
    ({"prices": {"m": {"input": 1}}}, "prices.m: has no output price; add output"),
    ({"prices": {"m": {"input": 1, "output": -1}}}, "prices.m.output: must be between 0 and"),
    ({"prices": {"m": {"inputs": 1}}}, "prices.m.inputs: is not a known key; did you mean 'input'?"),
    ({"providers": {"openai": {"base_url": "ftp://x"}}}, "providers.openai.base_url: 'ftp://x' is not a URL"),
    (
        {"subagents": {"model": "x"}, "agents": {"defaults": {"subagents": {"model": "y"}}}},
        "agents: sets 'subagents' a second time",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), INVALID_SETTINGS)
def test_the_error_of_an_invalid_setting_is_one_line_with_the_file_and_the_key(
    folder: Path, settings: dict[str, Any], message: str
):
    """Shows: C003, C004, D13."""
    with pytest.raises(BadConfig) as error_info:
        load_settings(folder, settings)
    assert str(error_info.value).startswith(f"{folder / 'config.json'}: {message}")
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "config.json:1: is not valid JSON"),
        ("config.json", '{"model": "a", "model": "b"}', "'model' occurs twice"),
        ("config.json", "[" * 100_000, "nested deeper"),
        ("config.json", "[]", "must be a map of settings, but is a list"),
        ("config.toml", "model = ", "is not valid TOML"),
        ("config.toml", "a = " + "[" * 5_000, "nested deeper"),
        ("config.toml", "model = 'a'\nmodel = 'b'\n", "is not valid TOML"),
    ],
)
def test_an_unreadable_config_file_is_reported(folder: Path, name: str, text: str, message: str):
    (folder / name).write_text(text)
    with pytest.raises(BadConfig, match=message.replace("[", r"\[")):
        load_folder(folder)


def test_a_watcher_with_write_tools_is_refused(folder: Path):
    """Shows: D010."""
    with pytest.raises(BadConfig, match=r"config\.json: agents: .*the watcher 'spy' must be read-only"):
        load_settings(
            folder, {"agents": [{"id": "spy", "capabilities": ["watcher"], "tools": ["read", "write"]}]}
        )
    watcher = {"id": "spy", "capabilities": ["watcher"], "tools": ["read"]}
    assert [
        each.name
        for each in load_settings(folder, {"agents": [watcher, {"id": "pair", "roles": ["watcher"]}]}).agents
    ] == [
        "spy",
        "pair",
    ]


def test_a_folder_with_two_config_files_is_refused(folder: Path):
    (folder / "config.toml").write_text("")
    with pytest.raises(BadConfig, match=r"contains both config\.toml and config\.json"):
        load_settings(folder, {})


def test_a_config_file_that_is_a_symbolic_link_is_not_followed(folder: Path, tmp_path: Path):
    """Shows: D12."""
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (folder / "config.json").symlink_to(secret)
    with pytest.raises(BadConfig, match="symbolic link"):
        load_folder(folder)


def test_prices_are_set_per_model_and_do_not_change_the_fingerprint(folder: Path):
    fingerprint = load_folder(folder).fingerprint()
    config = load_settings(
        folder, {"prices": {"openai:m": {"input": 1, "output": 2.5, "cache_read": None}, "n": None}}
    )
    assert config.prices == {"openai:m": Price(input=1, output=2.5)}
    (folder / "config.json").write_text("{}")
    assert config.fingerprint() == load_folder(folder).fingerprint() != fingerprint


def test_null_settings_are_ignored(folder: Path):
    """Shows: T05."""
    config = load_settings(
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
        ({"model": "sonnet"}, {}, "anthropic:claude-sonnet-5-5"),
        ({"providers": {"anthropic": {"api_key": "k"}}}, {}, PROVIDERS["anthropic"].default_model),
        ({}, {"OPENAI_API_KEY": ""}, None),
    ],
)
def test_the_default_model_is_the_first_that_is_configured(
    folder: Path, settings: dict[str, Any], env: dict[str, str], model: str | None
):
    assert load_settings(folder, settings, **env).default_model() == model


def test_base_urls_are_the_official_ones_unless_the_user_sets_others(folder: Path, tmp_path: Path):
    """Shows: M23."""
    project = tmp_path / ".retinue"
    project.mkdir()
    (project / "config.json").write_text('{"providers": {"openai": {"base_url": "https://evil.example"}}}')
    default_providers = load_folder(folder).providers
    assert (default_providers["openai"].base_url, default_providers["openai"].is_default) == (
        "https://api.openai.com/v1",
        True,
    )
    own_providers = load_settings(
        folder,
        {"providers": {"openai": {"base_url": "http://file.example"}}},
        ANTHROPIC_BASE_URL="http://127.0.0.1:9",
    ).providers
    assert (own_providers["openai"].base_url, own_providers["openai"].is_default) == (
        "http://file.example",
        False,
    )
    assert own_providers["anthropic"].base_url == "http://127.0.0.1:9"
    with pytest.raises(BadConfig, match="OPENAI_BASE_URL is 'nonsense', which is not a URL"):
        load_folder(folder, OPENAI_BASE_URL="nonsense")


def test_api_keys_are_never_shown_in_a_repr(folder: Path):
    config = load_folder(folder, OPENAI_API_KEY="sk-very-secret", ANTHROPIC_API_KEY="sk-ant-secret\n")
    assert config.secrets() == ("sk-very-secret", "sk-ant-secret")
    assert "secret" not in repr(config)
    assert f"Bearer {config.providers['openai'].api_key}" == "Bearer sk-very-secret"
    assert (repr(Secret("x")), repr(Secret())) == ("Secret(…)", "Secret()")


def test_environment_variables_named_like_keys_are_secrets_if_their_values_look_like_keys(tmp_path: Path):
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
def test_a_file_in_place_of_a_config_folder_is_reported(tmp_path: Path, name: str):
    folder = tmp_path / "config"
    if name:
        folder.mkdir()
    (folder / name).write_text("")
    with pytest.raises(BadConfig, match="must be a folder, but is a file"):
        load_config({"RETINUE_CONFIG": str(folder), "RETINUE_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("http://127.0.0.1:8080/v1", True), ("http://127.9.9.9/", True), ("http://[::1]:8080", True),
        ("http://localhost:11434/v1", True), ("http://LOCALHOST/", True), ("https://gpu.example/v1", True),
        ("http://gpu.example:8000/v1", False), ("http://192.168.1.7/v1", False), ("http://[fd00::1]/", False),
        ("http://localhost.gpu.example/", False), ("http://127.0.0.1.gpu.example/", False),
        ("http://127.0.0.1@gpu.example/", False), ("http://10.0.0.1#127.0.0.1", False),
    ],
)  # fmt: skip
def test_plain_http_to_another_machine_requires_a_setting(folder: Path, url: str, is_allowed: bool):
    model = Model(provider="openai", name="x")
    own_server = Model(provider="openai", name="x", settings={"base_url": url})
    for allow_http in (False, True):
        settings = {"providers": {"openai": {"allow_http": allow_http}}}
        in_file = {"providers": {"openai": {"base_url": url, "allow_http": allow_http}}}
        for config, used_model in (
            (load_settings(folder, settings, OPENAI_BASE_URL=url), model),
            (load_settings(folder, in_file), model),
            (load_settings(folder, settings), own_server),
        ):
            if is_allowed or allow_http:
                check_model(used_model, config)
                assert server_access(used_model, config).base_url == url
                continue
            with pytest.raises(BadConfig, match=r"is not encrypted.*allow_http = true.*providers\.openai"):
                check_model(used_model, config)
            with pytest.raises(BadConfig, match="is not encrypted"):
                server_access(used_model, config)
