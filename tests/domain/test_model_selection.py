"""Which model answers: the run's word, the definition's, the default's, and what is no model at all."""

import pytest

from retinue.domain.agent import Agent, AgentType
from retinue.domain.model_selection import select_model
from retinue.errors import BadConfig


@pytest.mark.parametrize(
    ("agent", "override", "default", "full"),
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
def test_the_most_particular_word_wins(
    agent: dict[str, str], override: str | None, default: str | None, full: str
):
    assert select_model(Agent(name="a", **agent), override, default).full_name == full  # pyright: ignore[reportArgumentType]  (texts of the table above)


@pytest.mark.parametrize(
    ("override", "default", "sentence"),
    [
        (None, None, "no model is configured"),
        ("antropic:claude-x", "openai:gpt-x", "names no driver that is known"),
        ("openai:", "openai:gpt-x", "no name behind its driver"),
        ("mistral", None, "does not say who serves it"),
    ],
)
def test_what_names_no_model_is_refused_before_anything_is_asked(
    override: str | None, default: str | None, sentence: str
):
    with pytest.raises(BadConfig, match=sentence):
        select_model(Agent(name="a"), override, default)


def test_an_external_agent_is_not_run_as_if_it_were_ours():
    with pytest.raises(BadConfig, match="is external"):
        select_model(Agent(name="far", type=AgentType.EXTERNAL), None, "openai:gpt-x")
