"""Runs a cell: takes in what it writes, ends all of it in time or when nobody waits any more, and leaves nothing behind."""

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

from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox.command import Cell, nothing_left
from retinue.sandbox.launcher import descendants
from retinue.sandbox.output_capture import Keep, Output

T = TypeVar("T")
S = TypeVar("S", bound="Sink")

PATIENCE = 1.5
"""Seconds that the program which holds a command has to end all of it before it is killed itself."""

MOMENT = 0.02
"""Seconds: what ends sooner is only looked after when it has ended."""

_PIECE = 1_000_000
_STATUS = 64_000
_PIPE = 256_000
"""A command that writes much is woken seldom."""
_LOOK = 0.01


@value
class Ended:
    """What came of a cell."""

    exit: int | None
    """None: the command did not end by itself, or was never started."""
    output: Output
    ms: int
    timed_out: bool = False
    killed: bool = False
    """Somebody else ended it, or the kernel did."""
    notes: tuple[str, ...] = ()


async def run(cell: Cell, seconds: float, keep: Keep | None = None) -> Ended:
    """Returns, or raises, when nothing of the command lives. A cancellation ends the command first, then passes."""
    started = perf_counter()
    timed_out = False
    try:
        held = _Held(cell, Output(keep))
    except Failed:
        await to_the_end(asyncio.to_thread(cell.after))
        raise
    try:
        async with asyncio.timeout(seconds):
            await held.left()
    except TimeoutError:
        timed_out = True
    finally:
        notes = await to_the_end(held.over())
    exit_code = None if timed_out else held.exit
    ms = round((perf_counter() - started) * 1000)
    return Ended(
        exit=exit_code,
        output=held.output,
        ms=ms,
        timed_out=timed_out,
        killed=held.killed,
        notes=notes,
    )


class Sink(Protocol):
    """Where what a process writes goes, piece by piece."""

    def take(self, piece: bytes, /) -> None: ...
    def close(self) -> None: ...


