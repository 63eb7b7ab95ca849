"""Start commands in tests: real processes, forked from one that has already imported everything.

Each process is a child of the test with its own pid, session and signals, and is used through `subprocess` and
`asyncio.subprocess`. Only the imports are done once per test worker. Tests about the start itself use `sys.executable`;
with COLD_STARTS in the environment, all tests do.
"""

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

from warm import CLONE, LENGTH

T = TypeVar("T")
RETINUE = ("-m", "retinue")
LOCALE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE")
STREAM_LIMIT = 2**16
_Transport: Any = vars(unix_events)["_UnixSubprocessTransport"]
_WAITING_TASKS: set[asyncio.Task[None]] = set()
_EXECUTE_CHILD_PARAMETERS = list(inspect.signature(vars(subprocess.Popen)["_execute_child"]).parameters)[1:]


class WarmStarter:
    """The warm process of this test worker; it is started on first use and ends with the worker."""

    def __init__(self) -> None:
        inherited = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        self.env = {name: os.environ[name] for name in inherited if name in os.environ}
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Return whether everything that an interpreter reads only at its start equals that of the warm process."""
        python_settings = [name for name in env if name.startswith("PYTHON") and name != "PYTHONPATH"]
        cold = "COLD_STARTS" in os.environ or "COVERAGE_PROCESS_START" in env
        same = all(env.get(name) == self.env.get(name) for name in LOCALE)
        return platform.machine() in CLONE and same and not python_settings and not cold

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Start a process and return its pid, once it is independent."""
        body = json.dumps(request).encode()
        receiver, sender = socket.socketpair()
        with receiver:
            with sender, self.lock:
                connection = self.socket = self.socket or self._start_warm_process()
                socket.send_fds(connection, [LENGTH.pack(len(body))], [sender.fileno(), *streams])
                connection.sendall(body)
            answer = receiver.recv(LENGTH.size)
        assert answer, "the new process ended at once; its standard error says why"
        return LENGTH.unpack(answer)[0]

    def _start_warm_process(self) -> socket.socket:
        controller, peer = socket.socketpair()
        with peer:
            arguments = [sys.executable, str(Path(__file__).with_name("warm.py")), str(peer.fileno())]
            self.process = subprocess.Popen(arguments, pass_fds=[peer.fileno()], env=self.env)
        return controller


STARTER = WarmStarter()


class WarmProcess(subprocess.Popen[bytes]):
    """A Python program with these arguments; with `terminal`, its standard input is its controlling terminal."""

    def __init__(self, arguments: Sequence[str], *, terminal: bool = False, **options: Any) -> None:
        self.terminal = terminal
        if terminal:
            options |= {"start_new_session": True, "preexec_fn": self._acquire_terminal}
        super().__init__([sys.executable, *arguments], **options)

    def _execute_child(self, *arguments: Any) -> None:
        """Override the fork and start of an interpreter with a request to the warm process."""
        parameters = dict(zip(_EXECUTE_CHILD_PARAMETERS, arguments, strict=True))
        env = os.environ if parameters["env"] is None else parameters["env"]
        if not STARTER.can_start(env):
            overridden: Any = super()
            overridden._execute_child(*arguments)
            return
        assert not parameters["pass_fds"], "the warm process passes on only standard streams"
        assert parameters["preexec_fn"] in (None, self._acquire_terminal), (
            "no code of a test can run in the warm process"
        )
        pipe_ends = [parameters[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "arguments": parameters["args"][1:],
            "env": dict(env),
            "cwd": str(Path(parameters["cwd"] or ".").absolute()),
            "umask": parameters["umask"],
            "session": parameters["start_new_session"],
            "terminal": self.terminal,
        }
        self.pid = STARTER.start(
            request, [inherited_fd if end < 0 else end for inherited_fd, end in enumerate(pipe_ends)]
        )
        self._child_created = True
        popen: Any = self
        popen._close_pipe_fds(
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
    arguments: Sequence[str], *, stdin: bytes = b"", timeout: float, **options: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with WarmProcess(arguments, **pipes, **options) as process:
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


async def start_process(arguments: Sequence[str], *, limit: int = STREAM_LIMIT, **options: Any) -> Process:
    """Start a program that runs alongside the test, like `asyncio.create_subprocess_exec`."""
    loop = asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(limit=limit, loop=loop)
    waiter = loop.create_future()
    streams = {name: options.pop(name, None) for name in ("stdin", "stdout", "stderr")}
    transport = _WarmTransport(
        loop, protocol, arguments, shell=False, bufsize=0, waiter=waiter, **streams, **options
    )
    pidfd = os.pidfd_open(transport.get_pid())
    loop.add_reader(pidfd, transport.on_exit, pidfd)
    await waiter
    return kill_with_loop(Process(transport, protocol, loop))


def kill_with_loop(process: Process) -> Process:
    """Kill the process when the event loop of the test ends, so that a failed test leaves none behind."""
    _WAITING_TASKS.add(task := asyncio.create_task(_wait_or_kill(process)))
    task.add_done_callback(_WAITING_TASKS.discard)
    return process


async def _wait_or_kill(process: Process) -> None:
    """Wait for a process, and kill it when the closing loop cancels this task."""
    try:
        await process.wait()
    except asyncio.CancelledError:
        vars(process)["_transport"].close()
        await process.wait()
        raise


class _WarmTransport(_Transport):
    """The asyncio transport of a process, for warm processes."""

    def _start(self, args: Sequence[str], **options: Any) -> None:
        self._proc = WarmProcess(args, **options)

    def on_exit(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        # Read its last output before reporting its exit.
        self._loop.call_soon(self._process_exited, self._proc.wait())
