"""Prices of tokens, and the cost of runs."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from retinue.domain.run import NO_USAGE, Run, Usage

T = TypeVar("T")
TOKENS_PER_PRICE = 1_000_000
MIN_LONG_PROMPT_TOKENS = 32_000
"""No vendor asks other rates for a shorter prompt, so that the price need not be looked up."""
COST_DECIMALS = 6
"""A millionth of a dollar is less than the price of one token."""
MODEL_DATE_SUFFIX = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")
"""Date suffix of a model's name: `gpt-5-mini-2025-08-07`, `claude-sonnet-4-5-20250929`."""


class TokenRates(Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """For input from the provider's cache; the input price if not set."""
    cache_write: float | None = None
    """For input that the provider stored in its cache; the input price if not set."""

    def dollars_for(self, usage: Usage) -> float:
        cached = min(usage.cached, usage.input)
        written = min(usage.cache_write, usage.input - cached)
        cached_rate = self.input if self.cache_read is None else self.cache_read
        written_rate = self.input if self.cache_write is None else self.cache_write
        rest = usage.input - cached - written
        input_total = rest * self.input + cached * cached_rate + written * written_rate
        return (input_total + usage.output * self.output) / TOKENS_PER_PRICE


class Price(TokenRates, frozen=True, kw_only=True):
    """The price of a model; requests with a long prompt may have other rates."""

    long_prompt_tokens: int | None = None
    """Input tokens of a request above which `long_prompt` applies to all its tokens."""
    long_prompt: TokenRates | None = None

    def is_long_prompt(self, input_tokens: int) -> bool:
        return self.long_prompt_tokens is not None and input_tokens > self.long_prompt_tokens

    def cost_of(self, usage: Usage, long_prompt_usage: Usage = NO_USAGE) -> float:
        """Return the cost of a run.

        Args:
            usage: All tokens of the run.
            long_prompt_usage: The part of them in requests with a long prompt.
        """
        total = self.dollars_for(usage - long_prompt_usage)
        total += (self.long_prompt or self).dollars_for(long_prompt_usage)
        return round(total, COST_DECIMALS)


Prices = Mapping[str, Price]
"""Prices by `provider:model`, or by the model's name alone."""

FindPrice = Callable[[str], Price | None]
"""Returns the price of a model, given as `provider:model`."""


class CostSummary(Struct, frozen=True, kw_only=True):
    """Token usage and cost of several runs."""

    run_count: int
    usage: Usage
    cost: float | None
    """Cost of the runs whose model has a price; None if none has."""
    unpriced_run_count: int
    """Number of runs that used a model without a price."""

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.run_count,
            "usage": {"input": self.usage.input, "output": self.usage.output},
            "cached_tokens": self.usage.cached,
            "cache_write_tokens": self.usage.cache_write,
            "cost": self.cost,
            "unpriced": self.unpriced_run_count,
        }


def find_for_model(model: str, values: Mapping[str, T]) -> T | None:
    """Find a model's value: by its full name, without its provider, then both without the date suffix."""
    for full in (model, MODEL_DATE_SUFFIX.sub("", model)):
        for name in (full, full.partition(":")[2]):
            if name and name in values:
                return values[name]
    return None


def run_cost(run: Run, find_price_of: FindPrice) -> float | None:
    """Return the cost of a run in dollars; None if its model has no price or was not asked yet."""
    price = find_price_of(run.model) if run.model else None
    return None if price is None else price.cost_of(run.usage, run.long_prompt_usage)


def summarize_costs(runs: Iterable[Run], find_price_of: FindPrice) -> CostSummary:
    usage, costs, unpriced, count = Usage(), list[float](), 0, 0
    for run in runs:
        count += 1
        usage = usage + run.usage
        if (each := run_cost(run, find_price_of)) is not None:
            costs.append(each)
        elif run.usage.input or run.usage.output:
            unpriced += 1
    return CostSummary(
        run_count=count,
        usage=usage,
        cost=round(sum(costs), COST_DECIMALS) if costs else None,
        unpriced_run_count=unpriced,
    )


def format_dollars(amount: float) -> str:
    """Format an amount in cents, with more digits below one dollar."""
    if amount == 0 or amount >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if amount >= 0.001 else f"${amount:.6f}"  # noqa: PLR2004  (a tenth of a cent)
