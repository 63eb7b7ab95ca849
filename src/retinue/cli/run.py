"""The run, send and spawn commands: start one run and follow it."""

import math
import sys
from typing import Any

import click
from msgspec.structs import replace

from retinue.app import App
from retinue.app.run_options import RunOptions, SpawnOptions
from retinue.cli.command import ALLOW_HOME_OPTION, FORGET_OPTION, run_output, with_app
from retinue.cli.follow import follow_run, print_result
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.errors import UsageError
from retinue.storage.json_schema import read_schema_file

MAX_INPUT_BYTES = 10_000_000
"""Limit for a text on standard input; a longer one belongs in a file that the agent reads."""


def validate_timeout(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter("it must be a number of seconds; 0 means the configured maximum")
    return value


TIMEOUT_OPTION = click.option(
    "--timeout",
    type=float,
    callback=validate_timeout,
    metavar="S",
    help="Deadline in seconds after the start. 0: the configured maximum.",
)
MODEL_OPTION = click.option("--model", metavar="M", help="Model for this run, as provider:model.")
LABEL_OPTION = click.option("--label", default="", metavar="L", help="Name of the run in lists.")
THINKING_OPTION = click.option(
    "--thinking",
    type=click.Choice(["off", "low", "medium", "high"]),
    help="Thinking effort of the model.",
)


def read_schema_option(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """Read the schema while the options are parsed, so that a wrong one is refused before anything is written."""
    return None if value is None else read_schema_file(value)


SCHEMA_OPTION = click.option(
    "--schema",
    metavar="FILE",
    callback=read_schema_option,
    help="JSON Schema of the final answer, which is then JSON that matches it.",
)
ISOLATION_OPTION = click.option(
    "--isolation",
    type=click.Choice(["shared", "sandbox", "custom"]),
    help="Workspace isolation (default: from the agent's definition).",
)
WRITABLE_OPTION = click.option(
    "--writable/--read-only",
    default=None,
    help="Whether the workspace is writable. Cannot exceed the agent's definition.",
)


@click.command(cls=Command)
@click.argument("text", required=False)
@click.option("--agent", metavar="A", help="Agent to run (default: general).")
@click.option(
    "--session",
    metavar="S",
    help="latest, create, latest-or-create, or a session's id, slug, path or prefix (default: a new session).",
)
@MODEL_OPTION
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Workspace of a new session (default: the current folder).",
)
@ALLOW_HOME_OPTION
@ISOLATION_OPTION
@WRITABLE_OPTION
@LABEL_OPTION
@TIMEOUT_OPTION
@THINKING_OPTION
@SCHEMA_OPTION
@FORGET_OPTION
@click.option(
    "--background", is_flag=True, help="Let the daemon execute the run; start the daemon if necessary."
)
@with_app(executes_runs=True)
async def run(  # noqa: PLR0913  (one parameter per option of the command)
    app: App,
    terminal: Terminal,
    text: str | None,
    *,
    agent: str | None,
    session: str | None,
    model: str | None,
    workspace: str | None,
    allow_home: bool,
    isolation: str | None,
    writable: bool | None,
    label: str,
    timeout: float | None,  # noqa: ASYNC109  (the run's deadline, not this call's)
    thinking: str | None,
    schema: dict[str, Any] | None,
    background: bool,
) -> int:
    """Give an agent one task, wait for it and its children, and stream the answer.

    TEXT is the task; `-` reads it from standard input. With --session and no TEXT, the task is what you typed
    at the end of the session's file. Put a TEXT that starts with a dash after `--`.

    On a terminal, you are asked to approve actions that require it. Without one, the run waits for `retinue
    approvals`, and the exit code is 6.
    """
    task = None if text is None else read_task_text(text)
    if task is None and session is None:
        raise UsageError('The task is missing. Use "retinue run TEXT", or - to read it from standard input.')
    options = RunOptions(
        agent=agent,
        session=session,
        model=model,
        workspace=workspace,
        allow_home=allow_home,
        isolation=isolation,
        writable=writable,
        label=label,
        timeout_s=timeout,
        thinking=thinking,
        output_schema=schema,
    )
    if background:
        return await _submit_to_daemon(app, terminal, task, options)
    finished = await follow_run(app, terminal, lambda: app.runs.start(task, options))
    return await print_result(app, terminal, finished)


async def _submit_to_daemon(app: App, terminal: Terminal, task: str | None, options: RunOptions) -> int:
    from retinue import daemon_client  # noqa: PLC0415  (only needed with --background)
    from retinue.cli.serve import ensure_daemon  # noqa: PLC0415  (the same)

    if not app.config.is_persistent:
        raise UsageError(
            "--background cannot be combined with --forget: a temporary run ends with this command"
        )
    daemon = await ensure_daemon(app.config.home, until_idle=True)
    if daemon.get("settings") != app.config.fingerprint():
        terminal.print_note(
            "The daemon was started with different settings, which apply to this run.", colour="33"
        )
    submitted = await app.runs.start(task, replace(options, owner=daemon["owner"]))
    await daemon_client.ping_daemon(app.config.home)
    terminal.print_facts(run_output(app, submitted))
    return 0


@click.command(cls=Command)
@click.argument("session")
@click.argument("text")
@MODEL_OPTION
@LABEL_OPTION
@TIMEOUT_OPTION
@with_app(executes_runs=True)
async def send(
    app: App,
    terminal: Terminal,
    session: str,
    text: str,
    *,
    model: str | None,
    label: str,
    timeout: float | None,  # noqa: ASYNC109  (the run's deadline, not this call's)
) -> int:
    """Send a message to SESSION and stream the answer; `-` reads TEXT from standard input."""
    task = read_task_text(text)
    options = RunOptions(session=session, model=model, label=label, timeout_s=timeout)
    finished = await follow_run(app, terminal, lambda: app.runs.start(task, options))
    return await print_result(app, terminal, finished)


@click.command(cls=Command)
@click.argument("text")
@click.option("--parent", required=True, metavar="SESSION", help="Parent session.")
@click.option("--agent", required=True, metavar="A", help="Agent of the child.")
@click.option("--allowed-paths", multiple=True, metavar="G", help="Paths the child can read. Repeatable.")
@click.option(
    "--denied-paths", multiple=True, metavar="G", help="More paths the child cannot access. Repeatable."
)
@click.option(
    "--description", default="", metavar="D", help="Short description, used in the name of its folder."
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Workspace of the child, which it can read (default: its parent's).",
)
@ALLOW_HOME_OPTION
@ISOLATION_OPTION
@WRITABLE_OPTION
@MODEL_OPTION
@LABEL_OPTION
@TIMEOUT_OPTION
@with_app(executes_runs=True)
async def spawn(  # noqa: PLR0913  (one parameter per option of the command)
    app: App,
    terminal: Terminal,
    text: str,
    *,
    parent: str,
    agent: str,
    allowed_paths: tuple[str, ...],
    denied_paths: tuple[str, ...],
    description: str,
    workspace: str | None,
    allow_home: bool,
    isolation: str | None,
    writable: bool | None,
    model: str | None,
    label: str,
    timeout: float | None,  # noqa: ASYNC109  (the run's deadline, not this call's)
) -> int:
    """Start a child of a session with its own conversation and paths, and stream its answer.

    Without --allowed-paths, the child can read what its parent can read. --allowed-paths '' removes the
    restriction.
    """
    task = read_task_text(text)
    options = SpawnOptions(
        parent=parent,
        agent=agent,
        description=description,
        allowed_paths=parse_globs(allowed_paths),
        denied_paths=parse_globs(denied_paths),
        workspace=workspace,
        allow_home=allow_home,
        isolation=isolation,
        writable=writable,
        model=model,
        timeout_s=timeout,
        label=label,
    )
    finished = await follow_run(app, terminal, lambda: app.runs.spawn(task, options))
    return await print_result(app, terminal, finished)


def read_task_text(text: str) -> str:
    """Return the task text; `-` reads standard input. A blank text is an error."""
    task = _read_stdin() if text == "-" else text
    if not task.strip():
        raise UsageError("The text is empty. Describe the task.")
    return task


def _read_stdin() -> str:
    raw = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(raw) > MAX_INPUT_BYTES:
        raise UsageError(
            f"Standard input is larger than {MAX_INPUT_BYTES:,} bytes. Put the text in a file and name the file in the task."
        )
    return raw.decode("utf-8", "surrogateescape").rstrip("\r\n")


def parse_globs(patterns: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns, or None if the option was not given.

    An empty pattern means the empty list.
    """
    return tuple(pattern for pattern in patterns if pattern) if patterns else None
