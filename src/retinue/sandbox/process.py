"""Run a sandboxed command: read its output, end it on timeout or cancellation, and clean up."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from retinue.errors import Failed
from retinue.sandbox.command import SandboxedCommand, no_clean_up
from retinue.sandbox.launcher import descendant_pids
from retinue.sandbox.output_capture import OpenOutputFile, OutputCapture

T = TypeVar("T")
S = TypeVar("S", bound="OutputSink")

LAUNCHER_TIMEOUT_S = 1.5
"""Seconds that the launcher has to end the whole command before it is killed itself."""

MONITOR_DELAY_S = 0.02
"""Seconds: a shorter command is checked only after it has ended."""

_CHUNK_BYTES = 1_000_000
_MAX_STATUS_BYTES = 64_000
_PIPE_BYTES = 256_000
"""Pipe size: large, so that a command with much output rarely wakes the loop."""
_POLL_S = 0.01


class ProcessResult(Struct, frozen=True, kw_only=True):
    """Result of a sandboxed command."""

    exit_code: int | None
    """None: the command did not end by itself, or never started."""
    output: OutputCapture
    duration_ms: int
    timed_out: bool = False
    killed: bool = False
    """Ended from outside, or by the kernel."""
    notes: tuple[str, ...] = ()


async def run_command(
    command: SandboxedCommand, timeout_s: float, open_output_file: OpenOutputFile | None = None
) -> ProcessResult:
    """Run a command; return, or raise, when none of its processes is alive.

    A cancellation ends the command first and is then raised.
    """
    started = perf_counter()
    timed_out = False
    try:
        running = _RunningCommand(command, OutputCapture(open_output_file))
    except Failed:
        await finish_despite_cancel(asyncio.to_thread(command.clean_up))
        raise
    try:
        async with asyncio.timeout(timeout_s):
            await running.wait_for_exit()
    except TimeoutError:
        timed_out = True
    finally:
        notes = await finish_despite_cancel(running.finish())
    exit_code = None if timed_out else running.exit_code
    duration_ms = round((perf_counter() - started) * 1000)
    return ProcessResult(
        exit_code=exit_code,
        output=running.output,
        duration_ms=duration_ms,
        timed_out=timed_out,
        killed=running.was_killed,
        notes=notes,
    )


class OutputSink(Protocol):
    """Receiver of a process's output, chunk by chunk."""

    def write(self, piece: bytes, /) -> None: ...
    def close(self) -> None: ...


class StreamedProcess:
    """A command whose output is streamed while it runs, and which another task may end."""

    def __init__(self, command: SandboxedCommand, stdout: OutputSink, stderr: OutputSink) -> None:
        self._command = command
        self._running = _RunningCommand(command, stdout, stderr)
        self.end_requested = False

    async def wait(
        self, open_network: Callable[[int], AbstractAsyncContextManager[None]]
    ) -> tuple[int | None, tuple[str, ...]]:
        """Wait for the end; return the exit code and the cleanup notes.

        Returns when none of its processes is alive. The command starts when its network is open. A
        cancellation ends the command first and is then raised.
        """
        notes: tuple[str, ...] = ()
        try:
            if self._command.start_gate_fd < 0:
                await self._running.wait_for_exit()
            elif (pid := await self._running.wait_for_start()) is not None:
                async with open_network(pid):
                    with suppress(BrokenPipeError):  # the process is already gone
                        os.write(self._command.start_gate_fd, b"go")
                    await self._running.wait_for_exit()
        finally:
            notes = await finish_despite_cancel(self._running.finish())
        return (None if self._running.was_killed else self._running.exit_code), notes

    @property
    def was_killed(self) -> bool:
        return self._running.was_killed

    async def terminate(self) -> None:
        self.end_requested = True
        await finish_despite_cancel(self._running.stop())


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Finish the coroutine even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancellation = error
    if cancellation is not None:
        raise cancellation
    return task.result()


