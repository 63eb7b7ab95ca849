"""The list of prices, windows and announced ends that comes with Retinue."""

from collections.abc import Mapping
from datetime import date

import pytest
from msgspec import Struct

from retinue.domain.providers import PROVIDERS
from retinue.domain.run import Usage
from retinue.providers.model_catalog import catalog_date, find_end, find_model_facts


class Server(Struct, frozen=True):
    base_url: str


NO_SERVERS: Mapping[str, Server] = {}


def test_every_default_model_has_a_price_and_no_announced_end():
    for spec in PROVIDERS.values():
        if spec.api is not None and spec.default_model:
            for name in (spec.default_model_name, *spec.other_default_model_names):
                model = f"{spec.name}:{name}"
                assert find_model_facts(model, NO_SERVERS) is not None, model
                assert find_end(model, NO_SERVERS) is None, model


@pytest.mark.parametrize(
    "name",
    [
        "anthropic:claude-sonnet-4-5",
        "anthropic:claude-sonnet-4-5-20250929",
        "anthropic:claude-sonnet-4.5",
    ],
)
def test_a_model_is_found_by_its_dated_and_other_names(name: str):
    facts = find_model_facts(name, NO_SERVERS)
    assert facts is not None
    price = facts.price
    usage = Usage(input=1000, output=100, cached=600, cache_write=300)
    assert price.cost_of(usage) == pytest.approx(
        (100 * 3 + 600 * 0.3 + 300 * 3.75 + 100 * 15) / 1e6, abs=1e-6
    )
    assert price.cost_of(usage, usage) == pytest.approx(
        (100 * 6 + 600 * 0.6 + 300 * 7.5 + 100 * 22.5) / 1e6, abs=1e-6
    )
    assert (price.is_long_prompt(200_000), price.is_long_prompt(200_001)) == (False, True)


@pytest.mark.parametrize(
    "name",
    [
        "openai:llama3",
        "ollama:gpt-5.4",
        "gpt-5.4",
        "",
        "openai:",
        "openai:gpt-5.4-but-not-really",
        "scripted:x",
    ],
)
def test_a_model_that_is_not_in_the_list_has_no_facts(name: str):
    assert find_model_facts(name, NO_SERVERS) is None
    assert find_end(name, NO_SERVERS) is None


def test_a_server_that_the_user_named_is_recognized_by_its_host():
    servers = {
        "house": Server("https://api.moonshot.ai/v1"),
        "openai": Server("https://openrouter.ai/api/v1"),
        "mine": Server("http://127.0.0.1:1234/v1"),
    }
    assert find_model_facts("house:kimi-k2.5", servers) == find_model_facts(
        "moonshotai:kimi-k2.5", NO_SERVERS
    )
    assert find_model_facts("house:kimi-k2.5", servers) is not None
    assert find_model_facts("openai:anthropic/claude-opus-4.5", servers) is not None
    assert find_model_facts("mine:kimi-k2.5", servers) is None


def test_announced_ends_are_known_for_dated_names_too():
    assert find_end("openai:gpt-5-mini-2025-08-07", NO_SERVERS) == date(2026, 12, 11)
    assert find_end("azure:gpt-5-mini", NO_SERVERS) == date(2026, 12, 11)
    assert find_end("anthropic:claude-sonnet-4-5", NO_SERVERS) == date(2026, 11, 30)
    assert catalog_date() >= date(2026, 11, 20)
