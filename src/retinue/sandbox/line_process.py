"""A program that stays and is spoken to line by line. The launcher holds it: nothing that it started outlives its end,
or ours."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

from retinue.errors import Failed
from retinue.sandbox.landlock import supervised
from retinue.sandbox.launcher import descendants
from retinue.sandbox.shell import HANDED_ON

MAX_LINE = 8_000_000
"""Bytes of one line: a program that says more at once is not heard to its end."""
MAX_UNREAD = 16_000_000
"""Bytes that wait for it to read them."""
LAST_WORDS = 8_000
"""Bytes of its standard error that are kept: the newest."""
PATIENCE = 1.5
"""Seconds that the launcher has to end all of it before it is killed itself."""

_STATUS = 4_000


class Program(asyncio.SubprocessProtocol):
    """What it says is taken in as it comes, by the loop: nobody has to wait for it, and it never waits for us."""

    def __init__(self, heard: Callable[[bytes], None], lost: Callable[[str], None], status: int) -> None:
        self._heard = heard
        self._lost = lost
        self._status = status
        self._line = bytearray()
        self._errors = bytearray()
        self._why = ""
        self._transport: asyncio.SubprocessTransport | None = None
        self._gone = asyncio.Event()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        return bytes(self._errors).decode("utf-8", "replace").strip()

    def send(self, line: bytes) -> None:
        """A program that is gone hears nothing; whoever waits for its answer is told by `lost`."""
        if (pipe := self._stdin()) is None or pipe.is_closing() or self._why:
            return
        pipe.write(line + b"\n")
        if pipe.get_write_buffer_size() > MAX_UNREAD:
            self.stop("it does not read what it is told")

    def stop(self, why: str) -> None:
        """Ends it at once, with all that it started, and nobody waits for that here: `lost` tells when it is done."""
        self._why = f"{why}, and was ended"
        self._line.clear()
        self._terminate()

    async def end(self, *, patience: float = 0.0) -> None:
        """Returns when nothing of it lives. With patience it is first let go by itself, by closing its input."""
        if (pipe := self._stdin()) is not None:
            pipe.close()
        if not await self._is_gone(patience):
            self._terminate()
        if not await self._is_gone(PATIENCE):
            self._kill()
            await self._is_gone(PATIENCE)
        if self._transport is not None:
            self._transport.close()

    # what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._take(data)
        else:
            self._errors += data[-LAST_WORDS:]
            del self._errors[:-LAST_WORDS]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (how it ended is told by the launcher)
        code = _exit_code(self._status)
        os.close(self._status)
        self._gone.set()
        self._lost(self._why or ("it ended" if code is None else f"it ended with exit code {code}"))

    def _take(self, data: bytes) -> None:
        if self._why:
            return
        if b"\n" not in data:
            self._line += data
        else:
            first, *middle, rest = data.split(b"\n")
            lines = [bytes(self._line) + first, *middle]
            self._line = bytearray(rest)
            for line in lines:
                if line.strip():
                    self._heard(line)
        if len(self._line) > MAX_LINE:
            self.stop(f"it said a line of more than {MAX_LINE // 1_000_000} MB")

    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        return cast("asyncio.WriteTransport | None", pipe)

    async def _is_gone(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    def _terminate(self) -> None:
        """The launcher hears it, and ends everything."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.terminate()

    def _kill(self) -> None:
        if self._transport is None:
            return
        left = descendants(self._transport.get_pid())
        with suppress(ProcessLookupError):
            self._transport.kill()
        for each in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, 9)


async def start(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: str,
    heard: Callable[[bytes], None],
    lost: Callable[[str], None],
) -> Program:
    """`heard` gets each line of its output, `lost` once why there will be no more. `env` is complete."""
    cell = supervised(argv, cwd=cwd, env=env, shut=None)
    status, status_there = os.pipe()
    os.set_blocking(status, False)
    words = (*cell.argv[: cell.head], "--json-status-fd", str(status_there), *cell.argv[cell.head :])
    try:
        _, program = await asyncio.get_running_loop().subprocess_exec(
            lambda: Program(heard, lost, status),
            *words,
            env=dict(cell.env),
            pass_fds=(*cell.fds, status_there),
            start_new_session=True,
        )
    except OSError as error:
        os.close(status)
        raise Failed(f"{argv[0]} cannot be started ({error.strerror})") from error
    finally:
        for fd in (status_there, *cell.fds):
            os.close(fd)
    return program


def found(command: str, env: Mapping[str, str]) -> str | None:
    """Where a program is: a whole path, or a name that the path of this environment leads to. Never relative: what is
    meant must not depend on where somebody happens to work."""
    if "/" in command:
        return command if os.path.isabs(command) and os.access(command, os.X_OK) else None  # noqa: PTH117  (text)
    places = [each for each in env.get("PATH", os.defpath).split(os.pathsep) if each.startswith("/")]
    return shutil.which(command, path=os.pathsep.join(places))


def environment(ours: Mapping[str, str], inherit: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    """A few words about the machine, what is handed on by name, and its own: nothing else of ours."""
    handed = {name: ours[name] for name in (*HANDED_ON, *inherit) if name in ours}
    return handed | dict(own)


def _exit_code(status: int) -> int | None:
    """What the launcher said of the program's end; None: it was ended, or never began."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(os.read(status, _STATUS))["exit-code"])
    return None