class _RunningCommand(Generic[S]):
    """A started command.

    The event loop reads the pipes. The loop's own thread starts the program, because a program that asked to
    die with its parent dies with the thread that started it.
    """

    def __init__(self, command: SandboxedCommand, output: S, stderr: OutputSink | None = None) -> None:
        self.output = output
        self._stderr = stderr
        self.exit_code: int | None = None
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._status_buffer = bytearray()
        self._first_pidfd: int | None = None
        """Descriptor of the first process inside, if the launcher reported one."""
        self._first_pid: asyncio.Future[int] = self._loop.create_future()
        self._process, self._stdout_fd, self._status_fd, self._stderr_fd = _spawn(command)
        self._exit_task = self._loop.create_task(_wait_exit(self._process))
        self._loop.add_reader(self._stdout_fd, self._read_output)
        self._loop.add_reader(self._status_fd, self._read_status)
        if self._stderr_fd is not None:
            self._loop.add_reader(self._stderr_fd, self._read_stderr)
        if command.ready_fd >= 0:
            self._loop.add_reader(command.ready_fd, self._let_begin)
        self._stop_monitor = no_clean_up
        self._monitor_timer = self._loop.call_later(MONITOR_DELAY_S, self._start_monitor)

    @property
    def was_killed(self) -> bool:
        return (self._process.returncode or 0) < 0

    async def wait_for_exit(self) -> None:
        """Wait until the launcher has exited."""
        await asyncio.shield(self._exit_task)

    async def wait_for_start(self) -> int | None:
        """Return the first process inside; None if there will be none."""
        await asyncio.wait({self._first_pid, self._exit_task}, return_when=asyncio.FIRST_COMPLETED)
        return self._first_pid.result() if self._first_pid.done() else None

    async def stop(self) -> None:
        """End the command and wait until it has exited."""
        if not self._exit_task.done():
            await self._terminate()
        await asyncio.shield(self._exit_task)

    async def finish(self) -> tuple[str, ...]:
        """End what is still alive, read the remaining output, and return the cleanup notes."""
        try:
            if not self._exit_task.done():
                await self._terminate()
            await self._exit_task
            await self._wait_until_empty()
        finally:
            self._monitor_timer.cancel()
            self._close_streams()
        clean_ups = [
            clean_up
            for clean_up in (self._stop_monitor, self._command.clean_up)
            if clean_up is not no_clean_up
        ]
        return tuple([note for clean_up in clean_ups for note in await asyncio.to_thread(clean_up)])

    async def _wait_until_empty(self) -> None:
        """Kill what the launcher left behind, and wait until no process is alive.

        The first process inside ends its namespace: the kernel kills all others, and reports its end only when
        they are gone. Without a report of that process, the launcher was killed before it let anything begin;
        what it had started is still in its process group, which was killed with it.
        """
        while self._read_status():
            pass
        if self._first_pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_pidfd, signal.SIGKILL)
            await _wait_readable(self._first_pidfd)
            return
        deadline = self._loop.time() + LAUNCHER_TIMEOUT_S
        while _has_process_group(self._process.pid) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def _start_monitor(self) -> None:
        if self._command.start_monitor is not None and not self._exit_task.done():
            self._stop_monitor = self._command.start_monitor(self._kill_from_thread)

    def _kill_from_thread(self) -> None:
        """Kill the command at once. Called from another thread."""
        self._loop.call_soon_threadsafe(self._kill_now)

    def _kill_now(self) -> None:
        if not self._exit_task.done():
            _kill_tree(self._process)

    async def _terminate(self) -> None:
        if self._command.sigterm_grace_s:
            _terminate_groups(self._process)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._command.sigterm_grace_s):
                    await asyncio.shield(self._exit_task)
            if self._exit_task.done():
                return
        if self._command.end_signal is not signal.SIGKILL:
            self._process.send_signal(self._command.end_signal)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAUNCHER_TIMEOUT_S):
                    await asyncio.shield(self._exit_task)
        if not self._exit_task.done():
            _kill_tree(self._process)

    def _let_begin(self) -> None:
        """Let the command begin, now that its sandbox ends together with this thread."""
        self._loop.remove_reader(self._command.ready_fd)
        if os.read(self._command.ready_fd, 1):
            with suppress(BrokenPipeError):  # the process is already gone
                os.write(self._command.go_fd, b"\n")

    def _read_output(self) -> bool:
        return self._read_into(self._stdout_fd, self.output)

    def _read_stderr(self) -> bool:
        return (
            self._stderr_fd is not None
            and self._stderr is not None
            and self._read_into(self._stderr_fd, self._stderr)
        )

    def _read_into(self, fd: int, sink: OutputSink) -> bool:
        """Read one chunk; return False when there is no more, now or ever."""
        try:
            piece = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if piece:
            sink.write(piece)
        else:
            self._loop.remove_reader(fd)
        return bool(piece)

    def _read_status(self) -> bool:
        """Read status lines: JSON objects with `child-pid` at the start and `exit-code` at the end."""
        try:
            piece = os.read(self._status_fd, _MAX_STATUS_BYTES)
        except BlockingIOError:
            return False
        if not piece or len(self._status_buffer) > _MAX_STATUS_BYTES:
            self._loop.remove_reader(self._status_fd)
            return False
        self._status_buffer += piece
        *lines, partial_line = bytes(self._status_buffer).split(b"\n")
        self._status_buffer = bytearray(partial_line)
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                self._apply_status(json.loads(line))
        return True

    def _apply_status(self, status: dict[str, Any]) -> None:
        if "exit-code" in status:
            self.exit_code = int(status["exit-code"])
        if "child-pid" in status and self._first_pidfd is None:
            with suppress(OSError, AttributeError):
                self._first_pidfd = _open_process(int(status["child-pid"]), status.get("pid-namespace"))
            if not self._first_pid.done():
                self._first_pid.set_result(int(status["child-pid"]))

    def _close_streams(self) -> None:
        for read_more in (self._read_output, self._read_status, self._read_stderr):
            while read_more():
                pass
        for fd in (self._stdout_fd, self._status_fd, self._stderr_fd):
            if fd is not None:
                self._loop.remove_reader(fd)
                os.close(fd)
        if self._command.ready_fd >= 0:
            self._loop.remove_reader(self._command.ready_fd)
        if self._first_pidfd is not None:
            os.close(self._first_pidfd)
        for sink in (self.output, self._stderr):
            if sink is not None:
                sink.close()


