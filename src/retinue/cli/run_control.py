"""Commands to interrupt a run or detach it from its parent."""

import click

from retinue.app import App
from retinue.cli.command import run_output, with_app
from retinue.cli.options import Command
from retinue.cli.run_waiter import resume_orphaned_runs
from retinue.cli.ui.terminal import Terminal


@click.command("interrupt", cls=Command)
@click.argument("run")
@with_app(executes_runs=True)
async def interrupt_run(app: App, terminal: Terminal, run: str) -> None:
    """End a run with a summary of its work so far, even if another process executes it.

    The reply in progress is cut off, and its text is saved. A running tool may finish, and the run's children
    summarise first. A run that has not started is cancelled.
    """
    stopped = await app.runs.interrupt(run)
    terminal.print_facts(run_output(app, await app.runs.wait_for_end(stopped)))


@click.command("detach", cls=Command)
@click.argument("run")
@with_app(executes_runs=True)
async def detach_run(app: App, terminal: Terminal, run: str) -> None:
    """Move a run that a tool call waits for into the background.

    Its parent continues immediately and receives the result when it is ready.
    """
    target = await app.runs.find(run)
    await resume_orphaned_runs(app, [target])
    detached = await app.runs.detach(target.id)
    if (parent_id := detached.request.parent_run) is not None and (
        await app.runs.find(parent_id)
    ).owner_id == app.owner_id:
        await app.runs.wait(parent_id)  # no other process runs it: it continues here
        detached = await app.runs.find(detached.id)
    terminal.print_facts(run_output(app, detached))
