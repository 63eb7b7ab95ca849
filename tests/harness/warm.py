"""A process that has loaded all that a command may need, and makes commands of itself for whoever asks.

What it makes is a process like any other: a child of the one who asks, with a number, a session and signals of its own.
Only the loading was done before. It is asked over the socket whose number is its argument, and ends with the other end."""

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import struct
import sys
import termios
import threading
import time
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import retinue

CLONE = {"x86_64": 56, "aarch64": 220}
"""The kernel's number for making a process, by machine: where there is none, commands are started as ever."""
CHILD_OF_MY_PARENT = 0x8000
KNOWS_ITS_NUMBER = 0x01000000 | 0x00200000
WHERE_THE_NUMBER_STANDS = 40
SIZE = struct.Struct("!Q")
MOST_STREAMS = 8
LATE_IMPORTS = (
    "aiohttp.connector", "asyncio.subprocess", "concurrent.futures.thread", "encodings.idna", "http.cookies",
    "uvicorn.lifespan.off", "uvicorn.loops.asyncio", "uvicorn.protocols.http.httptools_impl",
)  # fmt: skip
"""What other packages load only when it is used."""

_libc = ctypes.PyDLL(
    None
)  # as part of the interpreter: nothing else of it may run between the halves of a fork
_libc.syscall.restype = ctypes.c_long


def load() -> None:
    """Everything of ours but the program itself. Nothing is begun by it: a fork takes only one thread along."""
    found = [each.name for each in pkgutil.walk_packages(retinue.__path__, "retinue.")]
    for name in (*found, *LATE_IMPORTS):
        if not name.endswith("__main__"):
            with suppress(
                Exception
            ):  # whoever needs what cannot be loaded hears of it, as ever, and nobody else
                importlib.import_module(name)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def receive_request(line: socket.socket) -> dict[str, Any]:
    """Answers in each process that is made, with what it is to be. This one makes the next, until nobody asks."""
    number = ctypes.c_void_p()
    _libc.prctl(WHERE_THE_NUMBER_STANDS, ctypes.byref(number))
    while True:
        head, fds, _, _ = socket.recv_fds(line, SIZE.size, MOST_STREAMS)
        if not head:
            sys.exit()
        left, pieces = SIZE.unpack(head)[0], list[bytes]()
        while left and (piece := line.recv(left)):
            pieces.append(piece)
            left -= len(piece)
        if _fork_sibling(number.value or 0):
            line.detach()
            return json.loads(b"".join(pieces)) | {"fds": fds}
        for fd in fds:
            os.close(fd)


def _fork_sibling(number: int) -> bool:
    """As os.fork, and whether this is the new process; but that one is a child of our parent, who can wait for it."""
    flags = CHILD_OF_MY_PARENT | signal.SIGCHLD | (KNOWS_ITS_NUMBER if number else 0)
    where = (number, 0) if platform.machine() == "x86_64" else (0, number)
    words = [ctypes.c_long(each) for each in (CLONE[platform.machine()], flags, 0, 0, *where)]
    ctypes.pythonapi.PyOS_BeforeFork()
    made = _libc.syscall(*words)
    if made == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return made == 0


def become_process(wish: dict[str, Any]) -> None:
    """All that stands between a fork and the first line of a program."""
    told, *streams = wish["fds"]
    if wish["session"]:
        os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    if wish["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if wish["umask"] >= 0:
        os.umask(wish["umask"])
    os.chdir(wish["cwd"])
    os.write(told, SIZE.pack(os.getpid()))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Without a locale the interpreter chooses one when it starts, and says so in its environment.
    chosen = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update(chosen | wish["env"])
    time.tzset()
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, name, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, name: str, old: Any) -> Any:
    """As the interpreter makes them when it starts."""
    raw: Any = io.FileIO(fd, "wb" if fd else "rb", closefd=False)
    lines = fd == 2 or raw.isatty()
    raw.name = f"<{name}>"
    binary = (io.BufferedWriter if fd else io.BufferedReader)(raw)
    stream: Any = io.TextIOWrapper(binary, old.encoding, old.errors, newline="\n", line_buffering=lines)
    stream.mode = "w" if fd else "r"
    return stream


def run(words: list[str]) -> None:
    """`-m MODULE …` or `-c CODE …`, as the interpreter takes them."""
    how, what, *arguments = words
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = ["" if how == "-c" else str(Path.cwd()), *map(os.path.abspath, added)]
    sys.argv[:] = [how, *arguments]
    sys.orig_argv[1:] = words
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(program))


def leave(code: object) -> None:
    """As the interpreter ends, but for the taking apart of what was loaded before, which is most of the work."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for module, name in ((threading, "_shutdown"), (atexit, "_run_exitfuncs")):
        getattr(module, name)()
    gc.collect()
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}\n")
        code = 120
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def main() -> None:
    load()
    wish = receive_request(socket.socket(fileno=int(sys.argv[1])))
    become_process(wish)
    code: object = 1
    try:
        run(wish["words"])
        code = None
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001  (told as the interpreter tells it)
        below = error.__traceback__ and error.__traceback__.tb_next  # nothing of this file is the program's
        error = error.with_traceback(below and below.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    leave(code)


if __name__ == "__main__":
    main()
