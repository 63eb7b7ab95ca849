"""Runs: what is going on, what has been, and what to do about it."""

import click

from retinue.app import App
from retinue.domain.run import as_json, as_json_in_full
from retinue.surfaces.cli.command import exit_code, on_app
from retinue.surfaces.cli.follow import ended
from retinue.surfaces.cli.options import Group
from retinue.surfaces.cli.person import Person, interrupts
from retinue.surfaces.cli.shapes import RUN_COLUMNS
from retinue.surfaces.cli.terminal import Terminal


@click.group(cls=Group)
def runs() -> None:
    """Runs: one task given to one session, from the asking to the end.

    RUN is a run's id or an unambiguous prefix of it.
    """


@runs.command("list")
@on_app()
async def list_runs(app: App, terminal: Terminal) -> None:
    """Runs that are going on."""
    live = await app.runs(live=True)
    empty = "nothing is going on: retinue runs history lists what has been"
    terminal.rows([as_json(run) for run in live], RUN_COLUMNS, empty=empty)


@runs.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@on_app()
async def history(app: App, terminal: Terminal, limit: int) -> None:
    """All runs, live ones included, the newest first."""
    found = await app.runs(live=False, limit=limit)
    empty = "there are no runs yet: retinue run TEXT begins one"
    terminal.rows([as_json(run) for run in found], RUN_COLUMNS, empty=empty)


@runs.command("show")
@click.argument("run")
@on_app()
async def show_run(app: App, terminal: Terminal, run: str) -> None:
    """Everything that is known of one run."""
    found = await app.find_run(run)
    terminal.facts(as_json_in_full(found) | {"sandbox": await app.sandbox(found)})


@runs.command("cancel")
@click.argument("run")
@on_app()
async def cancel_run(app: App, terminal: Terminal, run: str) -> None:
    """Stop a run, whichever process works it; what it said so far is kept."""
    stopped = await app.cancel(run)
    if stopped.status.live:
        stopped = await app.wait(stopped.id)
    terminal.facts(as_json(stopped))


@runs.command("resume")
@click.argument("run", required=False)
@on_app(quiet=True)
async def resume(app: App, terminal: Terminal, run: str | None) -> int:
    """Go on with RUN, or with every run whose process has died, until they end."""
    with interrupts() as pressed:
        taken = await app.resume(run)
        for one in taken:
            terminal.note(f"{one.agent} goes on in {one.slug}")
        tops = [one.root for one in taken]  # whoever waited for a run that goes on goes on after it
        everyone = list(dict.fromkeys([*(one.id for one in taken), *tops]))
        done = await ended(app, everyone, pressed, Person(terminal=terminal))
    terminal.rows([as_json(one) for one in done], RUN_COLUMNS, empty="no run was interrupted")
    return max((exit_code(one) for one in done), default=0)
