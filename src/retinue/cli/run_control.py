"""Less than cancelling: hear what a run has come to, or send it into the background."""

import click

from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Command
from retinue.cli.run_waiter import taken_up
from retinue.cli.ui.terminal import Terminal
from retinue.domain.run import as_json


@click.command("interrupt", cls=Command)
@click.argument("run")
@on_app(quiet=True)
async def interrupt_run(app: App, terminal: Terminal, run: str) -> None:
    """Let a run end with a summary of what it has come to, whichever process works it.

    What it is saying is cut off, a tool that runs is let finish, and those it asked for sum up first. A run that never
    began is cancelled.
    """
    stopped = await app.interrupt(run)
    if stopped.status.live:
        stopped = await app.wait(stopped.id)
    terminal.facts(as_json(stopped))


@click.command("detach", cls=Command)
@click.argument("run")
@on_app(quiet=True)
async def detach_run(app: App, terminal: Terminal, run: str) -> None:
    """Let a run that a call waits for go on in the background.

    Whoever asked for it goes on at once, and hears of the result when it is there.
    """
    found = await app.find_run(run)
    await taken_up(app, [found])
    detached = await app.detach(found.id)
    if (asker := detached.ask.parent_run) is not None and (await app.find_run(asker)).owner == app.owner:
        await app.wait(asker)  # nobody else works it: it goes on here
        detached = await app.find_run(detached.id)
    terminal.facts(as_json(detached))
