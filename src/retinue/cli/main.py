"""The way in: finds the command, and turns whatever goes wrong into one sentence and an exit code."""

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
from retinue.cli.options import everywhere
from retinue.cli.ui.terminal import Terminal
from retinue.config.load import load
from retinue.errors import Cancelled, RetinueError, Usage

DAEMON = "retinue.daemon"
"""What a command finds the daemon's program by: a function that loads it."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class Front(click.Group):
    """The table of commands as click wants it. A module is imported when its command is named."""

    def __init__(self, places: Mapping[str, str], overview: str, daemon: str) -> None:
        super().__init__(
            "retinue",
            params=[*everywhere(), _version()],
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        self.places = places
        self.daemon = daemon
        self.overview = overview

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        ctx = super().make_context(*args, **kwargs)
        ctx.meta[DAEMON] = lambda: _loaded(self.daemon)
        return ctx

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (as click calls it)
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (as click calls it)
        if cmd_name not in self.places:
            return None
        command = _loaded(self.places[cmd_name])
        assert isinstance(command, click.Command)  # noqa: S101  (the table names commands)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.places or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"there is no command {name!r}{_nearest(name, list(self.places))}", ctx)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002  (as click calls it)
        return self.overview


def _loaded(place: str) -> Any:
    """What stands at `module:name`."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def play(places: Mapping[str, str], overview: str, arguments: Sequence[str], *, daemon: str = "") -> int:
    """Runs one command and answers with its exit code. A defect is left to the hook, which keeps its details. `daemon`
    is where the program is that `serve` starts: one way in does not know another."""
    _no_core()
    terminal = Terminal.here(json=_before_dashes("--json", arguments))
    sys.excepthook = _keeper(terminal, arguments)
    try:
        code = Front(places, overview, daemon).main(
            list(arguments), prog_name="retinue", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.note(error.format_message(), colour="0")
        return Usage.exit_code
    except click.ClickException as error:
        terminal.failed(Usage.code, _sentence(error))
        return Usage.exit_code
    except RetinueError as error:
        terminal.failure(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        terminal.failed(Cancelled.code, "cancelled")
        return Cancelled.exit_code
    except BrokenPipeError:
        # Whoever read the output has gone; the interpreter must not complain about it while it leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        _let_go()
    return code if isinstance(code, int) else 0


def _let_go() -> None:
    """What a terminal that was closed did not take is nobody's any more, and no failure of the command's."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _no_core() -> None:
    """A process that dies badly leaves no image of itself: the keys are in it."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _keeper(terminal: Terminal, arguments: Sequence[str]) -> Hook:
    """What happens to an exception that nobody foresaw: the details go to a file, a sentence to the person."""

    def keep(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        redact = _redactor()
        details = redact("".join(traceback.format_exception(kind, error, trace)))
        if os.environ.get("RETINUE_DEBUG"):
            terminal.note(details, colour="0")
            return
        what = f"unexpected {kind.__name__}: {' '.join(redact(str(error)).split())[:200]}".rstrip(": ")
        terminal.failed("defect", f"{what}; this is a defect, and {_kept(details, _home(arguments))}")

    return keep


def _kept(details: str, home: str | None) -> str:
    again = "RETINUE_DEBUG=1 shows the details"
    if home is None:
        return again
    from retinue.app.log_file import keep_details  # noqa: PLC0415  (start-up is a promise)

    name = f"defect-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{os.getpid()}.txt"
    try:
        path = keep_details(Path(home), name, details)
    except OSError:
        return again
    return f"its details are in {path}"


def _redactor() -> Callable[[str], str]:
    """Whatever was in hand when things went wrong, a request's headers too, stands in a traceback."""
    from retinue.domain.redaction import Redactor  # noqa: PLC0415  (start-up is a promise)

    try:
        return Redactor(load(os.environ).secrets())
    except RetinueError:
        return Redactor(())


def _home(arguments: Sequence[str]) -> str | None:
    for at, argument in enumerate(arguments):
        if argument.startswith("--home="):
            return argument.removeprefix("--home=")
        if argument == "--home" and at + 1 < len(arguments):
            return arguments[at + 1]
    try:
        return str(load(os.environ).home)
    except RetinueError:
        return None


def _sentence(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    path = "retinue" if ctx is None else ctx.command_path
    return f"{message.rstrip('.')} ({path} --help says more)"


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib  # noqa: PLC0415  (start-up is a promise, and most words are right)

    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _before_dashes(flag: str, arguments: Sequence[str]) -> bool:
    """True when a flag is among the options, not among the words after `--`."""
    return flag in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _version() -> click.Option:
    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            terminal = Terminal.here(json=bool(ctx.meta.get("retinue.json")))
            terminal.facts({"version": __version__})
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, callback=show, help="Print the version and leave."
    )
