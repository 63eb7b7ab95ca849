"""The inbox command: status and results of delegated tasks."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import with_app
from retinue.cli.options import Command
from retinue.cli.ui.tables import format_age
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.errors import UsageError

INBOX_COLUMNS: Sequence[Column] = (
    ("RUN", lambda row: row["id"] if row["severity"] else row["runId"]),
    ("AGENT", lambda row: row["agentId"]),
    ("STATUS", lambda row: row["severity"] or row["status"]),
    ("AGE", lambda row: format_age(row["timestamp"])),
    ("RECIPIENT", lambda row: row["recipient"] or "-"),
    ("DELIVERY", lambda row: row["delivery"] or "-"),
    ("RESULT", lambda row: one_line(row["summary"] or row["error"] or row["label"] or "", 80)),
    ("TRANSCRIPT", lambda row: row["transcript"]),
)


@click.command(cls=Command)
@click.argument("session", required=False)
@click.option(
    "--drain", is_flag=True, help="Mark undelivered results as read, so that no agent receives them."
)
@click.option("--promote", metavar="ID", help="Add one result to the parent conversation.")
@click.option("--dismiss", metavar="ID", help="Dismiss a watcher's comment.")
@with_app()
async def inbox(
    app: App, terminal: Terminal, session: str | None, drain: bool, promote: str | None, dismiss: str | None
) -> None:
    """Show the status and results of delegated tasks, for SESSION or for all sessions.

    Also lists the comments of watchers. A result that the requesting agent has not received yet is `pending`;
    it is delivered once, at that agent's next turn. --promote ID adds a result to the parent conversation as a
    message from you, with the agent's name. A result is added only once.
    """
    if dismiss is not None:
        if drain or session is not None or promote is not None:
            raise UsageError("--dismiss cannot be combined with SESSION, --drain or --promote")
        terminal.print_facts(await app.inbox.dismiss(dismiss))
        return
    if promote is not None:
        if drain or session is not None:
            raise UsageError("--promote cannot be combined with SESSION or --drain")
        promoted = await app.inbox.promote(promote)
        verb = "is already in" if promoted["already_promoted"] else "was added to"
        terminal.print_note(
            f'The result of {promoted["agentId"]} {verb} {promoted["recipient"]}. Continue it with "retinue send {promoted["recipient"]} TEXT".'
        )
        if terminal.json:
            terminal.print_json(promoted)
        return
    rows = await app.inbox.drain(session) if drain else await app.inbox.list(session)
    empty_note = "No unread results." if drain else "No delegated tasks."
    terminal.print_table(rows, INBOX_COLUMNS, empty_note=empty_note)
