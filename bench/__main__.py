"""The command line of the benchmark: `python -m bench` in a checkout."""

import asyncio
import sys
from pathlib import Path

import click

from bench.command import ROWS, BenchOptions, ProgressLine, run_and_report
from bench.terminal_report import format_report
from retinue.cli.ui.terminal import Terminal
from retinue.errors import Cancelled, RetinueError

ALL = "all"
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)


def parse_names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names; `all` becomes the empty tuple, which means every name."""
    if value is None:
        return None
    return () if value == ALL else tuple(name.strip() for name in value.split(",") if name.strip())


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--quick", is_flag=True, help="Run a short version: about a minute.")
@click.option("--only", metavar="ROWS", callback=parse_names, help=f"Some of: {', '.join(ROWS)}.")
@click.option("--peers", metavar="[NAMES]", is_flag=False, flag_value=ALL, callback=parse_names,
              help="Also measure other systems, each installed in its own environment.")  # fmt: skip
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
              help="Keep environments and samples in DIR, and reuse those that exist.")  # fmt: skip
@click.option("--svg", type=OUTPUT_FILE, metavar="FILE", help="Draw the results as an SVG.")
@click.option("--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Update the results in this documentation page.")  # fmt: skip
@click.option("--profile", type=OUTPUT_FILE, metavar="FILE",
              help="Write a CPU profile of Retinue to a file. The measurements are then invalid.")  # fmt: skip
@click.option("--json", is_flag=True, help="Print the result as one JSON value on standard output.")
def main(  # noqa: PLR0913  (one for each option)
    *,
    quick: bool,
    only: tuple[str, ...] | None,
    peers: tuple[str, ...] | None,
    keep: Path | None,
    svg: Path | None,
    write: Path | None,
    profile: Path | None,
    json: bool,
) -> None:
    """Measure the overhead of Retinue over bare model calls and the required disk syncs.

    Uses temporary homes and a local model server. It needs no API key and does not change your data. The
    systems are measured in turn, and every figure is a median. --peers runs the same work on other systems as
    their documentation recommends, with their telemetry switched off. Takes a few minutes, or about twenty with
    --peers.
    """
    options = BenchOptions(rows=only or (), peers=peers, quick=quick, keep_dir=keep, profile_file=profile)
    terminal = Terminal.from_std_streams(json=json)
    try:
        report = asyncio.run(run_and_report(options, ProgressLine(), page_file=write, svg_file=svg))
    except RetinueError as error:
        terminal.print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        terminal.print_error_message(Cancelled.code, "cancelled")
        sys.exit(Cancelled.exit_code)
    if json:
        terminal.print_json(report.as_json())
        return
    for line in format_report(report):
        terminal.print_line(line)


if __name__ == "__main__":
    main(prog_name="python -m bench")
