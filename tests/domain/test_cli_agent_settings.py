"""Settings of CLI agents in a definition, and the model that is passed to a CLI agent."""

from typing import Any

import pytest

from retinue.domain.agent import Agent
from retinue.domain.cli_agent import CliAgentSettings, InvalidSetting, parse_cli_settings
from retinue.domain.model_selection import select_model
from retinue.domain.providers import CLI_AGENTS
from retinue.errors import BadConfig


def test_cli_agent_settings_are_read_from_the_definition():
    settings = {
        "workdir": "sub", "extraArgs": ["--model", "m"], "hosts": ["a.example"], "api_key_env": "MY_KEY",
        "wrapper": {"path": "/w", "env": {"BOX": "one"}},
    }  # fmt: skip
    assert parse_cli_settings("pi-cli", settings) == CliAgentSettings(
        extra_args=("--model", "m"), workdir="sub", wrapper="/w", env={"BOX": "one"}
    )
    assert (
        parse_cli_settings("openai", {"anything": 1})
        == parse_cli_settings("claude-cli", {})
        == CliAgentSettings()
    )


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({"extra_args": []}, "extra_args", "is not a setting of claude-cli. Use one of workdir, extraArgs"),
        ({"extraArgs": "--x"}, "extraArgs", "must be a list of strings"),
        ({"extraArgs": [7]}, "extraArgs", "must be a string"),
        ({"extraArgs": ["a\0b"]}, "extraArgs", "must be a string"),
        ({"hosts": "a.example"}, "hosts", "must be a list"),
        ({"workdir": 7}, "workdir", "must be a string"),
        ({"wrapper": "/w"}, "wrapper", "must be a map"),
        ({"wrapper": {"env": {}}}, "wrapper.path", "is missing"),
        ({"wrapper": {"path": "/w", "args": []}}, "wrapper.args", "is unknown"),
        ({"wrapper": {"path": "/w", "env": {"MY_KEY": "x"}}}, "wrapper.env.MY_KEY", "Use api_key_env"),
        ({"extraArgs": ["-c", "--resume=1", "-p", "x"]}, "extraArgs", "reserved claude-cli flags: --resume, -c, -p"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_refused_with_its_key(settings: dict[str, Any], key: str, problem: str):
    with pytest.raises(InvalidSetting, match=problem) as caught:
        parse_cli_settings("claude-cli", settings)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("driver", "extra", "named"),
    [
        ("claude-cli", ["--json-schema", "{}"], "--json-schema"),
        ("claude-cli", ["--dangerously-skip-permissions"], "--dangerously-skip-permissions"),
        ("claude-cli", ["--allow-dangerously-skip-permissions"], "--allow-dangerously-skip-permissions"),
        ("claude-cli", ["--verbose", "--bg", "-h", "--"], "--, --bg, --verbose, -h"),
        ("codex-cli", ["review"], "review"),
        ("codex-cli", ["--oss", "-"], "-"),
        ("codex-cli", ["-o", "/tmp/last"], "-o"),
        ("codex-cli", ["-o/tmp/last"], "-o"),
        ("codex-cli", ["--output-last-message=/tmp/last"], "--output-last-message"),
        ("codex-cli", ["--dangerously-bypass-approvals-and-sandbox"], "--dangerously-bypass-approvals-and-sandbox"),
        ("codex-cli", ["-i", "a.png"], "-i"),
        ("pi-cli", ["--export", "a.html"], "--export"),
        ("pi-cli", ["@notes.md"], "@notes.md"),
        ("pi-cli", ["--list-models"], "--list-models"),
    ],
)  # fmt: skip
def test_extra_arguments_that_change_the_mode_or_output_of_a_program_are_refused_by_name(
    driver: str, extra: list[str], named: str
):
    with pytest.raises(InvalidSetting) as caught:
        parse_cli_settings(driver, {"extraArgs": extra})
    assert str(caught.value) == f"must not include reserved {driver} flags: {named}"


def test_an_extra_argument_that_belongs_to_no_option_is_refused():
    for extra in (["hello"], ["--tools", "read", "hello"], ["--tools=read", "-nt", "a", "hello"]):
        with pytest.raises(
            InvalidSetting, match=r"only options and their values: 'hello' belongs to no option"
        ):
            parse_cli_settings("pi-cli", {"extraArgs": extra})


def test_ordinary_extra_arguments_of_each_program_are_accepted():
    accepted = {
        "claude-cli": ["--allowedTools", "Read", "Bash(git *)", "--model", "opus", "--permission-mode", "acceptEdits"],
        "codex-cli": ["--oss", "-c", "model_reasoning_effort=high", "--sandbox", "workspace-write"],
        "pi-cli": ["--tools", "read,grep", "--thinking", "high", "-nt", "--provider=openai"],
    }  # fmt: skip
    for driver, extra in accepted.items():
        assert parse_cli_settings(driver, {"extraArgs": extra}).extra_args == tuple(extra)


@pytest.mark.parametrize("driver", CLI_AGENTS)
@pytest.mark.parametrize(
    ("model", "name"),
    [(None, "default"), ("sonnet", "sonnet"), ("anthropic:claude-x", "claude-x"), ("a/b:free", "a/b:free")],
)
def test_a_cli_agent_needs_no_model_and_is_passed_one_without_a_provider_prefix(
    driver: str, model: str | None, name: str
):
    selected = select_model(Agent(name="a", driver=driver, model=model), None, None)
    assert (selected.provider, selected.name) == (driver, name)
    overridden = select_model(Agent(name="a", driver=driver, model=model), "openai:gpt", None)
    assert (overridden.provider, overridden.name) == ("openai", "gpt")
    assert select_model(Agent(name="a"), f"{driver}:x", None).provider == driver
    with pytest.raises(BadConfig, match="has exit tools"):
        select_model(Agent(name="a", driver=driver, exits=("done",)), None, None)
