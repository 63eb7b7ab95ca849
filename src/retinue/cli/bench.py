"""The bench command: measure what Retinue costs on this machine."""

from pathlib import Path

import click

from retinue.cli.command import without_app
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.trials.bench.command import ROWS, BenchOptions, ProgressLine, run_and_report
from retinue.trials.bench.table import format_report

ALL = "all"
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)


def parse_names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names; `all` becomes the empty tuple, which means every name."""
    if value is None:
        return None
    return () if value == ALL else tuple(name.strip() for name in value.split(",") if name.strip())


@click.command(cls=Command)
@click.option("--quick", is_flag=True, help="Run a short version: about a minute.")
@click.option("--only", metavar="ROWS", callback=parse_names, help=f"Some of: {', '.join(ROWS)}.")
@click.option("--peers", metavar="[NAMES]", is_flag=False, flag_value=ALL, callback=parse_names,
              help="Also measure other systems, each installed in its own environment.")  # fmt: skip
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
              help="Keep environments and samples in DIR, and reuse those that exist.")  # fmt: skip
@click.option("--svg", type=OUTPUT_FILE, metavar="FILE", help="Draw the results as an SVG.")
@click.option("--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the results between the markers of this page.")  # fmt: skip
@click.option("--profile", type=OUTPUT_FILE, metavar="FILE",
              help="Write a CPU profile of Retinue to a file. The measurements are then invalid.")  # fmt: skip
@without_app
async def bench(  # noqa: PLR0913  (one for each option)
    terminal: Terminal,
    _home: str | None,
    *,
    quick: bool,
    only: tuple[str, ...] | None,
    peers: tuple[str, ...] | None,
    keep: Path | None,
    svg: Path | None,
    write: Path | None,
    profile: Path | None,
) -> int:
    """Measure the overhead of Retinue beside bare calls and unavoidable disk syncs.

    Uses temporary homes and a local model server: no key is needed, and your own data is not touched. The
    systems take turns; every figure is a median. --peers runs the same work on other systems as their
    documentation recommends, with their telemetry switched off. Takes a few minutes, or about twenty with
    --peers.
    """
    options = BenchOptions(rows=only or (), peers=peers, quick=quick, keep_dir=keep, profile_file=profile)
    report = await run_and_report(options, ProgressLine(), page_file=write, svg_file=svg)
    if terminal.json:
        terminal.print_json(report.as_json())
        return 0
    for line in format_report(report):
        terminal.print_line(line)
    return 0
