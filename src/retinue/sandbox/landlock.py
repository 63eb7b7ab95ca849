"""The middle level: the machine's own root behind the kernel's Landlock rules and a filter on system calls.

Landlock only allows, tree by tree: what a scope denies inside a tree that it allows stays reachable here, and so do
the modes and times of files elsewhere. That is why every command at this level asks a person.
"""

import ctypes
import marshal
import os
import resource
import struct
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from retinue.domain.ceiling import Wish
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import named
from retinue.domain.skill import folders
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.sandbox import launcher
from retinue.sandbox.command import Cell
from retinue.sandbox.launcher import LANDLOCK_CREATE

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""What can be allowed for something that is no folder."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs",
    "/etc/ca-certificates.conf", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime",
    "/etc/timezone", "/etc/os-release", "/etc/debian_version", "/etc/hosts", "/etc/protocols", "/etc/services",
    "/etc/mime.types", "/etc/magic", "/etc/shells", "/etc/inputrc", "/etc/terminfo", "/etc/python3",
)  # fmt: skip
"""What programs look up about the machine; nothing here is secret."""
FACTS = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")
DEVICES = ("null", "zero", "full", "random", "urandom")

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROCESSES = 512
"""How many a command may add to those that run already. The kernel does not hold root to it."""
LARGEST_FILE = 1 << 31

_UNLIKELY = ".retinue-probe-7c1f/x/y"
"""A name that only a pattern of a whole tree allows."""


@cache
def abi() -> int:
    """How much of Landlock this kernel knows; 0: nothing, or it was left out at start."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def landlocked(scope: Scope, command: str, *, code: bytes) -> Cell:
    """`code` is the filter on system calls. There is no /tmp of the agent's own at this level: its folder is $TMPDIR."""
    rules = [*_system(), *_allowed(scope)]
    known = handled(abi())
    own = scope.tmp if scope.path(TMP, "write").ok else ""
    env = environment(home=own or scope.root, tmp=own)
    return supervised(
        said(command),
        cwd=scope.root,
        env=env,
        shut={
            "attr": attributes(abi()),
            "rules": [(path, access & known) for path, access in rules],
            "filter": code,
        },
    )


def bare(scope: Scope, command: str, *, env: Mapping[str, str]) -> Cell:
    """The lowest level: a clean environment, a session of its own and a watcher, and nothing that holds."""
    return supervised(said(command), cwd=scope.root, env=env, shut=None)


def said(command: str) -> tuple[str, ...]:
    """A command as the shell's own words."""
    return (shell(), "-c", "--", command)


def supervised(
    argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], shut: Mapping[str, object] | None
) -> Cell:
    """A cell that the launcher holds: it is told to end, and ends all that came of the program."""
    plan = {
        "parent": os.getpid(),
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "limits": _limits(bounded=shut is not None),
        "shut": shut,
    }
    fd = os.memfd_create("retinue-plan", os.MFD_CLOEXEC)
    os.write(fd, marshal.dumps(plan))
    os.lseek(fd, 0, os.SEEK_SET)
    interpreter = (sys.executable, "-I", "-S", str(Path(launcher.__file__).resolve()))
    return Cell(
        argv=(*interpreter, str(fd)),
        env={"LANG": "C.UTF-8"},
        fds=(fd,),
        head=len(interpreter),
        end=launcher.END,
    )


def environment(*, home: str, tmp: str) -> dict[str, str]:
    """Complete, and the same for everyone: nothing of ours is handed on."""
    made = {
        "PATH": PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "agent",
        "LOGNAME": "agent",
    }
    return made | ({"TMPDIR": tmp} if tmp else {})


@cache
def shell() -> str:
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "/bin/sh")


def handled(version: int) -> int:
    """Every right that a kernel of this version can withhold."""
    known = (1 << 13) - 1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        known |= right if version >= since else 0
    return known


def attributes(version: int) -> bytes:
    """Files; from version 4 also TCP, of which nothing is allowed; from 6 also signals and abstract sockets."""
    if version >= 6:  # noqa: PLR2004
        return struct.pack("=QQQ", handled(version), 3, 3)
    return struct.pack("=QQ", handled(version), 3) if version >= 4 else struct.pack("=Q", handled(version))  # noqa: PLR2004


def trees(scope: Scope, wish: Wish) -> list[str]:
    """Folders of which the scope, and every ceiling, allows everything but what is closed in them. A pattern that
    does not name a whole tree allows nothing at this level."""
    said = (*scope.read, *folders(scope.shelf)) if wish == "read" else scope.write
    most = ((each.read if wish == "read" else each.write) or () for each in scope.ceilings)
    found = {_tree(pattern) for pattern in (*said, *(one for each in most for one in each))}
    return sorted(path for path in found if path is not None and _wholly(scope, path, wish))


def _tree(pattern: str) -> str | None:
    if not pattern.endswith("/**"):
        return None
    parts = named(pattern.removesuffix("/**"))
    folder = "/" + "/".join(parts)
    plain = len(parts) == len([part for part in pattern.removesuffix("/**").split("/") if part])
    # The whole machine is never handed to a command, and /tmp is the agent's own folder.
    return folder if parts and plain and folder != TMP and os.path.realpath(folder) == folder else None


def _wholly(scope: Scope, folder: str, wish: Wish) -> bool:
    return scope.path(folder, wish).ok and scope.path(f"{folder}/{_UNLIKELY}", wish).ok


def _allowed(scope: Scope) -> Iterable[tuple[str, int]]:
    rights: tuple[tuple[Wish, int], ...] = (("read", READ), ("write", WRITE))
    for wish, access in rights:
        for folder in trees(scope, wish):
            _without_house(scope, folder)
            yield folder, access if Path(folder).is_dir() else access & OF_A_FILE
    if scope.tmp and scope.path(TMP, "write").ok:
        yield scope.tmp, WRITE | MAKE_FIFO


def _without_house(scope: Scope, folder: str) -> None:
    """What cannot be closed inside a tree must not be in it: an agent never gets at Retinue's own files, but for those
    of its skills."""
    if folder in (each.folder for each in scope.shelf):
        return
    for pattern in scope.house:
        inside = "/" + "/".join(named(pattern))
        if not scope.made and (
            f"{inside}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{inside}/")
        ):
            raise Failed(
                f"the command was not run: {inside} lies in {folder}, and at sandbox level landlock it cannot be "
                "closed; work in another folder, or install bubblewrap"
            )


def _system() -> Iterable[tuple[str, int]]:
    for path in (*SYSTEM, *SETTINGS, *(f"/proc/{name}" for name in FACTS)):
        real = Path(os.path.realpath(path))
        if real.exists():
            yield str(real), READ if real.is_dir() else READ & OF_A_FILE
    for name in DEVICES:
        yield f"/dev/{name}", READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV


def _limits(*, bounded: bool) -> list[tuple[int, int]]:
    limits = [(resource.RLIMIT_CORE, 0)]
    if bounded:
        limits += [
            (resource.RLIMIT_FSIZE, LARGEST_FILE),
            (resource.RLIMIT_NPROC, _running() + PROCESSES),
        ]
    return limits


def _running() -> int:
    try:
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return PROCESSES
