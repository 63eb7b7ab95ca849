"""The report as a part of the documentation: figures, targets, versions, the machine and the day."""

from pathlib import Path

from retinue.errors import Usage
from retinue.trials.bench.report import Report
from retinue.trials.bench.table import cell

NOTE = (
    "Medians; in brackets how many times the bare calls (aiohttp, and one synced line for each entry), and half the "
    "distance between the lowest and the highest sample. CPU is that of the measured process with its children, never "
    "the server's."
)
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def section(report: Report, plot: str = "") -> str:
    """Markdown, as it stands between the two marks."""
    parts = [_opening(report)]
    if plot:
        parts.append(f"![The same work by each system, on scales of powers of ten]({plot})")
    parts += ["### Targets", _targets(report), "### Figures", NOTE, _figures(report, growth=False)]
    if report.lines(growth=True):
        parts += ["### Growth", _figures(report, growth=True)]
    parts += ["### Who could not", _problems(report)] if report.problems() or report.missing else []
    return "\n\n".join(parts) + "\n"


def written(file: Path, report: Report, plot: str = "") -> None:
    """Replaces what stands between the marks, and nothing else."""
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise Usage(f"{file} has no place for the figures: put the lines {BEGIN} and {END} where they go")
    file.write_text(f"{before}{BEGIN}\n\n{section(report, plot)}\n{END}{after}", encoding="utf-8")


def _opening(report: Report) -> str:
    facts = report.machine
    words = [
        f"Measured on {facts['day']} by `retinue bench`" if "day" in facts else "Measured by `retinue bench`"
    ]
    words.append(f"on {facts['cores']} cores ({facts['cpu']}), {facts['system']}, Python {facts['python']}")
    rate = report.ceiling()
    more = "" if rate is None else f" The model server alone answers {rate:,.0f} requests a second."
    load = (
        f" Load of the machine over 1, 5 and 15 minutes: {facts['load']} before, {facts['load_after']} after."
    )
    versions = "; ".join(
        f"{name} ({', '.join(f'{package} {version}' for package, version in found.items())})"
        for name, found in report.versions.items()
    )
    return f"{' '.join(words)}.{load}{more} Versions: {versions}."


def _targets(report: Report) -> str:
    rows = ["| | wanted | floor | here | |", "|---|---|---|---|---|"]
    rows += [
        f"| {each.what.removeprefix('… ')} | {each.wanted} | {each.floor or '-'} | {each.value} | {'held' if each.held else '**missed**'} |"
        for each in report.verdicts()
    ]
    return "\n".join(rows)


def _figures(report: Report, *, growth: bool) -> str:
    systems = ["retinue"] if growth else report.systems
    rows = [f"| | {' | '.join(['unit', *systems])} |", "|---" * (len(systems) + 2) + "|"]
    for line in report.lines(growth=growth):
        cells = [cell(report, line, each) for each in systems]
        rows.append(f"| {line.what} | {' | '.join([line.unit, *cells])} |")
    return "\n".join(rows)


def _problems(report: Report) -> str:
    lines = [f"- {system}, {work}: {why}" for system, work, why in report.problems()]
    return "\n".join([*lines, *(f"- {system}: {why}" for system, why in report.missing.items())])
