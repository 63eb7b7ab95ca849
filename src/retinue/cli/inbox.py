"""The inbox: what agents that were handed work are at, and what they left."""

from collections.abc import Sequence

import click

from retinue.app import App
from retinue.cli.command import on_app
from retinue.cli.options import Command
from retinue.cli.ui.tables import ago
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.errors import Usage

COLUMNS: Sequence[Column] = (
    ("RUN", lambda row: row["id"] if row["severity"] else row["runId"]),
    ("WHO", lambda row: row["agentId"]),
    ("STATUS", lambda row: row["severity"] or row["status"]),
    ("AGE", lambda row: ago(row["timestamp"])),
    ("FOR", lambda row: row["for"] or "-"),
    ("TOLD", lambda row: row["delivery"] or "-"),
    ("RESULT", lambda row: one_line(row["summary"] or row["error"] or row["label"] or "", 80)),
    ("TRANSCRIPT", lambda row: row["transcript"]),
)


@click.command(cls=Command)
@click.argument("session", required=False)
@click.option("--drain", is_flag=True, help="Count what nobody has heard of as read: no agent is told of it.")
@click.option("--promote", metavar="RUN", help="Pass one result on into the conversation that asked for it.")
@click.option("--dismiss", metavar="ID", help="Set aside what a watcher said.")
@on_app()
async def inbox(
    app: App, terminal: Terminal, session: str | None, drain: bool, promote: str | None, dismiss: str | None
) -> None:
    """What agents that were handed work are at, and what they left: of SESSION, or of all. What watchers say lies here too.

    Results that an agent has not heard of yet are `pending`; it hears of each at its next turn, once. --promote writes
    a result into that conversation in your name, and says whose words they are; what you send next comes after it. What stands there
    already is not written again.
    """
    if dismiss is not None:
        if drain or session is not None or promote is not None:
            raise Usage("--dismiss takes one interjection and nothing else: leave the rest out")
        terminal.facts(await app.dismiss(dismiss))
        return
    if promote is not None:
        if drain or session is not None:
            raise Usage("--promote takes one result and nothing else: leave SESSION and --drain out")
        passed = await app.promote(promote)
        stands = "stands already" if passed["already"] else "stands"
        terminal.note(
            f"{passed['agentId']}'s result {stands} in {passed['for']}: retinue send {passed['for']} TEXT"
        )
        if terminal.json:
            terminal.value(passed)
        return
    found = await app.drain_inbox(session) if drain else await app.inbox(session)
    empty = "nothing was left unread" if drain else "no agent was handed any work"
    terminal.rows(found, COLUMNS, empty=empty)
