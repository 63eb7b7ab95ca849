"""Watchers: who sits beside which conversation, and what they say to a person at a terminal."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import click

from retinue.app import App
from retinue.app.watchers import PAIR
from retinue.cli.command import on_app
from retinue.cli.options import Command, Group
from retinue.cli.ui.tables import ago
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.domain.watch import Watch, as_json
from retinue.errors import RetinueError

COLUMNS: Sequence[Column] = (
    ("WHO", lambda row: f"{row['name']} watching"),
    ("SESSION", lambda row: row["slug"]),
    ("SINCE", lambda row: ago(row["created_at"])),
    ("TOLD", lambda row: str(row["told"])),
    ("WATCHER'S SESSION", lambda row: row["watcher"]),
)
COLOURS = {"info": "36", "warning": "33", "interrupt": "31"}
MOST = 600
AGENT = click.option("--agent", metavar="A", help="Who; without it, everybody who watches.")


class SessionOrWord(Group):
    """`list` is a word; anything else is the session to be watched."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return "SESSION", begin_watch, args

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "SESSION [--agent A] | list [SESSION]")


@click.group(cls=SessionOrWord)
def watch() -> None:
    """Set an agent beside SESSION: it hears what is said and done there, and speaks up when something is wrong.

    It reads and changes nothing. What it says lies in `retinue inbox`, with a reason and what to do instead; only what is
    about to do harm ends the turn it watches, if the agent's definition lets it. It watches through every restart, until
    `retinue unwatch`. Without --agent it is pair.
    """


@click.command(cls=Command)
@click.argument("session")
@click.option("--agent", metavar="A", default=PAIR, help="Who watches; pair when nobody is named.")
@on_app()
async def begin_watch(app: App, terminal: Terminal, session: str, agent: str) -> None:
    """Set an agent beside SESSION."""
    found = await app.watch(session, agent=agent)
    if terminal.json:
        terminal.value(as_json(found))
        return
    terminal.line(f"{found.name} watching {found.slug}")


@watch.command("list")
@click.argument("session", required=False)
@on_app()
async def list_watches(app: App, terminal: Terminal, session: str | None) -> None:
    """Who watches: everywhere, or SESSION."""
    rows = [as_json(each) for each in await app.watchers(session)]
    terminal.rows(rows, COLUMNS, empty="nobody watches: retinue watch SESSION sets an agent beside it")


@click.command(cls=Command)
@click.argument("session")
@AGENT
@on_app()
async def unwatch(app: App, terminal: Terminal, session: str, agent: str | None) -> None:
    """Send those away who watch SESSION. What they have said stays in the inbox."""
    gone = await app.unwatch(session, agent=agent)
    if terminal.json:
        terminal.value([as_json(each) for each in gone])
        return
    for each in gone:
        terminal.line(f"{each.name} watches {each.slug} no more")


async def heard_out(app: App, terminal: Terminal, runs: Sequence[Run], pressed: asyncio.Event) -> None:
    """Those who watch hear how it ended, and say their word, before this process goes on. Ctrl-C does not wait for
    it: they hear it later."""
    sessions = {run.session_id for run in runs}
    beside: list[Watch] = []
    with suppress(RetinueError):  # the run is over, whatever keeps the ledger from being read now
        beside = [each for each in await app.watchers() if each.session in sessions]
    if pressed.is_set() or not beside:
        return
    if terminal.err.isatty():
        terminal.note(f"{', '.join(each.name for each in beside)} listening … (Ctrl-C does not wait)")
    leaving = asyncio.ensure_future(pressed.wait())
    hearing = asyncio.ensure_future(_heard_out(app, sessions))
    try:
        await asyncio.wait((leaving, hearing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (leaving, hearing):
            each.cancel()
        await asyncio.gather(leaving, hearing, return_exceptions=True)


async def _heard_out(app: App, sessions: set[str]) -> None:
    with suppress(RetinueError):
        for each in sorted(sessions):
            await app.heard_out(each)


def spoken(event: Event) -> tuple[str, str]:
    """What a watcher says, in words for a terminal, and their colour."""
    said, severity = event.data, str(event.data["severity"])
    instead = f" → {one_line(said['suggestion'], MOST)}" if said["suggestion"] else ""
    ended = " (it ends the turn)" if said["interrupts"] else ""
    words = f"{said['name']} {severity}: {one_line(said['reason'], MOST)}{instead}{ended}"
    return words, COLOURS.get(severity, "33")
