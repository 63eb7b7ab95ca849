"""The report as a section of the documentation: figures, targets, versions, machine and date."""

from pathlib import Path

from bench.report import Report
from bench.terminal_report import format_cell
from retinue.errors import UsageError

NOTE = (
    "Values are medians. In brackets: the ratio to the bare calls (aiohttp, and one synced line per entry), and half the "
    "range of the samples. CPU time is that of the measured process and its children, without the model server."
)
BEGIN_MARK, END_MARK = "<!-- bench: begin -->", "<!-- bench: end -->"


def render_section(report: Report, plot_path: str = "") -> str:
    """Render the Markdown between the two marks."""
    parts = [_environment_paragraph(report)]
    if plot_path:
        parts.append(f"![The cost of the same work in each system, on logarithmic scales]({plot_path})")
    parts += [
        "### Targets",
        _targets_table(report),
        "### Figures",
        NOTE,
        _metrics_table(report, growth=False),
    ]
    if report.metrics(growth=True):
        parts += ["### Growth", _metrics_table(report, growth=True)]
    parts += (
        ["### Failed measurements", _problem_list(report)]
        if report.problems() or report.missing_peers
        else []
    )
    return "\n\n".join(parts) + "\n"


def update_page(file: Path, report: Report, plot_path: str = "") -> None:
    """Replace the text between the marks and nothing else.

    Raises UsageError if the page has no marks.
    """
    text = file.read_text(encoding="utf-8")
    before, begin, remainder = text.partition(BEGIN_MARK)
    _, end, after = remainder.partition(END_MARK)
    if not begin or not end:
        raise UsageError(
            f"{file} has no marks for the results. Add the lines {BEGIN_MARK} and {END_MARK} where they belong."
        )
    file.write_text(
        f"{before}{BEGIN_MARK}\n\n{render_section(report, plot_path)}\n{END_MARK}{after}", encoding="utf-8"
    )


def _environment_paragraph(report: Report) -> str:
    machine = report.machine
    sentence = [
        f"Measured on {machine['day']} by `make bench`" if "day" in machine else "Measured by `make bench`"
    ]
    sentence.append(
        f"on {machine['cores']} cores ({machine['cpu']}), {machine['system']}, Python {machine['python']}"
    )
    rate = report.server_requests_per_s()
    server_note = "" if rate is None else f" The model server alone answers {rate:,.0f} requests per second."
    load = f" Load average over 1, 5 and 15 minutes: {machine['load']} before, {machine['load_after']} after."
    versions = "; ".join(
        f"{name} ({', '.join(f'{package} {version}' for package, version in packages.items())})"
        for name, packages in report.versions.items()
    )
    return f"{' '.join(sentence)}.{load}{server_note} Versions: {versions}."


def _targets_table(report: Report) -> str:
    rows = ["| | target | floor | measured | result |", "|---|---|---|---|---|"]
    rows += [
        f"| {each.title.removeprefix('… ')} | {each.target} | {each.minimum or '-'} | {each.value} | {'met' if each.is_met else '**missed**'} |"
        for each in report.target_results()
    ]
    return "\n".join(rows)


def _metrics_table(report: Report, *, growth: bool) -> str:
    systems = ["retinue"] if growth else report.system_names
    rows = [f"| | {' | '.join(['unit', *systems])} |", "|---" * (len(systems) + 2) + "|"]
    for metric in report.metrics(growth=growth):
        cells = [format_cell(report, metric, each) for each in systems]
        rows.append(f"| {metric.title} | {' | '.join([metric.unit, *cells])} |")
    return "\n".join(rows)


def _problem_list(report: Report) -> str:
    lines = [f"- {system}, {workload}: {reason}" for system, workload, reason in report.problems()]
    return "\n".join([*lines, *(f"- {system}: {reason}" for system, reason in report.missing_peers.items())])
