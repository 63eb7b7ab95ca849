"""Waiting: joins runs that are under way, whoever began them, until they and all they asked for have ended."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import exit_code, on_app
from retinue.cli.follow import all_followed, ending
from retinue.cli.options import Command
from retinue.cli.run_waiter import Left, family, taken_up
from retinue.cli.ui.terminal import Terminal
from retinue.domain.run import Run, as_json
from retinue.errors import Cancelled


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@on_app(quiet=True)
async def wait(app: App, terminal: Terminal, runs: tuple[str, ...]) -> int:
    """Wait until every RUN and all it asked for have ended, and go on with those whose process has died.

    The exit code is that of the worst. Ctrl-C leaves, and stops nothing that another process works.
    """
    named = {run.id: run for run in [await app.find_run(ref) for ref in runs]}

    async def joined() -> Sequence[Run]:
        await taken_up(app, list(named.values()))
        return list(named.values())

    try:
        ended = await all_followed(app, terminal, joined, cancels=False)
    except Left:
        return await _left(app, terminal, list(named))
    if terminal.json:
        terminal.value([as_json(run) for run in ended])
    for run in ended:
        if exit_code(run):
            terminal.note(ending(run, await family(app, [run])), colour="31")
    return max(exit_code(run) for run in ended)


async def _left(app: App, terminal: Terminal, ids: Sequence[str]) -> int:
    """Somebody who leaves is told what goes on, and how to stop it."""
    now = [await app.find_run(each) for each in ids]
    if terminal.json:
        terminal.value([as_json(run) for run in now])
    for run in now:
        if run.status.live:
            terminal.note(f"run {run.id} is {run.status}: retinue runs cancel {run.id} stops it")
    return Cancelled.exit_code
