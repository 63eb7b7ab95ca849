"""The report as text for a terminal."""

from collections.abc import Sequence

from retinue.trials.bench.lines import Line
from retinue.trials.bench.report import BARE, Report, number


def table(report: Report) -> list[str]:
    """Every line for every system, over the bare calls where there are such; then the targets; then who could not."""
    out = [*_ground(report), ""]
    for growth, title in ((False, "WHAT"), (True, "GROWTH")):
        lines = report.lines(growth=growth)
        if lines:
            rows = [
                [line.what, line.unit, *(cell(report, line, each) for each in report.systems)]
                for line in lines
            ]
            out += [*_aligned([[title, "UNIT", *map(str.upper, report.systems)], *rows]), ""]
    out += ["Medians; in brackets how many times the bare calls, and how far the samples lie apart.", ""]
    out += _targets(report)
    for system, work, why in report.problems():
        out.append(f"{system}: {work}: {why}")
    out += [f"{system}: {why}" for system, why in report.missing.items()]
    return out


def _ground(report: Report) -> list[str]:
    """On what it was measured, and what with."""
    facts = report.machine
    lines = [
        f"{facts['cores']} cores ({facts['cpu']}), {facts['system']}, Python {facts['python']}, {facts['day']}"
    ]
    lines.append(f"load {facts['load']} before, {facts['load_after']} after")
    if (rate := report.ceiling()) is not None:
        lines.append(f"the model server alone answers {rate:,.0f} requests a second")
    versions = [
        f"{package} {version}" for found in report.versions.values() for package, version in found.items()
    ]
    return [*lines, ", ".join(dict.fromkeys(versions))]


def cell(report: Report, line: Line, system: str) -> str:
    figure = line.figure(report.samples, system)
    if figure is None:
        return "-" if not report.samples.problem(line.row, line.variant, system) else "no"
    ratio = report.over_bare(line, system)
    more = [] if ratio is None or system == BARE else [f"{number(ratio)}x"]
    if figure.count > 1 and figure.value:
        more.append(f"±{(figure.high - figure.low) / 2 / figure.value * 100:.0f}%")
    return number(figure.value) + (f" ({', '.join(more)})" if more else "")


def _targets(report: Report) -> list[str]:
    verdicts = report.verdicts()
    if not verdicts:
        return []
    rows = [
        [each.what, each.wanted, each.floor or "-", each.value, "held" if each.held else "MISSED"]
        for each in verdicts
    ]
    return [*_aligned([["TARGET", "WANTED", "FLOOR", "HERE", ""], *rows]), ""]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
