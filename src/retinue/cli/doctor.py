"""The doctor command: check the installation and suggest repairs."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import with_app
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Column, Terminal

FINDING_COLUMNS: Sequence[Column] = (
    ("", lambda row: row["level"]),
    ("FINDING", lambda row: row["message"]),
    ("ADVICE", lambda row: row["advice"]),
)


@click.command(cls=Command)
@click.option("--repair", is_flag=True, help="Repair all problems that can be repaired without losing data.")
@with_app()
async def doctor(app: App, terminal: Terminal, *, repair: bool) -> int:
    """Check the installation, configuration and data, and print how to fix each problem."""
    findings = await app.repair.diagnose(repair=repair)
    rows = [
        {"level": finding.status, "message": finding.message, "advice": finding.advice}
        for finding in findings
    ]
    terminal.print_table(rows, FINDING_COLUMNS, empty_note="Nothing to report.")
    return 1 if any(finding.status == "bad" for finding in findings) else 0
