"""Sandbox level landlock: the machine's own root behind Landlock rules and a seccomp filter.

Landlock only allows, tree by tree: what a scope denies inside an allowed tree stays reachable, and so do the
modes and times of files elsewhere. That is why every command at this level requires approval.
"""

import ctypes
import marshal
import os
import resource
import struct
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from retinue.domain.ceiling import FileAccess
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import literal_components
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.isolated_python import script_command
from retinue.sandbox import cgroup, launcher
from retinue.sandbox.command import SandboxedCommand
from retinue.sandbox.launcher import LANDLOCK_CREATE

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

READ_ACCESS = EXECUTE | READ_FILE | READ_DIR
WRITE_ACCESS = (
    READ_ACCESS | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
)
FILE_ACCESS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that can be granted for something that is not a folder."""

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs",
    "/etc/ca-certificates.conf", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime",
    "/etc/timezone", "/etc/os-release", "/etc/debian_version", "/etc/hosts", "/etc/protocols", "/etc/services",
    "/etc/mime.types", "/etc/magic", "/etc/shells", "/etc/inputrc", "/etc/terminfo", "/etc/python3",
)  # fmt: skip
"""System files that programs look up; none is secret."""
PROC_FILES = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")
DEVICES = ("null", "zero", "full", "random", "urandom")

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_NEW_PROCESSES = 512
"""Number of processes that a command may add; the kernel does not apply this to root."""
MAX_FILE_BYTES = 1 << 31

_PROBE_NAME = ".retinue-probe-7c1f/x/y"
"""A name that only a whole-tree pattern allows."""


@cache
def abi_version() -> int:
    """Return the kernel's Landlock version; 0 if it is missing or was disabled at boot."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def landlock_command(scope: Scope, command: str, *, seccomp_filter: bytes) -> SandboxedCommand:
    """Build a command for level landlock.

    The agent has no private /tmp at this level: its folder is $TMPDIR.
    """
    rules = [*_system_rules(), *_scope_rules(scope)]
    supported_rights = handled_rights(abi_version())
    private_tmp = scope.tmp_folder if scope.check_path(TMP, "write").ok else ""
    env = minimal_environment(home=private_tmp or scope.root, tmp=private_tmp)
    launched = launcher_command(
        shell_argv(command),
        cwd=scope.root,
        env=env,
        restrictions={
            "attr": ruleset_attributes(abi_version()),
            "rules": [(path, access & supported_rights) for path, access in rules],
            "filter": seccomp_filter,
        },
    )
    return _in_control_groups(launched)


def _in_control_groups(command: SandboxedCommand) -> SandboxedCommand:
    """Return the command with a limit on the memory of all its processes, where one can be set."""
    groups = cgroup.create_groups()

    def clean_up() -> tuple[str, ...]:
        cgroup.remove_groups(groups)
        return command.clean_up()

    join_argv = cgroup.join_argv(groups)
    return replace(
        command,
        argv=(*join_argv, *command.argv),
        launcher_argc=len(join_argv) + command.launcher_argc,
        clean_up=clean_up,
    )


def unsandboxed_command(scope: Scope, command: str, *, env: Mapping[str, str]) -> SandboxedCommand:
    """Build a command for level none: clean environment, own session, launcher, no sandbox."""
    return launcher_command(shell_argv(command), cwd=scope.root, env=env, restrictions=None)


def shell_argv(command: str) -> tuple[str, ...]:
    """Return the argument vector of a shell that runs the command."""
    return (shell_path(), "-c", "--", command)


def launcher_command(
    argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], restrictions: Mapping[str, object] | None
) -> SandboxedCommand:
    """Build a command that runs under the launcher, which ends everything the program started."""
    plan = {
        "parent": os.getpid(),
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "limits": _resource_limits(is_sandboxed=restrictions is not None),
        "restrictions": restrictions,
    }
    fd = os.memfd_create("retinue-plan", os.MFD_CLOEXEC)
    os.write(fd, marshal.dumps(plan))
    os.lseek(fd, 0, os.SEEK_SET)
    interpreter = script_command(str(Path(launcher.__file__).resolve()))
    return SandboxedCommand(
        argv=(*interpreter, str(fd)),
        env={"LANG": "C.UTF-8"},
        fds=(fd,),
        launcher_argc=len(interpreter),
        end_signal=launcher.END_SIGNAL,
    )


