"""Model selection: the run's override, then the definition's model, then the default; anything else is an error."""

from collections.abc import Sequence

import pytest

from retinue.domain.agent import Agent, AgentType
from retinue.domain.model_selection import select_model
from retinue.errors import BadConfig


@pytest.mark.parametrize(
    ("agent", "override", "default", "full_name"),
    [
        ({}, None, "openai:gpt-x", "openai:gpt-x"),
        ({}, "anthropic:claude-x", "openai:gpt-x", "anthropic:claude-x"),
        ({"model": "claude-x"}, None, "openai:gpt-x", "anthropic:claude-x"),
        ({"model": "gpt-y"}, None, "anthropic:claude-x", "openai:gpt-y"),
        ({"model": "mistral"}, None, "openai:gpt-x", "openai:mistral"),
        ({"driver": "openai-compatible", "model": "llama3:8b"}, None, None, "openai:llama3:8b"),
        ({"driver": "openai", "model": "anthropic:claude-x"}, None, None, "anthropic:claude-x"),
        ({}, "openai:llama3:8b", None, "openai:llama3:8b"),
        ({"model": "openai:a"}, "gpt-z", None, "openai:gpt-z"),
    ],
)
def test_the_most_specific_model_setting_wins(
    agent: dict[str, str], override: str | None, default: str | None, full_name: str
):
    assert select_model(Agent(name="a", **agent), override, default).full_name == full_name  # pyright: ignore[reportArgumentType]  (texts of the table above)


@pytest.mark.parametrize(
    ("override", "default", "message"),
    [
        (None, None, "No model configured"),
        ("antropic:claude-x", "openai:gpt-x", "unknown provider in the model"),
        ("openai:", "openai:gpt-x", "has no name after its provider"),
        ("mistral", None, "the provider of the model .mistral. is unknown"),
    ],
)
def test_an_incomplete_or_unknown_model_name_is_refused(
    override: str | None, default: str | None, message: str
):
    with pytest.raises(BadConfig, match=message):
        select_model(Agent(name="a"), override, default)


def test_an_external_agent_has_no_model_to_select():
    with pytest.raises(BadConfig, match="is external"):
        select_model(Agent(name="far", type=AgentType.EXTERNAL), None, "openai:gpt-x")


def fallback_names(agent: Agent, override: str | None = None, defaults: Sequence[str] = ()) -> list[str]:
    model = select_model(agent, override, "openai:gpt-x", ["house"], defaults)
    return [each.full_name for each in model.fallbacks]


def test_a_definitions_fallbacks_replace_the_configured_ones():
    defaults = ["anthropic:claude-x"]
    assert fallback_names(Agent(name="a"), None, defaults) == ["anthropic:claude-x"]
    assert fallback_names(Agent(name="a", fallback_models=("house:b",)), None, defaults) == ["house:b"]
    assert fallback_names(Agent(name="a", fallback_models=()), None, defaults) == []


def test_each_fallback_is_asked_once_and_never_the_first_model_again():
    agent = Agent(name="a", fallback_models=("gpt-x", "claude-x", "openai:gpt-y", "gpt-y", "llama"))
    assert fallback_names(agent) == ["anthropic:claude-x", "openai:gpt-y", "openai:llama"]
    assert fallback_names(agent, "openai:gpt-y") == ["openai:gpt-x", "anthropic:claude-x", "openai:llama"]


def test_only_fallbacks_of_the_same_provider_use_the_definitions_own_server():
    agent = Agent(
        name="a",
        driver="openai",
        model="llama3:8b",
        driver_settings={"base_url": "http://127.0.0.1:1/v1"},
        temperature=0.2,
        fallback_models=("qwen3:8b", "anthropic:claude-x"),
    )
    model = select_model(agent, None, None)
    same, other = model.fallbacks
    assert (same.full_name, same.settings) == ("openai:qwen3:8b", model.settings)
    assert (other.full_name, other.settings, other.temperature) == ("anthropic:claude-x", {}, 0.2)


@pytest.mark.parametrize("name", ["nowhere:b", "claude-cli:x", "openai:"])
def test_a_fallback_that_cannot_be_asked_is_refused(name: str):
    with pytest.raises(BadConfig, match=r"^fallback_models: "):
        select_model(Agent(name="a", fallback_models=(name,)), None, "openai:gpt-x")


def test_a_cli_agent_ignores_the_configured_fallbacks():
    assert fallback_names(Agent(name="a", driver="claude-cli"), None, ["openai:gpt-x"]) == []


def test_a_model_that_took_over_is_asked_first_and_the_earlier_ones_last():
    agent = Agent(name="a", fallback_models=("openai:b", "openai:c"))
    model = select_model(agent, None, "openai:a")
    assert model.begin_with("") is model
    assert model.begin_with("openai:a") is model
    rotated = model.begin_with("openai:b")
    assert [each.full_name for each in rotated.candidates] == ["openai:b", "openai:c", "openai:a"]
    assert [each.thinking for each in rotated.with_thinking("high").candidates] == ["high"] * 3
    assert all(not each.fallbacks for each in rotated.candidates)
