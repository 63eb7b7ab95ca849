"""The serve command: run the daemon, start it in the background, find it, and stop it."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from retinue import app as application
from retinue import daemon_client
from retinue.app.composition import defer_question
from retinue.app.workspace_folder import check_home_allowed, resolve_workspace
from retinue.cli.command import without_app
from retinue.cli.main import DAEMON_META_KEY
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Terminal
from retinue.config.load import load_config
from retinue.domain.agent import WorkspacePolicy
from retinue.domain.permissions.ip_ranges import is_loopback_host
from retinue.errors import DiskError, Failed, Refused, RetinueError, UsageError
from retinue.isolated_python import inherited_environment, module_command
from retinue.worker.process_lock import ProcessLock

START_TIMEOUT_SECONDS = 15.0
MAX_FAILURE_BYTES = 4000
"""Maximum length of the failure message that a daemon passes to the process that started it."""
STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})
HOME_FOLDER_WARNING = (
    "This folder is or contains your home folder, so new sessions must name another workspace. "
    "Start the daemon in a project's folder, or add --allow-home."
)
STORAGE_FIX_HINT = "free some space, make the home writable, or choose another one with RETINUE_HOME"


@click.command(cls=Command)
@click.option("--detach", is_flag=True, help="Start in the background, and return when the daemon is ready.")
@click.option(
    "--stop",
    is_flag=True,
    help="Stop the daemon. Running turns get up to 10 seconds to finish; the next start resumes the rest.",
)
@click.option("--link", is_flag=True, help="Print a new link to the web page of the running daemon.")
@click.option("--host", default="127.0.0.1", metavar="H", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="Port to listen on (default: 8765, or a free port if it is taken).",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Allow a --host that other machines can reach. Anyone with the token has your permissions.",
)
@click.option(
    "--allow-home",
    is_flag=True,
    help="Allow your home folder as the workspace of sessions that clients create.",
)
@click.option("--until-idle", is_flag=True, hidden=True)
@click.option("--no-link", is_flag=True, hidden=True)
@click.option("--failure-fd", type=int, hidden=True)
@without_app
async def serve(terminal: Terminal, home: str | None, **options: Any) -> int:
    """Run the daemon: it executes the runs of this home and serves the web page.

    It resumes interrupted runs and executes runs that commands submit. The link it prints opens the page once
    and is valid for ten minutes; `retinue serve --link` prints another. Programs use the token in <home>/token.

    On SIGTERM, running turns get up to 10 seconds to finish; the next start resumes the rest. A second signal
    stops the daemon immediately. Saved work is never lost.
    """
    home_path = load_config(os.environ, home=home).home
    if options["stop"] and (options["detach"] or options["link"]):
        raise UsageError(
            "--stop cannot be combined with --detach or --link: stop the daemon first, then start it again"
        )
    if options["stop"]:
        return await _stop_daemon(home_path, terminal)
    if options["link"] and not options["detach"]:
        return await _print_page_link(home_path, terminal)
    if not is_loopback_host(options["host"]) and not options["allow_remote"]:
        raise UsageError(
            f"--host {options['host']} can be reached by other machines. Add --allow-remote, or use 127.0.0.1."
        )
    if not options["until_idle"] and options["failure_fd"] is None:
        _warn_about_home_folder(terminal, allow_home=options["allow_home"])
    if options["detach"]:
        return await _start_in_background(home_path, terminal, options)
    run_daemon = click.get_current_context().meta[DAEMON_META_KEY]()
    with _report_failure(home_path, options["failure_fd"]):
        async with application.open(home=home, ask=defer_question) as app:
            await run_daemon(
                app,
                report=terminal.print_note,
                host=options["host"],
                port=options["port"],
                until_idle=options["until_idle"],
                on_start=None if options["no_link"] else partial(_print_start, terminal),
                allow_home=options["allow_home"],
            )
    return 0


def _print_start(terminal: Terminal, facts: dict[str, Any]) -> None:
    if terminal.json:
        terminal.print_json(facts)
    else:
        terminal.print_note(f"open the page (one-time link): {facts['url']}")


def _warn_about_home_folder(terminal: Terminal, *, allow_home: bool) -> None:
    """Warn before the daemon starts that clients must name a workspace."""
    try:
        check_home_allowed(resolve_workspace(None), WorkspacePolicy(), is_named=False, allow_home=allow_home)
    except Refused:
        terminal.print_note(HOME_FOLDER_WARNING, colour="33")


async def _start_in_background(home: Path, terminal: Terminal, options: dict[str, Any]) -> int:
    facts = await ensure_daemon(
        home, until_idle=options["until_idle"], arguments=_forwarded_arguments(options)
    )
    link = await daemon_client.request_json(home, "POST", "/api/links") or {}
    terminal.print_facts({each: facts[each] for each in ("pid", "owner", "version")} | link)
    url: str = link.get("url", "")
    actual_port = urlsplit(url).port
    if options["port"] and actual_port not in (None, options["port"]):
        terminal.print_note(
            f"A daemon is already running on port {actual_port}, not {options['port']}. Stop it with `retinue serve --stop`, "
            "then start it again."
        )
    return 0


def _forwarded_arguments(options: dict[str, Any]) -> list[str]:
    """Return the arguments that pass the same options to the process in the background."""
    arguments = ["--host", options["host"]]
    if options["port"] is not None:
        arguments += ["--port", str(options["port"])]
    flags = {"--allow-remote": options["allow_remote"], "--allow-home": options["allow_home"]}
    return [*arguments, *(flag for flag, is_set in flags.items() if is_set)]


async def ensure_daemon(
    home: Path, *, until_idle: bool = False, arguments: list[str] | None = None
) -> dict[str, Any]:
    """Return the facts of this home's daemon, starting one if none is running."""
    while facts := await daemon_client.ping_daemon(home):
        if facts["accepts_runs"]:
            return facts
        await asyncio.sleep(0.05)  # it is shutting down
    log = home / "logs" / "daemon.log"
    failure_fd = os.memfd_create("failure")
    try:
        process = _spawn_daemon(
            home, log, failure_fd, [*(arguments or []), *(["--until-idle"] if until_idle else [])]
        )
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while True:
                if facts := await daemon_client.ping_daemon(home):
                    return facts
                if process.poll() is not None:
                    message = os.pread(failure_fd, MAX_FAILURE_BYTES, 0).decode("utf-8", "replace")
                    raise Failed(f"The daemon cannot start: {message or f'see {log}'}")
                await asyncio.sleep(0.02)
    finally:
        os.close(failure_fd)


