"""Decorators that run a command with or without the application, and exit codes of runs."""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click
from msgspec.structs import replace

from retinue import app as application
from retinue.app import App
from retinue.app.daemon_link import DaemonLinkState
from retinue.cli.offline_command import note_interrupted_runs
from retinue.cli.ui.terminal import Terminal
from retinue.cli.user_prompts import UserPrompter
from retinue.config.load import load_config
from retinue.domain.run import Run, Status, WaitReason, run_as_json

P = ParamSpec("P")

EXIT_CODES: Mapping[Status, int] = {
    Status.DONE: 0,
    Status.FAILED: 1,
    Status.LOST: 1,
    Status.TIMED_OUT: 4,
    Status.CANCELLED: 5,
}
"""Exit code for each final status.

A run that has not ended counts as failed, unless a person must act first.
"""

WAITING_EXIT_CODE = 6
WAITING_FOR_PERSON = frozenset({WaitReason.APPROVAL, WaitReason.PERSON, WaitReason.CHILD})
"""Reasons for waiting that end only when a person acts.

A run reported as waiting for its child waits because the child waits for a person; a queued run waits behind
such a run.
"""


def run_output(app: App, run: Run) -> dict[str, Any]:
    """Return the JSON of a run with its cost, without the path of a transcript that is deleted when the command ends."""
    output = run_as_json(run) | {"cost": app.runs.cost(run)}
    return output if app.config.is_persistent else output | {"path": None}


def exit_code(run: Run) -> int:
    if run.status is Status.QUEUED or (
        run.status is Status.WAITING and run.waiting_for in WAITING_FOR_PERSON
    ):
        return WAITING_EXIT_CODE
    return EXIT_CODES.get(run.status, 1)


FORGET_META_KEY = "retinue.forget"


def _store_forget_flag(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[FORGET_META_KEY] = value


ALLOW_HOME_OPTION = click.option(
    "--allow-home", is_flag=True, help="Allow your home folder as the workspace of a new session."
)
FORGET_OPTION = click.option(
    "--forget",
    is_flag=True,
    expose_value=False,
    callback=_store_forget_flag,
    help="Delete the session and its runs when the command ends.",
)

DAEMON_MISMATCH_NOTE = (
    "The daemon was started with different settings (model, keys, configuration), so this command executes its runs itself. "
    "Restart the daemon to use the new settings: `retinue serve --stop`, then `retinue serve`."
)

AppCommand = Callable[Concatenate[App, Terminal, P], Awaitable[int | None]]


def with_app(
    *, executes_runs: bool = False, controls_runs: bool = False
) -> Callable[[AppCommand[P]], Callable[P, int]]:
    """Run a command inside an open application and exit with the code it returns (None is 0).

    Args:
        executes_runs: The command executes runs itself, so it does not mention interrupted ones.
        controls_runs: The command changes runs in another way. Both kinds connect to the daemon;
            commands that only read do not need it.
    """

    def open_app(meta: Mapping[str, Any], prompter: UserPrompter) -> AbstractAsyncContextManager[App]:
        home, ask = meta.get("retinue.home"), prompter.ask_function()
        if meta.get(FORGET_META_KEY):
            config = replace(load_config(os.environ, home=home), is_unattended=ask is None)
            return application.open(config=config, ask=ask, ephemeral=True)
        if executes_runs or controls_runs:
            return application.open(home=home, ask=ask)
        return application.open_read_only(home=home, ask=ask)

    def decorate(command: AppCommand[P]) -> Callable[P, int]:
        @functools.wraps(command)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
            meta = click.get_current_context().meta
            terminal = Terminal.from_std_streams(json=bool(meta.get("retinue.json")))

            async def run_command() -> int:
                prompter = UserPrompter(terminal=terminal)
                async with open_app(meta, prompter) as app:
                    terminal.agent_titles.use(lambda: app.agents.registry.display_names(str(Path.cwd())))
                    app.live_config.on_warning = functools.partial(terminal.print_note, colour="33")
                    daemon_link = (
                        app.daemon.open()
                        if executes_runs or controls_runs
                        else nullcontext(DaemonLinkState.NO_DAEMON)
                    )
                    async with daemon_link as link_state:
                        if (
                            executes_runs
                            and link_state is DaemonLinkState.SETTINGS_DIFFER
                            and not kwargs.get("background")
                        ):
                            terminal.print_note(DAEMON_MISMATCH_NOTE, colour="33")
                        code = await command(app, terminal, *args, **kwargs)
                    if not executes_runs:
                        await note_interrupted_runs(app.context, terminal)
                return code or 0

            return asyncio.run(run_command())

        return wrapper

    return decorate


def without_app(
    command: Callable[Concatenate[Terminal, str | None, P], Awaitable[int | None]],
) -> Callable[P, int]:
    """Run a command that needs no application, or opens its own, with the terminal and `--home`."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> int:
        meta = click.get_current_context().meta
        terminal = Terminal.from_std_streams(json=bool(meta.get("retinue.json")))

        async def run_command() -> int:
            return await command(terminal, meta.get("retinue.home"), *args, **kwargs) or 0

        return asyncio.run(run_command())

    return wrapper
