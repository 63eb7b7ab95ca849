"""This machine: what is well, and a demonstration."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.domain.run import Status, as_json
from retinue.surfaces.cli.command import exit_code, on_app, plainly
from retinue.surfaces.cli.follow import ending
from retinue.surfaces.cli.options import Command
from retinue.surfaces.cli.shapes import took
from retinue.surfaces.cli.terminal import Column, Terminal
from retinue.trials.demo import Shown, shown

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


@click.command(cls=Command)
@plainly
async def demo(terminal: Terminal, home: str | None) -> int:
    """Play a conversation with a scripted model: an agent reads this project's own files and answers.

    Needs no key, no configuration and no network. Everything is kept in $RETINUE_HOME, else in .demo/ here.
    """
    show = await shown(home)
    if terminal.json:
        terminal.value(as_json(show.run))
        return exit_code(show.run)
    terminal.note("The model is scripted: its words are prepared, everything else is real.", colour="33")
    terminal.line(f"> {show.run.ask.task}\n")
    terminal.line(show.run.text)
    terminal.line()
    for line in tree(show):
        terminal.line(line)
    terminal.line(f"\nThe conversation is a file: {show.run.path}")
    if show.run.status is not Status.DONE:
        terminal.note(ending(show.run), colour="31")
    return exit_code(show.run)


def tree(show: Shown) -> list[str]:
    """What ran: the session, its run, and each call with its outcome."""
    run = show.run
    lines = [
        f"session {run.slug}",
        f"└── run {run.id}  {run.status}  {took(run.duration_ms)}  {run.turns} turns",
    ]
    for number, step in enumerate(show.steps, 1):
        corner = "└──" if number == len(show.steps) else "├──"
        lines.append(f"    {corner} {step.tool} {step.about}  {step.outcome}  {took(step.ms)}")
    return lines
