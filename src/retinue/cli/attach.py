"""The attach command: follow a session live until all of its runs have ended."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

import click

from retinue.app import App
from retinue.cli.command import exit_code, run_output, with_app
from retinue.cli.follow import RunEventPrinter, detach_on_hangup, status_sentence
from retinue.cli.options import Command
from retinue.cli.run_waiter import (
    ANSWER_POLL_SECONDS,
    UserDetached,
    load_run_trees,
    resume_orphaned_runs,
    wait_for_runs,
)
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import UserPrompter, catch_interrupts
from retinue.domain.run import LIVE_STATUSES, Run
from retinue.domain.session import Session
from retinue.errors import RetinueError


@click.command(cls=Command)
@click.argument("session")
@with_app(executes_runs=True)
async def attach(app: App, terminal: Terminal, session: str) -> int:
    """Follow SESSION until none of its runs is active, in any process.

    Resumes runs whose process has died, and asks you their questions. Ctrl-C detaches without stopping runs
    of other processes.
    """
    target = await app.sessions.find(session)
    snippet = f": {one_line(target.last_snippet, 80)}" if target.last_snippet else ""
    terminal.print_note(f"{target.agent} in {target.slug}{snippet}")
    follower = SessionFollower(app, terminal, target)
    detached = False
    with app.listen(follower.printer.on_event), catch_interrupts() as interrupted, detach_on_hangup():
        try:
            await follower.follow(interrupted)
        except UserDetached:
            detached = True
    return await _print_final_state(follower, detached=detached)


async def _print_final_state(follower: "SessionFollower", *, detached: bool) -> int:
    """Print the current state of the followed runs, and return the exit code."""
    terminal = follower.terminal
    runs = [await follower.app.runs.find(run_id) for run_id in follower.run_ids]
    if terminal.json:
        terminal.print_json([run_output(follower.app, run) for run in runs])
    elif not runs:
        terminal.print_note(
            f'No run is active in {follower.session.slug}. Send it a message with "retinue send {follower.session.slug} TEXT".'
        )
    for run in runs:
        if detached and run.status.is_live:
            terminal.print_note(f'Run {run.id} is {run.status}. Stop it with "retinue runs cancel {run.id}".')
        elif exit_code(run):
            terminal.print_note(
                status_sentence(run, await load_run_trees(follower.app, [run]), terminal.agent_titles.title),
                colour="31",
            )
    return 0 if detached else max((exit_code(run) for run in runs), default=0)


class SessionFollower:
    """Follow one session: events for runs of this process, the transcript file for runs of others."""

    def __init__(self, app: App, terminal: Terminal, session: Session) -> None:
        self.app = app
        self.terminal = terminal
        self.session = session
        self.prompter = UserPrompter(terminal=terminal)
        self.printer = RunEventPrinter(terminal, is_prompting=self.prompter.lock.locked)
        self.run_ids: list[str] = []
        self.transcript_path = f"{session.path}/session.md"
        self.file_stamp: tuple[int, int] | None = None
        self.seen_entry_ids: set[str] = set()

    async def follow(self, interrupted: asyncio.Event) -> None:
        """Follow one active run of the session after another, until none can continue."""
        await self.app.daemon.follow(await self._live_runs())
        await self._print_new_entries(mark_only=True)
        await resume_orphaned_runs(self.app, await self._live_runs())
        async with self.printer.progress.show(self.app):
            while live := await self._live_runs():
                self.run_ids += [run.id for run in live if run.id not in self.run_ids]
                self.printer.add_runs(live, await load_run_trees(self.app, live))
                await self.app.daemon.follow(live)
                self.printer.local_runs |= {run.id for run in live if await self.app.runs.is_owned_here(run)}
                finished = await self._follow_until_idle(live, interrupted)
                if any(run.status.is_live for run in finished):
                    break
        self.printer.close()

    async def _live_runs(self) -> list[Run]:
        return await self.app.context.ledger.read(
            lambda tx: tx.find_runs(status=LIVE_STATUSES, session=self.session.id)
        )

    async def _follow_until_idle(self, live: Sequence[Run], interrupted: asyncio.Event) -> list[Run]:
        ids = [run.id for run in live]
        stop_progress = self.printer.progress.stop
        try:
            async with asyncio.TaskGroup() as group:
                polling = group.create_task(self._poll_transcript())
                finished = await wait_for_runs(
                    self.app,
                    ids,
                    interrupted,
                    self.prompter,
                    before_interrupt=stop_progress,
                    cancel_on_interrupt=False,
                )
                polling.cancel()
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        await self._print_new_entries()
        return finished

    async def _poll_transcript(self) -> None:
        while True:
            await self._print_new_entries()
            await asyncio.sleep(ANSWER_POLL_SECONDS)

    async def _print_new_entries(self, *, mark_only: bool = False) -> None:
        """Print new transcript entries, except those already shown as events."""
        with suppress(OSError, RetinueError):
            file_info = os.stat(self.transcript_path)  # noqa: PTH116  (a single stat call)
            if (stamp := (file_info.st_size, file_info.st_mtime_ns)) == self.file_stamp:
                return
            entries = await self.app.sessions.entries(self.session.path)
            self.file_stamp = stamp
            new_entries = [entry for entry in entries if entry.id not in self.seen_entry_ids]
            self.seen_entry_ids.update(entry.id for entry in new_entries)
            for entry in new_entries:
                if not mark_only and entry.run not in self.printer.local_runs:
                    self.printer.on_entry(entry)
