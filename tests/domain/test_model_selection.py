"""Model selection: the run's override, then the definition's model, then the default; anything else is an error."""

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
