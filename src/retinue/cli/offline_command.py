"""How a command that only keeps conversations in order does its work: without models, tools or an owner."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec

import click

from retinue import app as application
from retinue.app.sessions import Sessions, open_sessions
from retinue.app.tree_activity import ahead
from retinue.cli.ui.terminal import Terminal
from retinue.errors import RetinueError

P = ParamSpec("P")

Work = Callable[Concatenate[Sessions, Terminal, P], Awaitable[int | None]]


def on_sessions(*, whole: bool = False) -> Callable[[Work[P]], Callable[P, int]]:
    """Opens the conversations around a command's work, whose result is the exit code (nothing is 0); the `whole`
    application for a command that touches more than them."""

    def wrap(work: Work[P]) -> Callable[P, int]:
        @functools.wraps(work)
        def perform(*args: P.args, **kwargs: P.kwargs) -> int:
            meta = click.get_current_context().meta
            terminal = Terminal.here(json=bool(meta.get("retinue.json")))

            async def performed() -> int:
                opened = application.open if whole else open_sessions
                async with opened(home=meta.get("retinue.home")) as app:
                    code = await work(app, terminal, *args, **kwargs)
                    await remind(app, terminal)
                return code or 0

            return asyncio.run(performed())

        return perform

    return wrap


async def remind(app: Sessions, terminal: Terminal) -> None:
    """The command has answered: a ledger that cannot be asked now takes nothing from that."""
    with suppress(RetinueError):
        left = await app.interrupted()
        if count := await app.ledger.look(lambda tx: sum(not ahead(run, tx) for run in left)):
            terminal.note(
                f"{count} run{'s' if count > 1 else ''} interrupted: retinue runs resume", colour="33"
            )
