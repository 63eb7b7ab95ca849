"""This machine: what is well, and a demonstration."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Column, Terminal

COLUMNS: Sequence[Column] = (
    ("", lambda row: row["level"]),
    ("WHAT", lambda row: row["what"]),
    ("DO", lambda row: row["do"]),
)


@click.command(cls=Command)
@click.option(
    "--repair", is_flag=True, help="Mend what can be mended without losing anything, and say what was."
)
@on_app()
async def doctor(app: App, terminal: Terminal, *, repair: bool) -> int:
    """Say what is well and what is not, and what to do about it."""
    findings = await app.doctor(repair=repair)
    rows = [{"level": one.level, "what": one.what, "do": one.do} for one in findings]
    terminal.rows(rows, COLUMNS, empty="nothing to report")
    return 1 if any(one.level == "bad" for one in findings) else 0
