"""Launcher for commands without bubblewrap: restrict, run, then end all their processes.

Runs as a separate program and imports no Retinue modules, so that it can run by itself.
"""

import ctypes
import marshal
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

SET_PDEATHSIG = 1
SET_SECCOMP = 22
CAPBSET_DROP = 24
CHILD_SUBREAPER = 36
NO_NEW_PRIVS = 38
SECCOMP_FILTER = 2

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""The same numbers on every machine."""

END_SIGNAL = signal.SIGTERM
"""Tells the launcher to end the command and everything it started."""

_HANDLED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
_LAST_CAPABILITY = 63
_SIGNAL_EXIT_BASE = 128
_POLL_S = 0.002

LaunchPlan = Mapping[str, Any]


def main() -> int:
    """Run `--json-status-fd N PLAN`: both are descriptors; the plan is a marshalled dict."""
    status_fd, plan_fd = int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(plan_fd, "rb") as file:
        plan: LaunchPlan = marshal.load(file)  # noqa: S302  (written by our parent process)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != plan["parent"]:
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    error_fd, child_error_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(status_fd)
        _exec_command(plan, libc, child_error_fd)
    os.close(child_error_fd)
    os.set_inheritable(status_fd, False)
    if error := os.read(error_fd, 4000):
        os.waitpid(child, 0)
        os.write(2, error)
        return 1
    null_fd = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_fd, 1)
    os.dup2(null_fd, 2)
    exit_code = _wait_for_exit(child)
    _kill_all(child)
    if exit_code is not None:
        os.write(status_fd, b'{"exit-code": %d}\n' % exit_code)
    return 0


def descendant_pids(root: int) -> list[int]:
    """Return all living processes below one, by their current parents."""
    children_of: dict[int, list[int]] = {}
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir("/proc")  # noqa: PTH208  (this program imports as little as it can)
    for name in names:
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    children_of.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        children = children_of.get(pending.pop(), [])
        found += children
        pending += children
    return found


def _wait_for_exit(child: int) -> int | None:
    """Return the command's exit code, or None when the launcher is asked to end it."""
    while True:
        received = signal.sigwaitinfo(_HANDLED_SIGNALS)
        if received.si_signo != signal.SIGCHLD:
            return None
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    exit_code = os.waitstatus_to_exitcode(ended[1])
                    return exit_code if exit_code >= 0 else _SIGNAL_EXIT_BASE - exit_code


def _kill_all(child: int) -> None:
    """Kill everything that came from the command.

    The launcher is the subreaper: a process that forks away from its parent becomes its child and is found
    here.
    """
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for pid in descendant_pids(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_S)


def _exec_command(plan: LaunchPlan, libc: ctypes.CDLL, error_fd: int) -> None:
    """Replace this process with the command, or report why that failed. Never returns."""
    try:
        os.setsid()
        libc.prctl(SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        for each in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        for limit, maximum in plan["limits"]:
            _set_limit(limit, maximum)
        os.chdir(plan["cwd"])
        if plan["restrictions"] is not None:
            _apply_restrictions(plan["restrictions"], libc)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606  (the launcher's purpose)
    except BaseException as error:  # noqa: BLE001  (on any error the command must not run)
        os.write(error_fd, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _set_limit(limit: int, maximum: int) -> None:
    _, hard = resource.getrlimit(limit)
    allowed = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(limit, (allowed, allowed))


def _apply_restrictions(restrictions: LaunchPlan, libc: ctypes.CDLL) -> None:
    """Apply Landlock first, then the filter, which would refuse Landlock's calls."""
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    _check_syscall(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _apply_landlock(restrictions["attr"], restrictions["rules"], libc)
    filter_code: bytes = restrictions["filter"]
    program = ctypes.create_string_buffer(filter_code, len(filter_code))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(filter_code) // 8, ctypes.addressof(program))
    )
    _check_syscall(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.addressof(head), 0, 0), "the filter")


def _apply_landlock(attr: bytes, rules: Sequence[tuple[str, int]], libc: ctypes.CDLL) -> None:
    """Apply the Landlock rules. A path that no longer exists allows nothing."""
    ruleset = _check_syscall(
        libc.syscall(LANDLOCK_CREATE, attr, ctypes.c_size_t(len(attr)), 0), "a Landlock ruleset"
    )
    for path, access in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        # A link may have taken its place meanwhile: only the path itself is allowed.
        if os.readlink(f"/proc/self/fd/{fd}") == path:  # noqa: PTH115
            rule = struct.pack("=Qi", access, fd)
            _check_syscall(libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), f"the Landlock rule for {path}")
        os.close(fd)
    _check_syscall(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def _check_syscall(result: int, subject: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refused {subject} ({os.strerror(code)})")
    return result


if __name__ == "__main__":
    # Exit at once: there is nothing to clean up, and the exit code only says whether the command started.
    os._exit(main())
