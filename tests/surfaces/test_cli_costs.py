"""The lines about cost in `retinue runs show`: of the run itself, and of its whole tree."""

import pytest

from retinue.cli.runs import cost_lines
from retinue.domain.pricing import CostSummary
from retinue.domain.run import Usage

USAGE = Usage(input=1200, output=80)


@pytest.mark.parametrize(
    ("own", "runs", "total", "unpriced", "expected_lines"),
    [
        (None, 1, None, 1, []),
        (0.25, 1, 0.25, 0, ["Cost: $0.2500"]),
        (None, 3, None, 3, ["Total with sub-agents: 1,200 tokens in, 80 out"]),
        (0.25, 2, 1.5, 0, ["Cost: $0.2500", "Total with sub-agents: 1,200 tokens in, 80 out, $1.50"]),
        (
            None,
            3,
            1.5,
            1,
            ["Total with sub-agents: 1,200 tokens in, 80 out, $1.50, and 1 run without a price"],
        ),
    ],
)
def test_costs_are_shown_only_where_prices_are_known(
    own: float | None, runs: int, total: float | None, unpriced: int, expected_lines: list[str]
):
    summary = CostSummary(run_count=runs, usage=USAGE, cost=total, unpriced_run_count=unpriced)
    assert [line for line in cost_lines(own, summary) if line] == expected_lines
