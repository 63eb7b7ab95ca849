"""How a command does its work: the application opened around it, and its exit code."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec

import click

from retinue import app as application
from retinue.app import App
from retinue.app.daemon_link import Terms
from retinue.cli.offline_command import remind
from retinue.cli.ui.terminal import Terminal
from retinue.cli.user_prompts import Person
from retinue.domain.run import Run, Status, Waiting

P = ParamSpec("P")

EXIT_CODES: Mapping[Status, int] = {
    Status.DONE: 0,
    Status.FAILED: 1,
    Status.LOST: 1,
    Status.TIMED_OUT: 4,
    Status.CANCELLED: 5,
}
"""What a run's end is to a script. A run that has not ended failed its asker, unless a person holds it up."""

NOBODY_HERE = 6
HELD_UP = frozenset({Waiting.APPROVAL, Waiting.PERSON, Waiting.CHILD})
"""A run that waits for its child, and is told of here, waits because the child waits for a person; and one that is
still queued stands behind a run that does."""


def exit_code(run: Run) -> int:
    if run.status is Status.QUEUED or (run.status is Status.WAITING and run.waiting_for in HELD_UP):
        return NOBODY_HERE
    return EXIT_CODES.get(run.status, 1)


FORGET = "retinue.forget"


def _forgets(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[FORGET] = value


FORGETTING = click.option(
    "--forget",
    is_flag=True,
    expose_value=False,
    callback=_forgets,
    help="Keep nothing: no session and no run is left when the command ends.",
)

STRANGERS = (
    "the daemon was started with other settings (model, keys, configuration), so this command works by itself; "
    "`retinue serve --stop` and a new start bring both together"
)

Work = Callable[Concatenate[App, Terminal, P], Awaitable[int | None]]


def on_app(*, quiet: bool = False, acts: bool = False) -> Callable[[Work[P]], Callable[P, int]]:
    """Opens the application around a command's work, whose result is the exit code (nothing is 0).
    A command that works runs itself is `quiet` about those that were interrupted. It, and one that otherwise `acts` on
    runs, does so beside the daemon; those that only look need none."""

    def opened(meta: Mapping[str, Any], person: Person) -> AbstractAsyncContextManager[App]:
        home, ask = meta.get("retinue.home"), person.answerer()
        if quiet or acts:
            return application.open(home=home, ask=ask, keeps=not meta.get(FORGET))
        return application.look(home=home, ask=ask)

    def wrap(work: Work[P]) -> Callable[P, int]:
        @functools.wraps(work)
        def perform(*args: P.args, **kwargs: P.kwargs) -> int:
            meta = click.get_current_context().meta
            terminal = Terminal.here(json=bool(meta.get("retinue.json")))

            async def performed() -> int:
                person = Person(terminal=terminal)
                async with opened(meta, person) as app:
                    app.operator.tell = functools.partial(terminal.note, colour="33")
                    near = app.beside_daemon() if quiet or acts else nullcontext(Terms.ALONE)
                    async with near as terms:
                        if quiet and terms is Terms.STRANGERS and not kwargs.get("background"):
                            terminal.note(STRANGERS, colour="33")
                        code = await work(app, terminal, *args, **kwargs)
                    if not quiet:
                        await remind(app, terminal)
                return code or 0

            return asyncio.run(performed())

        return perform

    return wrap


def plainly(work: Callable[Concatenate[Terminal, str | None, P], Awaitable[int | None]]) -> Callable[P, int]:
    """For a command that needs no application, or opens its own: it gets the terminal and `--home`."""

    @functools.wraps(work)
    def perform(*args: P.args, **kwargs: P.kwargs) -> int:
        meta = click.get_current_context().meta
        terminal = Terminal.here(json=bool(meta.get("retinue.json")))

        async def performed() -> int:
            return await work(terminal, meta.get("retinue.home"), *args, **kwargs) or 0

        return asyncio.run(performed())

    return perform
