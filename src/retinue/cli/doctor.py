"""The doctor command: check the installation and suggest repairs."""

from collections.abc import Mapping, Sequence

import click

from retinue.app import App
from retinue.app.doctor import Finding
from retinue.cli.command import with_app
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal

COLOURS: Mapping[str, str] = {"warn": "33", "bad": "31", "repaired": "32"}
LEVEL_WIDTH = 8


@click.command(cls=Command)
@click.option("--repair", is_flag=True, help="Repair all problems that can be repaired without losing data.")
@with_app()
async def doctor(app: App, terminal: Terminal, *, repair: bool) -> int:
    """Check the installation, configuration and data, and print how to fix each problem."""
    findings = await app.repair.diagnose(repair=repair)
    if terminal.json:
        terminal.print_json(
            [
                {"level": finding.status, "message": finding.message, "advice": finding.advice}
                for finding in findings
            ]
        )
    _print_findings(terminal, findings)
    return 1 if any(finding.status == "bad" for finding in findings) else 0


def _print_findings(terminal: Terminal, findings: Sequence[Finding]) -> None:
    """Print each finding, and its advice below it, in full: a terminal wraps what is too long for a line."""
    for finding in findings:
        terminal.print_coloured(
            f"{finding.status:<{LEVEL_WIDTH}}  {finding.message}", COLOURS.get(finding.status, "0")
        )
        if finding.advice:
            terminal.print_line(f"{'':<{LEVEL_WIDTH}}  {finding.advice}")
