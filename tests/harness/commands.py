"""Commands of ours as tests start them: real processes of the test's own, begun by one that has loaded all of it before.

A process is a child of the test, with a number, a session and signals of its own, and it is handled by what `subprocess`
and `asyncio.subprocess` offer. Only the loading is done once for all tests of a worker, and not a thousand times. Tests
about starting itself start by `sys.executable`; with COLD_STARTS in the environment, all do."""

import asyncio
import fcntl
import inspect
import json
import os
import platform
import socket
import subprocess
import sys
import termios
import threading
from asyncio import unix_events
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from warm import CLONE, SIZE

T = TypeVar("T")
RETINUE = ("-m", "retinue")
LOCALE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE")
STREAM_LIMIT = 2**16
_Transport: Any = vars(unix_events)["_UnixSubprocessTransport"]
_WAITING_TASKS: set[asyncio.Task[None]] = set()
_EXECUTE_CHILD_PARAMETERS = list(inspect.signature(vars(subprocess.Popen)["_execute_child"]).parameters)[1:]


class WarmStarter:
    """The warm process of this worker. The first who needs it starts it, and it ends with the worker."""

    def __init__(self) -> None:
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether all that an interpreter reads only when it starts is as it was for the warm one."""
        odd = [name for name in env if name.startswith("PYTHON") and name != "PYTHONPATH"]
        cold = "COLD_STARTS" in os.environ or "COVERAGE_PROCESS_START" in env
        same = all(env.get(name) == self.env.get(name) for name in LOCALE)
        return platform.machine() in CLONE and same and not odd and not cold

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """The number of a new process, once it stands on its own."""
        body = json.dumps(request).encode()
        heard, told = socket.socketpair()
        with heard:
            with told, self.lock:
                line = self.socket = self.socket or self._start_warm_process()
                socket.send_fds(line, [SIZE.pack(len(body))], [told.fileno(), *streams])
                line.sendall(body)
            answer = heard.recv(SIZE.size)
        assert answer, "the new process ended at once, and said why on the standard error that it was given"
        return SIZE.unpack(answer)[0]

    def _start_warm_process(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, str(Path(__file__).with_name("warm.py")), str(theirs.fileno())]
            self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=self.env)
        return ours


STARTER = WarmStarter()


class WarmProcess(subprocess.Popen[bytes]):
    """A program of Python's, by the words that follow its name. With `terminal`, its standard input is one, and its own."""

    def __init__(self, words: Sequence[str], *, terminal: bool = False, **how: Any) -> None:
        self.terminal = terminal
        if terminal:
            how |= {"start_new_session": True, "preexec_fn": self._acquire_terminal}
        super().__init__([sys.executable, *words], **how)

    def _execute_child(self, *arguments: Any) -> None:
        """Instead of a fork and the start of an interpreter, which are what it overrides."""
        parts = dict(zip(_EXECUTE_CHILD_PARAMETERS, arguments, strict=True))
        env = os.environ if parts["env"] is None else parts["env"]
        if not STARTER.can_start(env):
            overridden: Any = super()
            overridden._execute_child(*arguments)
            return
        assert not parts["pass_fds"], "the warm process passes nothing but standard streams on"
        assert parts["preexec_fn"] in (None, self._acquire_terminal), (
            "nothing of a test's can run in the warm process"
        )
        ends = [parts[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "words": parts["args"][1:],
            "env": dict(env),
            "cwd": str(Path(parts["cwd"] or ".").absolute()),
            "umask": parts["umask"],
            "session": parts["start_new_session"],
            "terminal": self.terminal,
        }
        self.pid = STARTER.start(request, [own if end < 0 else end for own, end in enumerate(ends)])
        self._child_created = True
        closing: Any = self
        closing._close_pipe_fds(
            *arguments[
                _EXECUTE_CHILD_PARAMETERS.index("p2cread") : _EXECUTE_CHILD_PARAMETERS.index("errwrite") + 1
            ]
        )

    @staticmethod
    def _acquire_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


def run_process(
    words: Sequence[str], *, stdin: bytes = b"", timeout: float, **how: Any
) -> "subprocess.CompletedProcess[bytes]":
    """One program to its end."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with WarmProcess(words, **pipes, **how) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def require_pipe(stream: T | None) -> T:
    """Return a standard stream of a process, which the test opened as a pipe."""
    assert stream is not None
    return stream


async def start_process(words: Sequence[str], *, limit: int = STREAM_LIMIT, **how: Any) -> Process:
    """One program that goes on beside the test, as `asyncio.create_subprocess_exec` would start it."""
    loop = asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(limit=limit, loop=loop)
    waiter = loop.create_future()
    streams = {name: how.pop(name, None) for name in ("stdin", "stdout", "stderr")}
    transport = _WarmTransport(loop, protocol, words, shell=False, bufsize=0, waiter=waiter, **streams, **how)
    ended = os.pidfd_open(transport.get_pid())
    loop.add_reader(ended, transport.on_exit, ended)
    await waiter
    return kill_with_loop(Process(transport, protocol, loop))


def kill_with_loop(process: Process) -> Process:
    """What a test that failed leaves of it ends with the test's loop: else the next test would be blamed for it."""
    _WAITING_TASKS.add(keeping := asyncio.create_task(_wait_or_kill(process)))
    keeping.add_done_callback(_WAITING_TASKS.discard)
    return process


async def _wait_or_kill(process: Process) -> None:
    """A loop that closes cancels its tasks, and waits for them."""
    try:
        await process.wait()
    except asyncio.CancelledError:
        vars(process)["_transport"].close()
        await process.wait()
        raise


class _WarmTransport(_Transport):
    """What asyncio makes of a process, for one of ours."""

    def _start(self, args: Sequence[str], **how: Any) -> None:
        self._proc = WarmProcess(args, **how)

    def on_exit(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        # What it said last is read before it has ended.
        self._loop.call_soon(self._process_exited, self._proc.wait())
