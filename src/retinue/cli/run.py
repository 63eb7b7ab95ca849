"""Giving work: run, send and spawn each begin one run and stay with it."""

import math
import sys
from typing import Any

import click

from retinue.app import App
from retinue.cli.command import FORGETTING, on_app
from retinue.cli.follow import followed, reported
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.domain.run import as_json
from retinue.errors import Usage

MAX_INPUT = 10_000_000
"""Bytes of a text on standard input; what is longer belongs in a file that the agent reads."""


def seconds(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter("say a number of seconds; 0 means the configured maximum")
    return value


TIMEOUT = click.option(
    "--timeout", type=float, callback=seconds, metavar="S", help="The deadline, in seconds from the start."
)
MODEL = click.option("--model", metavar="M", help="The model for this run, as driver:model.")
LABEL = click.option("--label", default="", metavar="L", help="A name for the run in lists.")
THINKING = click.option(
    "--thinking", type=click.Choice(["off", "low", "medium", "high"]), help="How long the model thinks."
)
ISOLATION = click.option(
    "--isolation",
    type=click.Choice(["shared", "sandbox", "custom"]),
    help="How its workspace is set apart, instead of what its definition says.",
)
WRITABLE = click.option(
    "--writable/--read-only",
    default=None,
    help="Whether it may write there; it never may where its definition says no.",
)


@click.command(cls=Command)
@click.argument("text", required=False)
@click.option("--agent", metavar="A", help="Who does it; general when nobody is named.")
@click.option(
    "--session",
    metavar="S",
    help="latest, create, latest-or-create, or any session's id, slug, path or prefix. Without it: a new one.",
)
@MODEL
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Where a new session works; the current folder when not given.",
)
@ISOLATION
@WRITABLE
@LABEL
@TIMEOUT
@THINKING
@FORGETTING
@click.option("--background", is_flag=True, help="Leave it to the daemon, which is started if none is there.")
@on_app(quiet=True)
async def run(
    app: App, terminal: Terminal, text: str | None, session: str | None, *, background: bool, **wishes: Any
) -> int:
    """Give an agent one task, wait for it and its children, and stream the answer.

    TEXT is the task; `-` reads it from standard input. With --session and no TEXT, what a person typed at
    the end of the session's file is the task. A TEXT that starts with a dash stands after `--`.

    What the agent may not do without a yes is asked here; without a terminal the run waits for `retinue approvals`,
    and the exit code is 6.
    """
    task = None if text is None else worded(text)
    if task is None and session is None:
        raise Usage("say what to do: retinue run TEXT, or - to read it from standard input")
    if background:
        return await _left_to_the_daemon(app, terminal, task, session=session, **wishes)
    ended = await followed(app, terminal, lambda: app.start(task, session=session, **wishes))
    return await reported(app, terminal, ended)


async def _left_to_the_daemon(app: App, terminal: Terminal, task: str | None, **wishes: Any) -> int:
    from retinue import daemon_client  # noqa: PLC0415  (only here is there a daemon)
    from retinue.cli.serve import ready  # noqa: PLC0415  (the same)

    if not app.config.keeps:
        raise Usage("--background and --forget exclude each other: what nobody keeps ends with this command")
    daemon = await ready(app.config.home, until_idle=True)
    if daemon.get("settings") != app.config.fingerprint():
        terminal.note("the daemon was started with other settings, and those count for this run", colour="33")
    left = await app.start(task, owner=daemon["owner"], **wishes)
    await daemon_client.hello(app.config.home)
    terminal.facts(as_json(left))
    return 0


@click.command(cls=Command)
@click.argument("session")
@click.argument("text")
@MODEL
@LABEL
@TIMEOUT
@on_app(quiet=True)
async def send(app: App, terminal: Terminal, session: str, text: str, **wishes: Any) -> int:
    """Send one more message to SESSION and stream the answer; `-` reads TEXT from standard input."""
    task = worded(text)
    ended = await followed(app, terminal, lambda: app.start(task, session=session, **wishes))
    return await reported(app, terminal, ended)


@click.command(cls=Command)
@click.argument("text")
@click.option("--parent", required=True, metavar="SESSION", help="The session whose child this is.")
@click.option("--agent", required=True, metavar="A", help="Who the child is.")
@click.option("--allowed-paths", multiple=True, metavar="G", help="What it may read; again for more.")
@click.option("--denied-paths", multiple=True, metavar="G", help="What it may not touch; again for more.")
@click.option("--description", default="", metavar="D", help="A few words that name its folder.")
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Where it works, which it may then read; its parent's folder when not given.",
)
@ISOLATION
@WRITABLE
@MODEL
@LABEL
@TIMEOUT
@on_app(quiet=True)
async def spawn(
    app: App,
    terminal: Terminal,
    text: str,
    *,
    allowed_paths: tuple[str, ...],
    denied_paths: tuple[str, ...],
    **wishes: Any,
) -> int:
    """Start a child of a session with its own conversation and paths, and stream its answer.

    Without --allowed-paths the child reads what its parent reads; an empty one ('') lifts the restriction.
    """
    task = worded(text)
    paths = {"allowed_paths": globs(allowed_paths), "denied_paths": globs(denied_paths)}
    ended = await followed(app, terminal, lambda: app.spawn(task, **paths, **wishes))
    return await reported(app, terminal, ended)


def worded(text: str) -> str:
    """The task in words: `-` is standard input, and nothing but blanks is no task."""
    words = _piped() if text == "-" else text
    if not words.strip():
        raise Usage("the text is empty: say what to do")
    return words


def _piped() -> str:
    raw = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(raw) > MAX_INPUT:
        raise Usage(f"standard input holds over {MAX_INPUT:,} bytes: put it in a file and name the file")
    return raw.decode("utf-8", "surrogateescape").rstrip("\r\n")


def globs(patterns: tuple[str, ...]) -> tuple[str, ...] | None:
    """None when the option was not given; an empty pattern stands for the empty list."""
    return tuple(pattern for pattern in patterns if pattern) if patterns else None
