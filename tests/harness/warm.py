"""A process that has imported everything a command may need, and forks itself for each command.

Each fork is a normal child of the process that requests it, with its own pid, session and signals; only the imports are
done already. Requests arrive on the socket whose descriptor is the argument; the process ends when it is closed.
"""

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
from typing import Any, TextIO

import retinue

CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call `clone` by machine; on other machines commands are started cold."""
CLONE_PARENT = 0x8000
SET_CHILD_TID_FLAGS = 0x01000000 | 0x00200000
PR_GET_TID_ADDRESS = 40
LENGTH = struct.Struct("!Q")
MAX_STREAMS = 8
LATE_IMPORTS = (
    "aiohttp.connector", "asyncio.subprocess", "concurrent.futures.thread", "encodings.idna", "http.cookies",
    "uvicorn.lifespan.off", "uvicorn.loops.asyncio", "uvicorn.protocols.http.httptools_impl",
)  # fmt: skip
"""Modules that other packages import only on first use."""

_libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL: no other Python code may run during a fork
_libc.syscall.restype = ctypes.c_long


def load() -> None:
    """Import all modules of the package except programs. It must start no thread, because a fork copies only one."""
    found = [each.name for each in pkgutil.walk_packages(retinue.__path__, "retinue.")]
    for name in (*found, *LATE_IMPORTS):
        if not name.endswith("__main__"):
            with suppress(Exception):  # the command that needs the module will report the error
                importlib.import_module(name)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def receive_request(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; return the request in the forked process, and never in this one."""
    tid_address = ctypes.c_void_p()
    _libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid_address))
    while True:
        head, fds, _, _ = socket.recv_fds(connection, LENGTH.size, MAX_STREAMS)
        if not head:
            sys.exit()
        remaining, pieces = LENGTH.unpack(head)[0], list[bytes]()
        while remaining and (piece := connection.recv(remaining)):
            pieces.append(piece)
            remaining -= len(piece)
        if _fork_sibling(tid_address.value or 0):
            connection.detach()
            return json.loads(b"".join(pieces)) | {"fds": fds}
        for fd in fds:
            os.close(fd)


def _fork_sibling(tid_address: int) -> bool:
    """Fork like os.fork, but as a child of this process's parent, which can wait for it; return True in the new process."""
    flags = CLONE_PARENT | signal.SIGCHLD | (SET_CHILD_TID_FLAGS if tid_address else 0)
    tid_arguments = (tid_address, 0) if platform.machine() == "x86_64" else (0, tid_address)
    c_arguments = [ctypes.c_long(each) for each in (CLONE[platform.machine()], flags, 0, 0, *tid_arguments)]
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _libc.syscall(*c_arguments)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid == 0


def become_process(request: dict[str, Any]) -> None:
    """Prepare a forked process for its program: streams, session, environment and folder."""
    pid_pipe, *streams = request["fds"]
    if request["session"]:
        os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if request["umask"] >= 0:
        os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.write(pid_pipe, LENGTH.pack(os.getpid()))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Without a locale the interpreter chooses one at its start, and sets it in its environment.
    chosen = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update(chosen | request["env"])
    time.tzset()
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, name, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, name: str, old: TextIO) -> TextIO:
    """Create a standard stream like the interpreter does at its start."""
    raw: Any = io.FileIO(fd, "wb" if fd else "rb", closefd=False)
    line_buffered = fd == 2 or raw.isatty()
    raw.name = f"<{name}>"
    binary = (io.BufferedWriter if fd else io.BufferedReader)(raw)
    stream: Any = io.TextIOWrapper(
        binary, old.encoding, old.errors, newline="\n", line_buffering=line_buffered
    )
    stream.mode = "w" if fd else "r"
    return stream


def run(command_line: list[str]) -> None:
    """Run `-m MODULE …` or `-c CODE …` like the interpreter."""
    option, target, *arguments = command_line
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = ["" if option == "-c" else str(Path.cwd()), *map(os.path.abspath, paths)]
    sys.argv[:] = [option, *arguments]
    sys.orig_argv[1:] = command_line
    if option == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(target, "<string>", "exec"), vars(program))


def exit_process(code: object) -> None:
    """Exit like the interpreter, but without tearing down the imported modules, which takes most of the time."""
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
    request = receive_request(socket.socket(fileno=int(sys.argv[1])))
    become_process(request)
    code: object = 1
    try:
        run(request["arguments"])
        code = None
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001  (reported like the interpreter does)
        # Leave out the frames of this file.
        program_traceback = error.__traceback__ and error.__traceback__.tb_next
        error = error.with_traceback(program_traceback and program_traceback.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    exit_process(code)


if __name__ == "__main__":
    main()
