"""The report as text for a terminal."""

from collections.abc import Sequence

from bench.metrics import Metric
from bench.report import BASELINE_NAME, Report, format_number


def format_report(report: Report) -> list[str]:
    """Return every metric for every system with its ratio to the baseline, then targets, then failures."""
    output = [*_environment_lines(report), ""]
    for growth, title in ((False, "METRIC"), (True, "GROWTH")):
        lines = report.metrics(growth=growth)
        if lines:
            rows = [
                [
                    metric.title,
                    metric.unit,
                    *(format_cell(report, metric, each) for each in report.system_names),
                ]
                for metric in lines
            ]
            output += [*_align_columns([[title, "UNIT", *map(str.upper, report.system_names)], *rows]), ""]
    output += [
        "Values are medians. In brackets: the ratio to the bare calls, and half the range of the samples.",
        "",
    ]
    output += _target_lines(report)
    for system, workload, reason in report.problems():
        output.append(f"{system}: {workload}: {reason}")
    output += [f"{system}: {reason}" for system, reason in report.missing_peers.items()]
    return output


def _environment_lines(report: Report) -> list[str]:
    """Return the machine, its load and the versions."""
    machine = report.machine
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['system']}, Python {machine['python']}, {machine['day']}"
    ]
    lines.append(f"load average {machine['load']} before, {machine['load_after']} after")
    if (requests_per_s := report.server_requests_per_s()) is not None:
        lines.append(f"the model server alone answers {requests_per_s:,.0f} requests per second")
    versions = [
        f"{package} {version}"
        for packages in report.versions.values()
        for package, version in packages.items()
    ]
    return [*lines, ", ".join(dict.fromkeys(versions))]


def format_cell(report: Report, metric: Metric, system: str) -> str:
    summary = metric.summary(report.samples, system)
    if summary is None:
        return "-" if not report.samples.first_problem(metric.row, metric.variant, system) else "no"
    ratio = report.ratio_to_baseline(metric, system)
    annotations = [] if ratio is None or system == BASELINE_NAME else [f"{format_number(ratio)}x"]
    if summary.count > 1 and summary.value:
        annotations.append(f"±{(summary.high - summary.low) / 2 / summary.value * 100:.0f}%")
    return format_number(summary.value) + (f" ({', '.join(annotations)})" if annotations else "")


def _target_lines(report: Report) -> list[str]:
    results = report.target_results()
    if not results:
        return []
    rows = [
        [each.title, each.target, each.minimum or "-", each.value, "met" if each.is_met else "MISSED"]
        for each in results
    ]
    return [*_align_columns([["METRIC", "TARGET", "FLOOR", "MEASURED", "RESULT"], *rows]), ""]


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
