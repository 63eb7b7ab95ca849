"""Commands for watchers, agents that monitor a session, and display of their comments."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import click

from retinue.app import App
from retinue.app.watchers import DEFAULT_WATCHER
from retinue.cli.command import with_app
from retinue.cli.options import Command, Group
from retinue.cli.ui.agent_titles import AgentTitles
from retinue.cli.ui.tables import format_age
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.domain.watch import Watch, watch_as_json
from retinue.errors import RetinueError

WATCHER_COLUMNS: Sequence[Column] = (
    ("WATCHER", lambda row: f"{row['title']} watching"),
    ("SESSION", lambda row: row["slug"]),
    ("AGE", lambda row: format_age(row["created_at"])),
    ("UPDATES", lambda row: str(row["update_count"])),
    ("WATCHER SESSION", lambda row: row["watcher"]),
)
SEVERITY_COLOURS = {"info": "36", "warning": "33", "interrupt": "31"}
MAX_TEXT_CHARS = 600
AGENT_OPTION = click.option("--agent", metavar="A", help="Watcher to stop (default: all).")


class SessionOrSubcommandGroup(Group):
    """A group whose first argument is a subcommand (`list`) or else the session to watch."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return "SESSION", start_watcher, args

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "SESSION [--agent A] | list [SESSION]")


@click.group(cls=SessionOrSubcommandGroup)
def watch() -> None:
    """Let an agent monitor SESSION and comment when something is wrong.

    The watcher has read-only tools. Its comments are in `retinue inbox`, each with a reason and a suggestion.
    It interrupts the watched turn only to prevent harm, and only if its definition permits that. It continues
    across restarts until `retinue unwatch`. --agent A chooses the watcher (default: pair).
    """


@click.command(cls=Command)
@click.argument("session")
@click.option("--agent", metavar="A", default=DEFAULT_WATCHER, help="Agent that watches (default: pair).")
@with_app()
async def start_watcher(app: App, terminal: Terminal, session: str, agent: str) -> None:
    """Start a watcher on SESSION."""
    watcher = await app.watchers.add(session, agent=agent)
    if terminal.json:
        terminal.print_json(watch_as_json(watcher))
        return
    terminal.print_line(f"{watcher_title(watcher, terminal)} watching {watcher.slug}")


@watch.command("list")
@click.argument("session", required=False)
@with_app()
async def list_watchers(app: App, terminal: Terminal, session: str | None) -> None:
    """List the watchers of all sessions, or of SESSION."""
    watchers = await app.watchers.list(session)
    if terminal.json:
        terminal.print_json([watch_as_json(each) for each in watchers])
        return
    rows = [watch_as_json(each) | {"title": watcher_title(each, terminal)} for each in watchers]
    terminal.print_table(
        rows, WATCHER_COLUMNS, empty_note='No watchers. Start one with "retinue watch SESSION".'
    )


@click.command(cls=Command)
@click.argument("session")
@AGENT_OPTION
@with_app()
async def unwatch(app: App, terminal: Terminal, session: str, agent: str | None) -> None:
    """Stop the watchers of SESSION. Their comments are kept in the inbox."""
    stopped = await app.watchers.remove(session, agent=agent)
    if terminal.json:
        terminal.print_json([watch_as_json(each) for each in stopped])
        return
    for each in stopped:
        terminal.print_line(f"{watcher_title(each, terminal)} stopped watching {each.slug}")


def watcher_title(watcher: Watch, terminal: Terminal) -> str:
    """Return the watcher's name with the display name of its agent, such as `Pair#2`."""
    return terminal.agent_titles.numbered_title(watcher.name, watcher.agent)


async def wait_for_watchers(
    app: App, terminal: Terminal, runs: Sequence[Run], interrupted: asyncio.Event
) -> None:
    """Before this process exits, wait until the watchers have received the last update and replied.

    Ctrl-C skips the wait: the watchers receive their updates later.
    """
    sessions = {run.session_id for run in runs}
    watchers: list[Watch] = []
    with suppress(RetinueError):  # the run is over: an unreadable ledger does not matter now
        watchers = [each for each in await app.watchers.list() if each.session in sessions]
    if interrupted.is_set() or not watchers:
        return
    if terminal.err.isatty():
        terminal.print_note(
            f"Waiting for {', '.join(watcher_title(each, terminal) for each in watchers)} … (Ctrl-C skips the wait)"
        )
    interrupt_task = asyncio.ensure_future(interrupted.wait())
    delivery_task = asyncio.ensure_future(_deliver_to_watchers(app, sessions))
    try:
        await asyncio.wait((interrupt_task, delivery_task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (interrupt_task, delivery_task):
            each.cancel()
        await asyncio.gather(interrupt_task, delivery_task, return_exceptions=True)


async def _deliver_to_watchers(app: App, sessions: set[str]) -> None:
    with suppress(RetinueError):
        for session in sorted(sessions):
            await app.watchers.wait(session)


def interjection_line(event: Event, titles: AgentTitles) -> tuple[str, str]:
    """Return a watcher's message as a line for the terminal, and its colour."""
    interjection, severity = event.data, str(event.data["severity"])
    suggestion = (
        f" → {one_line(interjection['suggestion'], MAX_TEXT_CHARS)}" if interjection["suggestion"] else ""
    )
    interrupt_note = " (ends the turn)" if interjection["interrupts"] else ""
    name = titles.numbered_title(str(interjection["name"]), event.agent)
    text = (
        f"{name} {severity}: {one_line(interjection['reason'], MAX_TEXT_CHARS)}{suggestion}{interrupt_note}"
    )
    return text, SEVERITY_COLOURS.get(severity, "33")
