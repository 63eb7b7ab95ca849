"""Decorator for commands that only need sessions: no models, tools or run owner."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Concatenate, ParamSpec

import click

from retinue import app as application
from retinue.app.home_access import HomeAccess
from retinue.app.run_queries import orphaned_runs
from retinue.app.stored_sessions import StoredSessions, open_sessions
from retinue.app.tree_activity import runs_ahead_of
from retinue.cli.ui.terminal import Terminal
from retinue.errors import RetinueError

P = ParamSpec("P")

SessionsCommand = Callable[Concatenate[StoredSessions, Terminal, P], Awaitable[int | None]]


def with_sessions(*, full_app: bool = False) -> Callable[[SessionsCommand[P]], Callable[P, int]]:
    """Run a command with the sessions service open and exit with the code it returns (None is 0).

    Args:
        full_app: Open the whole application, for a command that needs more than sessions.
    """

    def decorate(command: SessionsCommand[P]) -> Callable[P, int]:
        @functools.wraps(command)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
            meta = click.get_current_context().meta
            terminal = Terminal.from_std_streams(json=bool(meta.get("retinue.json")))

            async def run_command() -> int:
                home = meta.get("retinue.home")
                async with _open_full_app(home) if full_app else open_sessions(home=home) as stored:
                    terminal.agent_titles.use(stored.home.agents.display_names)
                    code = await command(stored, terminal, *args, **kwargs)
                    await note_interrupted_runs(stored.home, terminal)
                return code or 0

            return asyncio.run(run_command())

        return wrapper

    return decorate


@asynccontextmanager
async def _open_full_app(home: str | None) -> AsyncGenerator[StoredSessions]:
    async with application.open(home=home) as app:
        yield app.sessions


async def note_interrupted_runs(home: HomeAccess, terminal: Terminal) -> None:
    """Tell the user about interrupted runs.

    The command itself has succeeded, so a ledger that cannot be read now is ignored.
    """
    with suppress(RetinueError):
        interrupted = await orphaned_runs(home)
        if count := await home.ledger.read(lambda tx: sum(not runs_ahead_of(run, tx) for run in interrupted)):
            terminal.print_note(
                f'{count} run{"s were" if count > 1 else " was"} interrupted. Continue with "retinue runs resume".',
                colour="33",
            )