class Streamed:
    """A cell whose words are heard while it runs. Whoever else wants it gone says so."""

    def __init__(self, cell: Cell, out: Sink, complaints: Sink) -> None:
        self._cell = cell
        self._held = _Held(cell, out, complaints)
        self.unwanted = False

    async def over(
        self, hatch: Callable[[int], AbstractAsyncContextManager[None]]
    ) -> tuple[int | None, tuple[str, ...]]:
        """Its exit code, and what had to be put right: when nothing of it lives. It begins when the hatch of its network
        is there. A cancellation ends it first, then passes."""
        notes: tuple[str, ...] = ()
        try:
            if self._cell.gate < 0:
                await self._held.left()
            elif (inside := await self._held.began()) is not None:
                async with hatch(inside):
                    with suppress(BrokenPipeError):  # it is gone already
                        os.write(self._cell.gate, b"go")
                    await self._held.left()
        finally:
            notes = await to_the_end(self._held.over())
        return (None if self._held.killed else self._held.exit), notes

    @property
    def killed(self) -> bool:
        return self._held.killed

    async def end(self) -> None:
        self.unwanted = True
        await to_the_end(self._held.stopped())


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The work is done even if whoever waits for it is cancelled; the cancellation passes when it is."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Held(Generic[S]):
    """A cell that was started. The pipes are read on the loop; the loop's own thread starts the program, because a
    program that asked to die with its parent dies with the thread that started it."""

    def __init__(self, cell: Cell, output: S, complaints: Sink | None = None) -> None:
        self.output = output
        self._complaints = complaints
        self.exit: int | None = None
        self._cell = cell
        self._loop = asyncio.get_running_loop()
        self._said = bytearray()
        self._inside: int | None = None
        """A descriptor of the first process inside, when the program that holds it told of one."""
        self._first: asyncio.Future[int] = self._loop.create_future()
        self._process, self._out, self._status, self._err = _started(cell)
        self._gone = self._loop.create_task(_exited(self._process))
        self._loop.add_reader(self._out, self._hear)
        self._loop.add_reader(self._status, self._learn)
        if self._err is not None:
            self._loop.add_reader(self._err, self._hear_complaints)
        self._attended = nothing_left
        self._lasting = self._loop.call_later(MOMENT, self._attend)

    @property
    def killed(self) -> bool:
        return (self._process.returncode or 0) < 0

    async def left(self) -> None:
        """Until the program that holds the command has left."""
        await asyncio.shield(self._gone)

    async def began(self) -> int | None:
        """The first process inside; None when there will be none."""
        await asyncio.wait({self._first, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        return self._first.result() if self._first.done() else None

    async def stopped(self) -> None:
        """Ends it; whoever looks after it finds it gone."""
        if not self._gone.done():
            await self._ended()
        await asyncio.shield(self._gone)

    async def over(self) -> tuple[str, ...]:
        """Ends what still lives, takes in the last words, and says what had to be put right."""
        try:
            if not self._gone.done():
                await self._ended()
            await self._gone
            # What the program held dies with it, by the kernel's hand; this is where that is waited for.
            if self._inside is not None:
                await _readable(self._inside, PATIENCE)
        finally:
            self._lasting.cancel()
            self._close()
        works = [each for each in (self._attended, self._cell.after) if each is not nothing_left]
        return tuple([note for each in works for note in await asyncio.to_thread(each)])

    def _attend(self) -> None:
        if self._cell.during is not None and not self._gone.done():
            self._attended = self._cell.during(self._strike)

    def _strike(self) -> None:
        """Ends it at once, whatever it does. Said by another thread."""
        self._loop.call_soon_threadsafe(self._struck)

    def _struck(self) -> None:
        if not self._gone.done():
            _kill_all(self._process)

    async def _ended(self) -> None:
        if self._cell.grace:
            _asked_to_end(self._process)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._cell.grace):
                    await asyncio.shield(self._gone)
            if self._gone.done():
                return
        if self._cell.end is not signal.SIGKILL:
            self._process.send_signal(self._cell.end)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await asyncio.shield(self._gone)
        if not self._gone.done():
            _kill_all(self._process)

    def _hear(self) -> bool:
        return self._heard(self._out, self.output)

    def _hear_complaints(self) -> bool:
        return (
            self._err is not None
            and self._complaints is not None
            and self._heard(self._err, self._complaints)
        )

    def _heard(self, fd: int, sink: Sink) -> bool:
        """False when there is no more, now or for ever."""
        try:
            piece = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        if piece:
            sink.take(piece)
        else:
            self._loop.remove_reader(fd)
        return bool(piece)

    def _learn(self) -> bool:
        """One JSON object a line: `child-pid` when the command's first process is there, `exit-code` at its end."""
        try:
            piece = os.read(self._status, _STATUS)
        except BlockingIOError:
            return False
        if not piece or len(self._said) > _STATUS:
            self._loop.remove_reader(self._status)
            return False
        self._said += piece
        *lines, rest = bytes(self._said).split(b"\n")
        self._said = bytearray(rest)
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                self._told(json.loads(line))
        return True

    def _told(self, facts: dict[str, Any]) -> None:
        if "exit-code" in facts:
            self.exit = int(facts["exit-code"])
        if "child-pid" in facts and self._inside is None:
            with suppress(OSError, AttributeError):
                self._inside = os.pidfd_open(int(facts["child-pid"]))
            if not self._first.done():
                self._first.set_result(int(facts["child-pid"]))

    def _close(self) -> None:
        for read in (self._hear, self._learn, self._hear_complaints):
            while read():
                pass
        for fd in (self._out, self._status, self._err):
            if fd is not None:
                self._loop.remove_reader(fd)
                os.close(fd)
        if self._inside is not None:
            os.close(self._inside)
        for sink in (self.output, self._complaints):
            if sink is not None:
                sink.close()


def _started(cell: Cell) -> tuple["subprocess.Popen[bytes]", int, int, int | None]:
    """The program, and the reading ends of its output, of its reports, and of its complaints if those come apart. Else
    both streams are one pipe, so they come in the order they were written; whatever else is open here is closed to
    it."""
    out, out_there = os.pipe()
    status, status_there = os.pipe()
    err, err_there = os.pipe() if cell.apart else (None, out_there)
    argv = (*cell.argv[: cell.head], "--json-status-fd", str(status_there), *cell.argv[cell.head :])
    try:
        process = subprocess.Popen(  # noqa: S603  (the words come from a cell, one by one, through no shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out_there,
            stderr=err_there,
            env=dict(cell.env),
            cwd=cell.cwd,
            pass_fds=(*cell.fds, status_there),
            start_new_session=True,
        )
    except OSError as error:
        for fd in (out, status, err):
            if fd is not None:
                os.close(fd)
        raise Failed(f"the command was not run: {argv[0]} cannot be started ({error.strerror})") from error
    finally:
        for fd in {out_there, err_there, status_there, *cell.fds}:
            os.close(fd)
    for fd in (out, status, err):
        if fd is not None:
            os.set_blocking(fd, False)
    with suppress(OSError):
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _PIPE)
    return process, out, status, err


async def _exited(process: "subprocess.Popen[bytes]") -> None:
    """Asked of the kernel once, and the process is reaped; no thread waits for it."""
    try:
        fd = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        while process.poll() is None:  # noqa: ASYNC110  (a kernel without descriptors of processes)
            await asyncio.sleep(_LOOK)
        return
    try:
        await _readable(fd)
    finally:
        os.close(fd)
    process.wait()


async def _readable(fd: int, seconds: float | None = None) -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        loop.remove_reader(fd)
        if not seen.done():
            seen.set_result(None)

    loop.add_reader(fd, settle)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await seen
    finally:
        loop.remove_reader(fd)


def _asked_to_end(process: "subprocess.Popen[bytes]") -> None:
    """Every process group inside; the program that holds them has one of its own, and stays."""
    groups: set[int] = set()
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    for group in groups - {process.pid, os.getpgid(0)}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)


def _kill_all(process: "subprocess.Popen[bytes]") -> None:
    """It is stopped first, so that it starts nothing while its descendants are looked for."""
    process.send_signal(signal.SIGSTOP)
    left = descendants(process.pid)
    process.kill()
    # Whatever it began in the moment before it stopped is still of its group: nothing has left that so early.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
