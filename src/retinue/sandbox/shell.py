"""Run commands for one scope at this machine's sandbox level, or refuse to run them."""

import asyncio
import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from retinue.domain.io_results import CommandResult
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.interfaces import Shell
from retinue.sandbox import process
from retinue.sandbox.bubblewrap import bubblewrap_command
from retinue.sandbox.command import SandboxedCommand
from retinue.sandbox.git.failure_advice import git_failure_advice
from retinue.sandbox.landlock import landlock_command, unsandboxed_command
from retinue.sandbox.output_capture import MAX_FILE_BYTES, OpenOutputFile
from retinue.sandbox.probe import ProbeResult, SandboxProbe
from retinue.sandbox.protected_file_monitor import ReservedMonitor, wait_for_monitor

MAX_COMMAND_BYTES = 120_000
"""Maximum length of one argument that the kernel accepts."""

INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
"""Variables of our environment that a command at level none inherits."""

_SET_DUMPABLE = 4


def make_shell_factory(
    probe: SandboxProbe, env: Mapping[str, str], records_folder: str = ""
) -> Callable[[Scope], Shell]:
    """Return a function that makes the shell of a scope.

    The sandbox level is detected once. `records_folder` contains the command records that must survive a kill.
    """

    def shell(scope: Scope) -> Shell:
        async def run(command: str, timeout_s: float) -> CommandResult:
            _check_command(command)
            sandbox = await probe.result()
            private_tmp = await asyncio.to_thread(_prepare_private_tmp, scope)
            monitor = await wait_for_monitor() if sandbox.level is SandboxLevel.STRICT else None
            prepared = await _build_command(
                lambda: sandbox_command(sandbox, scope, command, env, records_folder, monitor)
            )
            result = await process.run_command(prepared, timeout_s, _output_file_opener(private_tmp))
            return _command_result(result, sandbox.level, scope)

        return run

    return shell


def sandbox_command(
    sandbox: ProbeResult,
    scope: Scope,
    command: str,
    env: Mapping[str, str],
    records_folder: str = "",
    monitor: ReservedMonitor | None = None,
) -> SandboxedCommand:
    if sandbox.level is SandboxLevel.STRICT:
        return bubblewrap_command(
            scope, command, bwrap=sandbox.bwrap_path, records_folder=records_folder, monitor=monitor
        )
    if sandbox.level is SandboxLevel.LANDLOCK:
        return landlock_command(scope, command, seccomp_filter=sandbox.seccomp_filter)
    _protect_own_memory()
    return unsandboxed_command(scope, command, env=_inherited_environment(env, scope.root))


def _check_command(command: str) -> None:
    """Refuse a command that the system cannot take as one argument."""
    try:
        raw = command.encode()
    except UnicodeEncodeError as error:
        raise Failed("the command is not valid Unicode. Remove the lone surrogates") from error
    if not command.strip():
        raise Failed("the command is empty")
    if b"\0" in raw:
        raise Failed("the command contains a NUL character. Remove it")
    if len(raw) > MAX_COMMAND_BYTES:
        raise Failed(
            f"the command is {len(raw):,} bytes long; the limit is {MAX_COMMAND_BYTES:,}. "
            "Write it to a file and run the file"
        )


async def _build_command(build: Callable[[], SandboxedCommand]) -> SandboxedCommand:
    """Build a command in a thread, because it scans the workspace.

    If the caller is cancelled, the command is discarded.
    """
    building = asyncio.ensure_future(asyncio.to_thread(build))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        building.add_done_callback(_discard_command)
        raise
    except OSError as error:
        raise Failed(f"the command was not run: its sandbox cannot be created ({error})") from error


def _discard_command(building: "asyncio.Future[SandboxedCommand]") -> None:
    if building.cancelled() or building.exception() is not None:
        return
    command = building.result()
    for fd in command.fds:
        os.close(fd)
    building.get_loop().run_in_executor(None, command.clean_up)


def _command_result(result: process.ProcessResult, level: SandboxLevel, scope: Scope) -> CommandResult:
    if result.exit_code is None and not result.timed_out and not result.killed:
        message = " ".join(result.output.text().split())[:1000] or "no error message"
        raise Failed(
            f"the command was not run: the sandbox (level {level}) could not be created: {message}. "
            "Run `retinue doctor` to see what is missing"
        )
    output = result.output
    notes = result.notes
    if output.file_name and not output.is_file_complete:
        notes = (*notes, f"{output.file_name} contains only the first {MAX_FILE_BYTES // 1_000_000} MB")
    text = output.text()
    if level is SandboxLevel.STRICT and (advice := git_failure_advice(text, scope)):
        notes = (*notes, advice)
    return CommandResult(
        exit_code=result.exit_code,
        output=text,
        sandbox_level=level,
        duration_ms=result.duration_ms,
        timed_out=result.timed_out,
        full_output_path=output.file_name,
        notes=notes,
    )


def _prepare_private_tmp(scope: Scope) -> str:
    """Create the real folder behind the agent's /tmp on first use; empty if the agent has none."""
    if not scope.tmp_folder or not scope.check_path(TMP, "write").ok:
        return ""
    try:
        Path(scope.tmp_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(
            f"the command was not run: {scope.tmp_folder} cannot be created ({error.strerror})"
        ) from error
    return scope.tmp_folder


def _output_file_opener(private_tmp: str) -> OpenOutputFile | None:
    """Return an opener for a new output file.

    Its name is unpredictable: the command may write to the same folder.
    """

    def open_output_file() -> tuple[int, str]:
        name = f"output-{os.urandom(4).hex()}.txt"
        folder = os.open(private_tmp, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(name, flags, 0o600, dir_fd=folder), f"{TMP}/{name}"
        finally:
            os.close(folder)

    return open_output_file if private_tmp else None


def _inherited_environment(env: Mapping[str, str], root: str) -> dict[str, str]:
    """Return the inherited variables. PATH never contains the workspace."""
    variables = {name: env[name] for name in INHERITED_VARIABLES if name in env}
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    outside = [
        folder
        for folder in folders
        if folder.startswith("/") and not f"{os.path.realpath(folder)}/".startswith(f"{root.rstrip('/')}/")
    ]
    return variables | {"PATH": os.pathsep.join(outside) or os.defpath, "TERM": "dumb"}


@cache
def _protect_own_memory() -> None:
    """Keep unsandboxed commands from reading our memory and environment, which contain keys."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
