"""Prices of tokens as configured by the operator, and the cost of runs.

Retinue ships no prices, because they would soon be wrong.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from retinue.domain.run import Run, Usage

TOKENS_PER_PRICE = 1_000_000
COST_DECIMALS = 6
"""A millionth of a dollar is less than the price of one token."""
MODEL_DATE_SUFFIX = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")
"""Date suffix of a model's name: `gpt-5-mini-2025-08-07`, `claude-sonnet-4-5-20250929`."""


class Price(Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """For input from the provider's cache; the input price if not set."""

    def cost_of(self, usage: Usage) -> float:
        cached = min(usage.cached, usage.input)
        cached_price = self.input if self.cache_read is None else self.cache_read
        total = (usage.input - cached) * self.input + cached * cached_price + usage.output * self.output
        return round(total / TOKENS_PER_PRICE, COST_DECIMALS)


Prices = Mapping[str, Price]
"""Prices by `provider:model`, or by the model's name alone."""


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
            "cost": self.cost,
            "unpriced": self.unpriced_run_count,
        }


def find_price(model: str, prices: Prices) -> Price | None:
    """Find a model's price: by its full name, without its provider, then both without the date suffix."""
    for full in (model, MODEL_DATE_SUFFIX.sub("", model)):
        for name in (full, full.partition(":")[2]):
            if name and name in prices:
                return prices[name]
    return None


def run_cost(run: Run, prices: Prices) -> float | None:
    price = find_price(run.model, prices)
    return None if price is None else price.cost_of(run.usage)


def summarize_costs(runs: Iterable[Run], prices: Prices) -> CostSummary:
    usage, costs, unpriced, count = Usage(), list[float](), 0, 0
    for run in runs:
        count += 1
        usage = usage + run.usage
        if (each := run_cost(run, prices)) is not None:
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