def _spawn_daemon(home: Path, log: Path, failure_fd: int, arguments: list[str]) -> "subprocess.Popen[bytes]":
    command = module_command(
        "retinue", "--home", str(home), "serve", "--no-link", "--failure-fd", str(failure_fd), *arguments
    )
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise DiskError(
            f"The daemon cannot start: {log} is not writable: {error.strerror}; {STORAGE_FIX_HINT}"
        ) from error
    try:
        return subprocess.Popen(  # noqa: S603  (our own command, and it outlives us)
            command, stdin=subprocess.DEVNULL, stdout=log_descriptor, stderr=log_descriptor, start_new_session=True,
            env=inherited_environment(), pass_fds=[failure_fd],
        )  # fmt: skip
    finally:
        os.close(log_descriptor)


@contextmanager
def _report_failure(home: Path, failure_fd: int | None) -> Generator[None]:
    """Pass a failure to the process that started the daemon, even if the log is not writable."""
    if failure_fd is not None:
        os.set_inheritable(failure_fd, False)
    try:
        yield
    except (RetinueError, OSError) as error:
        reported = error
        if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS:
            reported = DiskError(f"{error.filename or home}: {error.strerror}; {STORAGE_FIX_HINT}")
        if failure_fd is not None:
            os.pwrite(failure_fd, str(reported).encode("utf-8", "replace")[:MAX_FAILURE_BYTES], 0)
        raise reported from error.__cause__ if reported is error else error


async def _print_page_link(home: Path, terminal: Terminal) -> int:
    link = await daemon_client.request_json(home, "POST", "/api/links")
    if link is None:
        raise Failed("No daemon is running. Start one with `retinue serve --detach`, which prints the link.")
    terminal.print_facts(link)
    return 0


async def _stop_daemon(home: Path, terminal: Terminal) -> int:
    facts = await daemon_client.stop_daemon(home)
    if facts is None:
        terminal.print_note("No daemon is running.")
        if terminal.json:
            terminal.print_json({"stopped": False})
        return 0
    while await daemon_client.ping_daemon(home) or ProcessLock.is_alive(home, facts["owner"]):  # noqa: ASYNC110  (another process ends)
        await asyncio.sleep(0.05)
    terminal.print_facts(facts | {"stopped": True})
    return 0