def _spawn(command: SandboxedCommand) -> tuple["subprocess.Popen[bytes]", int, int, int | None]:
    """Start the program; return it and the read ends of its output, status and separate stderr.

    Without a separate stderr both streams share one pipe, so they stay in the order they were written. All
    other descriptors are closed for the program.
    """
    stdout_fd, child_stdout = os.pipe()
    status_fd, child_status = _open_status_pipe()
    stderr_fd, child_stderr = os.pipe() if command.separate_stderr else (None, child_stdout)
    argv = (
        *command.argv[: command.launcher_argc],
        "--json-status-fd",
        str(child_status),
        *command.argv[command.launcher_argc :],
    )
    try:
        process = subprocess.Popen(  # noqa: S603  (the arguments come from a SandboxedCommand, without a shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=child_stdout,
            stderr=child_stderr,
            env=dict(command.env),
            cwd=command.cwd,
            pass_fds=(*command.fds, child_status),
            start_new_session=True,
        )
    except OSError as error:
        for fd in (stdout_fd, status_fd, stderr_fd):
            if fd is not None:
                os.close(fd)
        raise Failed(f"the command was not run: {argv[0]} cannot be started ({error.strerror})") from error
    finally:
        for fd in {child_stdout, child_stderr, child_status, *command.fds}:
            os.close(fd)
    for fd in (stdout_fd, status_fd, stderr_fd):
        if fd is not None:
            os.set_blocking(fd, False)
    with suppress(OSError):
        fcntl.fcntl(stdout_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return process, stdout_fd, status_fd, stderr_fd


def _open_status_pipe() -> tuple[int, int]:
    """Open a pipe whose other end can be written also when this process has died.

    A launcher that a signal (SIGPIPE) ended halfway would leave a process behind that waits for it.
    """
    status_fd, writer = os.pipe()
    try:
        return status_fd, os.open(f"/proc/self/fd/{writer}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(writer)


def _open_process(pid: int, namespace: int | None) -> int:
    """Open a pidfd of the first process in a pid namespace.

    Raises OSError if it has ended, even if its number is another process's now.
    """
    fd = os.pidfd_open(pid)
    if namespace is None or _is_in_namespace(pid, namespace):
        return fd
    os.close(fd)
    raise ProcessLookupError(pid)


def _is_in_namespace(pid: int, namespace: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace  # noqa: PTH116
    except PermissionError:
        return True  # its number is too young to be another process's
    except OSError:
        return False


def _has_process_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def _wait_exit(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the process with a pidfd, kill the rest of its group and reap it; no thread waits.

    Until it is reaped, no other group can have its number.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        while process.poll() is None:  # noqa: ASYNC110  (a kernel without pidfds)
            await asyncio.sleep(_POLL_S)
        return
    try:
        await _wait_readable(fd)
    finally:
        os.close(fd)
    _kill_group(process.pid)
    process.wait()


async def _wait_readable(fd: int, timeout_s: float | None = None) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(fd)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, on_readable)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await readable
    finally:
        loop.remove_reader(fd)


def _terminate_groups(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to every process group inside; the launcher has its own group and stays."""
    groups: set[int] = set()
    for pid in descendant_pids(process.pid):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    for group in groups - {process.pid, os.getpgid(0)}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Stop the launcher, so that it starts nothing more, then kill it and its descendants."""
    process.send_signal(signal.SIGSTOP)
    descendants = descendant_pids(process.pid)
    process.kill()
    # Anything started just before the stop is still in its group: nothing leaves the group that early.
    _kill_group(process.pid)
    for pid in descendants:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
