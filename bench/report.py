"""The benchmark's results: figures of all systems, ratios to the baseline, and targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bench.metrics import GROWTH_METRICS, METRICS, Metric
from bench.samples import Samples, SampleSummary

BASELINE_NAME, MINIMUM_NAME, RETINUE_NAME = "bare", "floor", "retinue"


class TargetResult(Struct, frozen=True, kw_only=True):
    """A target, and whether it was met."""

    title: str
    target: str
    value: str
    is_met: bool
    minimum: str = ""
    """The minimum cost of the same guarantees on this machine."""


class Report(Struct, frozen=True, kw_only=True):
    """All results of a benchmark."""

    samples: Samples
    system_names: Sequence[str]
    peer_names: Sequence[str] = ()
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    missing_peers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other systems that could not be installed, and why."""
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    def metrics(self, *, growth: bool = False) -> list[Metric]:
        """Return the metrics that have samples."""
        return [
            each
            for each in (GROWTH_METRICS if growth else METRICS)
            if any(self.samples.select(each.row, each.variant, system) for system in self.system_names)
        ]

    def ratio_to_baseline(self, metric: Metric, system: str) -> float | None:
        baseline, value = metric.summary(self.samples, BASELINE_NAME), metric.summary(self.samples, system)
        if baseline is None or value is None or system == BASELINE_NAME or not baseline.value:
            return None
        return value.value / baseline.value

    def server_requests_per_s(self) -> float | None:
        summary = self.samples.summarize("server", "ceiling", "server", "rate")
        return None if summary is None else summary.value

    def target_results(self) -> list[TargetResult]:
        results: list[TargetResult] = []
        for metric in self.metrics():
            summary = metric.summary(self.samples, RETINUE_NAME)
            if summary is not None:
                minimum_summary = metric.summary(self.samples, MINIMUM_NAME)
                minimum = (
                    "" if minimum_summary is None else f"{format_number(minimum_summary.value)} {metric.unit}"
                )
                comparisons = [
                    *_compare_with_targets(metric, summary),
                    *_compare_with_peer(
                        metric, summary, metric.best_peer_value(self.samples, self.peer_names)
                    ),
                ]
                results += [replace(each, minimum=minimum) for each in comparisons]
        return results

    def problems(self) -> list[tuple[str, str, str]]:
        """Return (system, workload, reason) of every failed measurement, each only once."""
        problems: dict[tuple[str, str, str], None] = {}
        for sample in self.samples.items:
            if sample.problem:
                problems[(sample.system, f"{sample.row} {sample.variant}", sample.problem)] = None
        return list(problems)

    def as_json(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for metric in (*self.metrics(), *self.metrics(growth=True)):
            rows += [self._row_as_json(metric, system) for system in self.system_names]
        return {
            "machine": dict(self.machine),
            "versions": {name: dict(versions) for name, versions in self.versions.items()},
            "missing": dict(self.missing_peers),
            "server_requests_per_second": self.server_requests_per_s(),
            "rows": [row for row in rows if row["value"] is not None or row["problem"]],
            "targets": [
                {
                    "what": each.title,
                    "wanted": each.target,
                    "value": each.value,
                    "held": each.is_met,
                    "floor": each.minimum or None,
                }
                for each in self.target_results()
            ],
        }

    def _row_as_json(self, metric: Metric, system: str) -> dict[str, Any]:
        summary = metric.summary(self.samples, system)
        ratio = self.ratio_to_baseline(metric, system)
        return {
            "row": metric.row,
            "variant": metric.variant,
            "what": metric.title,
            "system": system,
            "unit": metric.unit,
            "value": None if summary is None else round(summary.value, 4),
            "low": None if summary is None else round(summary.low, 4),
            "high": None if summary is None else round(summary.high, 4),
            "samples": 0 if summary is None else summary.count,
            "over_bare": None if ratio is None else round(ratio, 2),
            "most": metric.max_target,
            "problem": self.samples.first_problem(metric.row, metric.variant, system),
        }


def format_number(value: float) -> str:
    """Format a number with three significant digits."""
    for limit, digits in ((100, 0), (10, 1), (1, 2), (0.1, 3)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.4f}" if value else "0"


def _compare_with_targets(metric: Metric, summary: SampleSummary) -> list[TargetResult]:
    value = f"{format_number(summary.value)} {metric.unit}"
    results: list[TargetResult] = []
    if metric.max_target is not None:
        target = f"at most {metric.max_target:,g} {metric.unit}"
        results.append(
            TargetResult(
                title=metric.title, target=target, value=value, is_met=summary.value <= metric.max_target
            )
        )
    if metric.min_target is not None:
        target = f"at least {metric.min_target:,g} {metric.unit}"
        results.append(
            TargetResult(
                title=metric.title, target=target, value=value, is_met=summary.value >= metric.min_target
            )
        )
    return results


def _compare_with_peer(
    metric: Metric, summary: SampleSummary, best_value: float | None
) -> list[TargetResult]:
    if metric.max_peer_share is None or best_value is None:
        return []
    return [
        TargetResult(
            title=metric.title,
            target=f"at most 1/{round(1 / metric.max_peer_share)} of the best peer ({format_number(best_value)} {metric.unit})",
            value=f"1/{format_number(best_value / summary.value)}"
            if summary.value < best_value
            else f"{format_number(summary.value / best_value)} times",
            is_met=summary.value <= best_value * metric.max_peer_share,
        )
    ]
