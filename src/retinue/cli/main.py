"""Entry point of the command line: finds the command and turns errors into exit codes."""

import errno
import importlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from retinue import __version__
from retinue.cli.options import global_options
from retinue.cli.ui.terminal import Terminal
from retinue.config.load import load_config
from retinue.errors import BUG_MESSAGE, Cancelled, RetinueError, UsageError

DAEMON_META_KEY = "retinue.daemon"
"""Key in the click context's meta: a function that loads the daemon's `serve`."""

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class LazyCommandGroup(click.Group):
    """The top-level click group. A command's module is imported only when the command is named."""

    def __init__(self, command_paths: Mapping[str, str], overview: str, daemon_path: str) -> None:
        super().__init__(
            "retinue",
            params=[*global_options(), _version_option()],
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        self.command_paths = command_paths
        self.daemon_path = daemon_path
        self.overview = overview

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        ctx = super().make_context(*args, **kwargs)
        ctx.meta[DAEMON_META_KEY] = lambda: _load_object(self.daemon_path)
        return ctx

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (as click calls it)
        return list(self.command_paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (as click calls it)
        if cmd_name not in self.command_paths:
            return None
        command = _load_object(self.command_paths[cmd_name])
        assert isinstance(command, click.Command)  # noqa: S101  (the table names commands)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.command_paths or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"unknown command {name!r}{_suggestion(name, list(self.command_paths))}", ctx)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002  (as click calls it)
        return self.overview


def _load_object(object_path: str) -> Any:
    """Import the object at `module:name`."""
    module, name = object_path.split(":")
    return getattr(importlib.import_module(module), name)


def run_cli(
    command_paths: Mapping[str, str], overview: str, arguments: Sequence[str], *, daemon_path: str = ""
) -> int:
    """Run one command and return its exit code.

    Unexpected exceptions are left to the except hook, which saves their details. `daemon_path` names the
    daemon that `serve` starts: the command line does not import the server package.
    """
    _disable_core_dumps()
    terminal = Terminal.from_std_streams(json=_has_flag("--json", arguments))
    sys.excepthook = _make_except_hook(terminal, arguments)
    try:
        code = LazyCommandGroup(command_paths, overview, daemon_path).main(
            list(arguments), prog_name="retinue", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.print_note(error.format_message(), colour="0")
        return UsageError.exit_code
    except click.ClickException as error:
        terminal.print_error_message(UsageError.code, _usage_error_text(error))
        return UsageError.exit_code
    except RetinueError as error:
        terminal.print_error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        terminal.print_error_message(Cancelled.code, "cancelled")
        return Cancelled.exit_code
    except BrokenPipeError:
        # The reader of the output is gone; the interpreter must not report that on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _flush_output()
    return code if isinstance(code, int) else 0


def _flush_output() -> None:
    """Flush the output streams, ignoring output that a closed terminal did not take."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _disable_core_dumps() -> None:
    """Disable core dumps: process memory holds API keys."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))


def _make_except_hook(terminal: Terminal, arguments: Sequence[str]) -> ExceptHook:
    """Return an except hook that saves the traceback to a file and prints one sentence."""

    def report_crash(
        error_type: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        redact = _make_redactor()
        details = redact("".join(traceback.format_exception(error_type, error, trace)))
        if os.environ.get("RETINUE_DEBUG"):
            terminal.print_note(details, colour="0")
            return
        summary = f"unexpected {error_type.__name__}: {' '.join(redact(str(error)).split())[:200]}".rstrip(
            ": "
        )
        terminal.print_error_message(
            "internal_error",
            f"{summary}. {BUG_MESSAGE}; {_save_crash_details(details, _home_from_arguments(arguments))}",
        )

    return report_crash


def _save_crash_details(details: str, home: str | None) -> str:
    debug_hint = "set RETINUE_DEBUG=1 to see the details"
    if home is None:
        return debug_hint
    from retinue.app.log_file import CRASH_DETAILS_PREFIX, save_details  # noqa: PLC0415  (fast start-up)

    name = f"{CRASH_DETAILS_PREFIX}{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{os.getpid()}.txt"
    try:
        path = save_details(Path(home), name, details)
    except OSError:
        return debug_hint
    return f"the details are in {path}"


def _make_redactor() -> Callable[[str], str]:
    """Return a redactor for tracebacks, which may contain anything, including request headers."""
    from retinue.domain.redaction import Redactor  # noqa: PLC0415  (fast start-up)

    try:
        return Redactor(load_config(os.environ).secrets())
    except RetinueError:
        return Redactor(())


def _home_from_arguments(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith("--home="):
            return argument.removeprefix("--home=")
        if argument == "--home" and index + 1 < len(arguments):
            return arguments[index + 1]
    try:
        return str(load_config(os.environ).home)
    except RetinueError:
        return None


def _usage_error_text(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = "retinue" if ctx is None else ctx.command_path
    return f"{message.rstrip('.')} (see {path} --help)"


def _suggestion(name: str, known: Sequence[str]) -> str:
    import difflib  # noqa: PLC0415  (fast start-up; most names are spelled correctly)

    matches = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _has_flag(flag: str, arguments: Sequence[str]) -> bool:
    """Return whether a flag is among the options, not among the arguments after `--`."""
    return flag in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _version_option() -> click.Option:
    def print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            terminal = Terminal.from_std_streams(json=bool(ctx.meta.get("retinue.json")))
            terminal.print_facts({"version": __version__})
            ctx.exit()

    return click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        callback=print_version,
        help="Print the version and exit.",
    )
