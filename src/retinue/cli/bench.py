"""The benchmark, as a command: what Retinue costs on this machine, beside the bare calls and beside others."""

from pathlib import Path

import click

from retinue.cli.command import plainly
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.trials.bench.command import ROWS, Progress, Wishes, shown
from retinue.trials.bench.table import table

ALL = "all"
FILE = click.Path(dir_okay=False, path_type=Path)


def listed(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names with commas between them; `all` is every one there is."""
    if value is None:
        return None
    return () if value == ALL else tuple(name.strip() for name in value.split(",") if name.strip())


@click.command(cls=Command)
@click.option("--quick", is_flag=True, help="Less, and less often: about a minute.")
@click.option("--only", metavar="ROWS", callback=listed, help=f"Some of: {', '.join(ROWS)}.")
@click.option("--peers", metavar="[NAMES]", is_flag=False, flag_value=ALL, callback=listed,
              help="The same work by other systems, each installed into an environment of its own.")  # fmt: skip
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
              help="Keep environments and samples there; what is there already is not done again.")  # fmt: skip
@click.option("--svg", type=FILE, metavar="FILE", help="Draw the figures.")
@click.option("--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Put the figures between the marks of this page.")  # fmt: skip
@click.option("--profile", type=FILE, metavar="FILE",
              help="Add where our own CPU goes to a file; the figures are worthless then.")  # fmt: skip
@plainly
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
    """Measure what Retinue costs on this machine, beside the bare calls and what must be synced.

    Everything happens in homes of its own, with a model server of its own on this machine: no key is needed, and nothing
    of yours is touched. The systems take turns, one at a time; each figure is a median. With --peers others do the same
    work as their documentation recommends, without telling anybody. It takes some minutes, with --peers about twenty.
    """
    wishes = Wishes(rows=only or (), peers=peers, quick=quick, keep=keep, profile=profile)
    report = await shown(wishes, Progress(), write=write, svg=svg)
    if terminal.json:
        terminal.value(report.as_json())
        return 0
    for line in table(report):
        terminal.line(line)
    return 0
