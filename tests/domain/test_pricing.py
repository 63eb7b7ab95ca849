"""The cost of runs: computed from their tokens and their model's price."""

import pytest

from retinue.domain.pricing import (
    Price,
    TokenRates,
    find_for_model,
    format_dollars,
    run_cost,
    summarize_costs,
)
from retinue.domain.run import Usage
from retinue.testing.ledgers import make_run

MINI = Price(input=0.25, output=2.0, cache_read=0.025)
PRICES = {"openai:gpt-5-mini": MINI, "claude-sonnet-4-5": Price(input=3.0, output=15.0)}


def price_of(model: str) -> Price | None:
    return find_for_model(model, PRICES)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("openai:gpt-5-mini", MINI),
        ("openai:gpt-5-mini-2025-08-07", MINI),
        ("anthropic:claude-sonnet-4-5", PRICES["claude-sonnet-4-5"]),
        ("anthropic:claude-sonnet-4-5-20250929", PRICES["claude-sonnet-4-5"]),
        ("claude-sonnet-4-5", PRICES["claude-sonnet-4-5"]),
        ("other:gpt-5-mini", None),
        ("openai:gpt-5-mini-high", None),
        ("openai:gpt-5", None),
        ("", None),
    ],
)
def test_a_price_applies_to_every_dated_version_of_its_model(model: str, price: Price | None):
    assert find_for_model(model, PRICES) == price


def test_cached_tokens_cost_less_if_the_price_has_a_cache_rate():
    usage = Usage(input=1_000_000, output=100_000, cached=400_000)
    assert MINI.cost_of(usage) == pytest.approx(0.6 * 0.25 + 0.4 * 0.025 + 0.1 * 2.0)
    assert Price(input=1.0, output=0.0).cost_of(usage) == 1.0
    assert Price(input=1.0, output=0.0, cache_read=0.0).cost_of(Usage(input=10, cached=99)) == 0.0


def test_tokens_written_to_the_cache_cost_more_if_the_price_says_so():
    usage = Usage(input=1_000_000, cached=400_000, cache_write=500_000)
    price = Price(input=2.0, output=0.0, cache_read=0.2, cache_write=2.5)
    assert price.cost_of(usage) == pytest.approx(0.1 * 2.0 + 0.4 * 0.2 + 0.5 * 2.5)
    assert Price(input=2.0, output=0.0).cost_of(usage) == 2.0
    assert price.cost_of(Usage(input=10, cached=8, cache_write=99)) == pytest.approx(
        (8 * 0.2 + 2 * 2.5) / 1e6, abs=1e-6
    )


def test_requests_with_a_long_prompt_have_their_own_rates():
    price = Price(
        input=1.0,
        output=2.0,
        long_prompt_tokens=200_000,
        long_prompt=TokenRates(input=2.0, output=3.0, cache_read=0.5),
    )
    assert not price.is_long_prompt(200_000)
    assert price.is_long_prompt(200_001)
    assert not Price(input=1.0, output=2.0).is_long_prompt(10**9)
    all_requests = Usage(input=1_000_000, output=100_000, cached=100_000)
    long_requests = Usage(input=400_000, output=50_000, cached=100_000)
    assert price.cost_of(all_requests, long_requests) == pytest.approx(
        0.6 * 1.0 + 0.05 * 2.0 + 0.3 * 2.0 + 0.1 * 0.5 + 0.05 * 3.0
    )


def test_a_cost_summary_counts_the_runs_without_a_price():
    usage = Usage(input=1_000_000, output=0, cached=0)
    priced, unpriced = (
        make_run("a", model="openai:gpt-5-mini", usage=usage),
        make_run("b", model="openai:llama3", usage=usage),
    )
    unused = make_run("c")
    assert (run_cost(priced, price_of), run_cost(unpriced, price_of)) == (pytest.approx(0.25), None)
    summary = summarize_costs([priced, unpriced, unused, priced], price_of)
    assert summary.as_json() == {
        "runs": 4,
        "usage": {"input": 3_000_000, "output": 0},
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "cost": pytest.approx(0.5),
        "unpriced": 1,
    }
    assert summarize_costs([unpriced], price_of).cost is None
    assert summarize_costs([unpriced], lambda _: None).unpriced_run_count == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (0.0000012, "$0.000001"), (0.0123, "$0.0123"), (0.5, "$0.5000"), (1234.567, "$1,234.57")],
)
def test_dollar_amounts_are_formatted_for_people(amount: float, text: str):
    assert format_dollars(amount) == text
