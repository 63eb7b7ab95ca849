"""The wait command: wait for runs of any process until they and their descendants have ended."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import exit_code, run_output, with_app
from retinue.cli.follow import follow_runs, status_sentence
from retinue.cli.options import Command
from retinue.cli.run_waiter import UserDetached, load_run_trees, resume_orphaned_runs
from retinue.cli.ui.terminal import Terminal
from retinue.domain.run import Run
from retinue.errors import Cancelled


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@with_app(executes_runs=True)
async def wait(app: App, terminal: Terminal, runs: tuple[str, ...]) -> int:
    """Wait until every RUN and its descendants have ended; resume those whose process has died.

    The exit code is the highest of all runs. Ctrl-C detaches without stopping runs of other processes.
    """
    runs_by_id = {run.id: run for run in [await app.runs.find(ref) for ref in runs]}

    async def resume_and_list() -> Sequence[Run]:
        await resume_orphaned_runs(app, list(runs_by_id.values()))
        return list(runs_by_id.values())

    try:
        finished = await follow_runs(app, terminal, resume_and_list, cancel_on_interrupt=False)
    except UserDetached:
        return await _print_live_runs(app, terminal, list(runs_by_id))
    if terminal.json:
        terminal.print_json([run_output(app, run) for run in finished])
    for run in finished:
        if run.result_hash and not run.text:
            terminal.print_note(f"The result of run {run.id} was pruned and is no longer in its session.")
        if exit_code(run):
            terminal.print_note(
                status_sentence(run, await load_run_trees(app, [run]), terminal.agent_titles.title),
                colour="31",
            )
    return max(exit_code(run) for run in finished)


async def _print_live_runs(app: App, terminal: Terminal, ids: Sequence[str]) -> int:
    """Tell the user which runs continue after detaching, and how to cancel them."""
    runs = [await app.runs.find(run_id) for run_id in ids]
    if terminal.json:
        terminal.print_json([run_output(app, run) for run in runs])
    for run in runs:
        if run.status.is_live:
            terminal.print_note(f'Run {run.id} is {run.status}. Stop it with "retinue runs cancel {run.id}".')
    return Cancelled.exit_code
