"""Holds a command where no bubblewrap does: started as a program of its own, it shuts the door behind the command and
stays until nothing that the command left behind is alive. Imports nothing of ours, so that it can run by itself."""

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

END = signal.SIGTERM
"""Tells the launcher to end the command and all that came of it."""

_HEARD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
_LAST_CAPABILITY = 63
_BITS_OF_A_SIGNAL = 128
_LOOK = 0.002

Plan = Mapping[str, Any]


def main() -> int:
    """`--json-status-fd N PLAN`: both are descriptors; the plan is a marshalled table."""
    status, plan_fd = int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(plan_fd, "rb") as file:
        plan: Plan = marshal.load(file)  # noqa: S302  (written by the process that started us)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != plan["parent"]:
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    trouble, trouble_there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(status)
        _become(plan, libc, trouble_there)
    os.close(trouble_there)
    os.set_inheritable(status, False)
    if reason := os.read(trouble, 4000):
        os.waitpid(child, 0)
        os.write(2, reason)
        return 1
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    code = _watch(child)
    _end_all(child)
    if code is not None:
        os.write(status, b'{"exit-code": %d}\n' % code)
    return 0


def descendants(of: int) -> list[int]:
    """Every living process below one, by the parents that the kernel names now."""
    below: dict[int, list[int]] = {}
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir("/proc")  # noqa: PTH208  (by itself, this program loads as little as it can)
    for name in names:
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    below.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    todo = [of]
    while todo:
        children = below.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _watch(child: int) -> int | None:
    """The command's exit code when it ends by itself, None when it is to be ended."""
    while True:
        heard = signal.sigwaitinfo(_HEARD)
        if heard.si_signo != signal.SIGCHLD:
            return None
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    return code if code >= 0 else _BITS_OF_A_SIGNAL - code


def _end_all(child: int) -> None:
    """Orphans are ours: whoever forks away from its parent becomes our child, and is found here."""
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK)


def _become(plan: Plan, libc: ctypes.CDLL, trouble: int) -> None:
    """Never returns: this process is the command, or says why it cannot be."""
    try:
        os.setsid()
        libc.prctl(SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        for each in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        for limit, most in plan["limits"]:
            _limited(limit, most)
        os.chdir(plan["cwd"])
        if plan["shut"] is not None:
            _shut(plan["shut"], libc)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606  (this is what it is for)
    except BaseException as error:  # noqa: BLE001  (whatever it is, the command must not run)
        os.write(trouble, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _limited(limit: int, most: int) -> None:
    _, hard = resource.getrlimit(limit)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (allowed, allowed))


def _shut(plan: Plan, libc: ctypes.CDLL) -> None:
    """Landlock first, then the filter, which would refuse it."""
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    _done(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _landlocked(plan["attr"], plan["rules"], libc)
    code: bytes = plan["filter"]
    program = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(program)))
    _done(libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.addressof(head), 0, 0), "the filter")


def _landlocked(attr: bytes, rules: Sequence[tuple[str, int]], libc: ctypes.CDLL) -> None:
    """A place that is not there any more opens nothing."""
    ruleset = _done(libc.syscall(LANDLOCK_CREATE, attr, ctypes.c_size_t(len(attr)), 0), "a Landlock ruleset")
    for path, access in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        # Somebody may have put a link in its place meanwhile: only what bears the name is opened.
        if os.readlink(f"/proc/self/fd/{fd}") == path:  # noqa: PTH115
            rule = struct.pack("=Qi", access, fd)
            _done(libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), f"the Landlock rule for {path}")
        os.close(fd)
    _done(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def _done(answer: int, what: str) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what} was refused by the kernel ({os.strerror(code)})")
    return answer


if __name__ == "__main__":
    # Left at once: there is nothing to tidy up, and the exit code says only whether the command was started.
    os._exit(main())
