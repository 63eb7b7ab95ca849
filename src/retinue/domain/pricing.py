"""Prices: what tokens cost, where the operator says it. None comes with Retinue: it would be wrong tomorrow."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.domain.run import Run, Usage
from retinue.domain.value import value

MILLION = 1_000_000
DIGITS = 6
"""Of a sum, behind the point: a millionth of a dollar is less than one token of anything."""
DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")
"""How a maker names one day's edition of a model: `gpt-5-mini-2025-08-07`, `claude-sonnet-4-5-20250929`."""


@value
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """For what came from the provider's cache; as any other input where nothing is said."""

    def of(self, usage: Usage) -> float:
        kept = min(usage.cached, usage.input)
        for_kept = self.input if self.cache_read is None else self.cache_read
        sums = (usage.input - kept) * self.input + kept * for_kept + usage.output * self.output
        return round(sums / MILLION, DIGITS)


Prices = Mapping[str, Price]
"""By `driver:model`, or by the model's name alone."""


@value
class Bill:
    """What several runs came to."""

    runs: int
    usage: Usage
    cost: float | None
    """Of those whose model has a price; None: none has."""
    unpriced: int
    """How many spoke with a model that has none."""

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "usage": {"input": self.usage.input, "output": self.usage.output},
            "cached_tokens": self.usage.cached,
            "cost": self.cost,
            "unpriced": self.unpriced,
        }


def price_of(model: str, prices: Prices) -> Price | None:
    """By its whole name, then without its driver, then both without the day of its edition."""
    for full in (model, DATED.sub("", model)):
        for name in (full, full.partition(":")[2]):
            if name and name in prices:
                return prices[name]
    return None


def cost(run: Run, prices: Prices) -> float | None:
    price = price_of(run.model, prices)
    return None if price is None else price.of(run.usage)


def bill(runs: Iterable[Run], prices: Prices) -> Bill:
    usage, known, unpriced, count = Usage(), list[float](), 0, 0
    for run in runs:
        count += 1
        usage = usage + run.usage
        if (each := cost(run, prices)) is not None:
            known.append(each)
        elif run.usage.input or run.usage.output:
            unpriced += 1
    return Bill(runs=count, usage=usage, cost=round(sum(known), DIGITS) if known else None, unpriced=unpriced)


def dollars(sum_of: float) -> str:
    """As a person reads it: cents, and finer where there is less than one."""
    if sum_of == 0 or sum_of >= 1:
        return f"${sum_of:,.2f}"
    return f"${sum_of:.4f}" if sum_of >= 0.001 else f"${sum_of:.6f}"  # noqa: PLR2004  (a tenth of a cent)