def minimal_environment(*, home: str, tmp: str) -> dict[str, str]:
    """Return a complete environment, the same for every user: no variables of this process are inherited."""
    variables = {
        "PATH": DEFAULT_PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "agent",
        "LOGNAME": "agent",
    }
    return variables | ({"TMPDIR": tmp} if tmp else {})


@cache
def shell_path() -> str:
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "/bin/sh")


def handled_rights(version: int) -> int:
    """Return every right that a kernel of this Landlock version can withhold."""
    rights = (1 << 13) - 1
    for since_version, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since_version else 0
    return rights


def ruleset_attributes(version: int) -> bytes:
    """Encode what the ruleset restricts.

    Files; from version 4 also TCP, of which nothing is allowed; from version 6 also signals and abstract
    sockets.
    """
    if version >= 6:  # noqa: PLR2004
        return struct.pack("=QQQ", handled_rights(version), 3, 3)
    return (
        struct.pack("=QQ", handled_rights(version), 3)
        if version >= 4  # noqa: PLR2004
        else struct.pack("=Q", handled_rights(version))
    )


def allowed_trees(scope: Scope, access_kind: FileAccess) -> list[str]:
    """Return the folders that the scope and every ceiling allow, except for closed paths inside.

    A pattern that does not name a whole tree allows nothing at this level.
    """
    patterns = (*scope.read, *scope.shared_folder_patterns) if access_kind == "read" else scope.write
    ceiling_patterns = ((each.read if access_kind == "read" else each.write) or () for each in scope.ceilings)
    found = {_tree_folder(pattern) for pattern in chain(patterns, *ceiling_patterns)}
    return sorted(path for path in found if path is not None and _allows_whole_tree(scope, path, access_kind))


def _tree_folder(pattern: str) -> str | None:
    if not pattern.endswith("/**"):
        return None
    parts = literal_components(pattern.removesuffix("/**"))
    folder = "/" + "/".join(parts)
    is_literal = len(parts) == len([part for part in pattern.removesuffix("/**").split("/") if part])
    # Never allow the whole machine; /tmp is the agent's private folder.
    return folder if parts and is_literal and folder != TMP and os.path.realpath(folder) == folder else None


def _allows_whole_tree(scope: Scope, folder: str, access_kind: FileAccess) -> bool:
    return (
        scope.check_path(folder, access_kind).ok
        and scope.check_path(f"{folder}/{_PROBE_NAME}", access_kind).ok
    )


def _scope_rules(scope: Scope) -> Iterable[tuple[str, int]]:
    rights: tuple[tuple[FileAccess, int], ...] = (("read", READ_ACCESS), ("write", WRITE_ACCESS))
    for access_kind, access in rights:
        for folder in allowed_trees(scope, access_kind):
            _check_excludes_own_files(scope, folder)
            yield folder, access if Path(folder).is_dir() else access & FILE_ACCESS
    if scope.tmp_folder and scope.check_path(TMP, "write").ok:
        yield scope.tmp_folder, WRITE_ACCESS | MAKE_FIFO


def _check_excludes_own_files(scope: Scope, folder: str) -> None:
    """Refuse a tree that contains Retinue's own files.

    Landlock cannot close paths inside an allowed tree, and an agent may read none of Retinue's own files except
    shared folders: its skills, and the /tmp of its sub-agents.
    """
    if folder in scope.shared_folders:
        return
    for pattern in scope.retinue_paths:
        own_folder = "/" + "/".join(literal_components(pattern))
        if not scope.is_worktree and (
            f"{own_folder}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{own_folder}/")
        ):
            raise Failed(
                f"the command was not run: {own_folder} is in {folder}, and sandbox level landlock cannot hide it. "
                "Use another workspace, or install bubblewrap"
            )


def _system_rules() -> Iterable[tuple[str, int]]:
    for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *(f"/proc/{name}" for name in PROC_FILES)):
        real = Path(os.path.realpath(path))
        if real.exists():
            yield str(real), READ_ACCESS if real.is_dir() else READ_ACCESS & FILE_ACCESS
    for name in DEVICES:
        yield f"/dev/{name}", READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV


def _resource_limits(*, is_sandboxed: bool) -> list[tuple[int, int]]:
    limits = [(resource.RLIMIT_CORE, 0)]
    if is_sandboxed:
        limits += [
            (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
            (resource.RLIMIT_DATA, cgroup.MAX_MEMORY_BYTES),
            (resource.RLIMIT_NPROC, _process_count() + MAX_NEW_PROCESSES),
        ]
    return limits


def _process_count() -> int:
    try:
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return MAX_NEW_PROCESSES
