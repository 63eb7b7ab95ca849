"""A long-running program with line-based input and output, run under the launcher.

When the program or this process ends, everything the program started is killed.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

from retinue.errors import Failed
from retinue.sandbox.landlock import launcher_command
from retinue.sandbox.launcher import descendant_pids
from retinue.sandbox.shell import INHERITED_VARIABLES
from retinue.search_path import absolute_entries

MAX_LINE_BYTES = 8_000_000
"""Bytes of one line: a program that writes a longer one is ended."""
MAX_UNREAD_BYTES = 16_000_000
"""Bytes that may wait for the program to read them."""
MAX_STDERR_BYTES = 8_000
"""Bytes of standard error that are kept: the newest."""
LAUNCHER_TIMEOUT_S = 1.5
"""Seconds that the launcher has to end everything before it is killed itself."""

_MAX_STATUS_BYTES = 4_000


class LineProcess(asyncio.SubprocessProtocol):
    """A running program whose output the event loop reads as it arrives, so that neither side blocks."""

    def __init__(
        self, on_line: Callable[[bytes], None], on_exit: Callable[[str], None], status_fd: int
    ) -> None:
        self._on_line = on_line
        self._on_exit = on_exit
        self._status_fd = status_fd
        self._partial_line = bytearray()
        self._stderr_tail = bytearray()
        self._stop_reason = ""
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error."""
        return bytes(self._stderr_tail).decode("utf-8", "replace").strip()

    def send(self, line: bytes) -> None:
        """Send one line; does nothing if the program has ended, which `on_exit` reports."""
        if (pipe := self._stdin()) is None or pipe.is_closing() or self._stop_reason:
            return
        pipe.write(line + b"\n")
        if pipe.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.abort("it does not read its input")

    def abort(self, reason: str) -> None:
        """End the program, with everything it started, without waiting: `on_exit` reports the end."""
        self._stop_reason = f"{reason}, so it was stopped"
        self._partial_line.clear()
        self._terminate()

    async def close(self, *, grace_s: float = 0.0) -> None:
        """End the program and return when none of its processes is alive.

        With `grace_s`, its input is closed first and it may end by itself.
        """
        if (pipe := self._stdin()) is not None:
            pipe.close()
        if not await self._has_exited(grace_s):
            self._terminate()
        if not await self._has_exited(LAUNCHER_TIMEOUT_S):
            self._kill()
            await self._has_exited(LAUNCHER_TIMEOUT_S)
        if self._transport is not None:
            self._transport.close()

    # callbacks of asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._split_lines(data)
        else:
            self._stderr_tail += data[-MAX_STDERR_BYTES:]
            del self._stderr_tail[:-MAX_STDERR_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (the launcher reports how it ended)
        exit_code = _read_exit_code(self._status_fd)
        os.close(self._status_fd)
        self._exited.set()
        self._on_exit(
            self._stop_reason or ("it ended" if exit_code is None else f"it exited with code {exit_code}")
        )

    def _split_lines(self, data: bytes) -> None:
        if self._stop_reason:
            return
        if b"\n" not in data:
            self._partial_line += data
        else:
            first, *middle, rest = data.split(b"\n")
            lines = [bytes(self._partial_line) + first, *middle]
            self._partial_line = bytearray(rest)
            for line in lines:
                if line.strip():
                    self._on_line(line)
        if len(self._partial_line) > MAX_LINE_BYTES:
            self.abort(f"it wrote a line of more than {MAX_LINE_BYTES // 1_000_000} MB")

    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        return cast("asyncio.WriteTransport | None", pipe)

    async def _has_exited(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        return self._exited.is_set()

    def _terminate(self) -> None:
        """Ask the launcher to end everything."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.terminate()

    def _kill(self) -> None:
        if self._transport is None:
            return
        descendants = descendant_pids(self._transport.get_pid())
        with suppress(ProcessLookupError):
            self._transport.kill()
        for pid in descendants:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)


async def start_line_process(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: str,
    on_line: Callable[[bytes], None],
    on_exit: Callable[[str], None],
) -> LineProcess:
    """Start a program.

    `on_line` is called with each line of its output, `on_exit` once with the reason why it ended. `env` is
    complete.
    """
    command = launcher_command(argv, cwd=cwd, env=env, restrictions=None)
    status_fd, child_status = os.pipe()
    os.set_blocking(status_fd, False)
    launch_argv = (
        *command.argv[: command.launcher_argc],
        "--json-status-fd",
        str(child_status),
        *command.argv[command.launcher_argc :],
    )
    try:
        _, program = await asyncio.get_running_loop().subprocess_exec(
            lambda: LineProcess(on_line, on_exit, status_fd),
            *launch_argv,
            env=dict(command.env),
            pass_fds=(*command.fds, child_status),
            start_new_session=True,
        )
    except OSError as error:
        os.close(status_fd)
        raise Failed(f"{argv[0]} cannot be started ({error.strerror})") from error
    finally:
        for fd in (child_status, *command.fds):
            os.close(fd)
    return program


def build_environment(
    own_environment: Mapping[str, str], inherit: tuple[str, ...], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the machine's basic variables, those inherited by name, and the program's own.

    The PATH has no relative entry: what the program starts by name must not depend on the current folder.
    """
    inherited = {
        name: own_environment[name] for name in (*INHERITED_VARIABLES, *inherit) if name in own_environment
    }
    variables = inherited | dict(extra)
    return variables | ({"PATH": absolute_entries(variables["PATH"])} if "PATH" in variables else {})


def _read_exit_code(status_fd: int) -> int | None:
    """Read the exit code that the launcher reported; None if the program was killed or never started."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(os.read(status_fd, _MAX_STATUS_BYTES))["exit-code"])
    return None
