"""Sandbox level strict: run a command with bubblewrap in a root built up from nothing."""

import os
import platform
import re
import resource
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache, partial

from msgspec import Struct, field

from retinue.domain.permissions.scope import Scope
from retinue.domain.tmp_paths import TMP
from retinue.errors import Failed
from retinue.sandbox import cgroup
from retinue.sandbox.cleanup import FileSnapshot
from retinue.sandbox.cli_agent_process import AGENT_HOME, CliAgentProcess, with_program_mounts
from retinue.sandbox.command import SandboxedCommand
from retinue.sandbox.devices import CommandDevices, acquire_devices
from retinue.sandbox.file_snapshot import clean_up_killed_commands, start_record, visible_notes
from retinue.sandbox.files.closed_path_scan import PathKind
from retinue.sandbox.files.messages import printable_path
from retinue.sandbox.git.repository_state import read_repository_states
from retinue.sandbox.git.safe_config import read_safe_config
from retinue.sandbox.mountpoints import prepare_mount_points
from retinue.sandbox.mounts import SYSTEM_FOLDERS, Mount, MountKind, MountPlan, plan_mounts
from retinue.sandbox.protected_file_monitor import ReservedMonitor, reserve_monitor, start_monitor
from retinue.sandbox.seccomp import build_filter

BWRAP_PATHS = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
"""System paths only.

PATH is not searched, and some systems allow only this program to create namespaces.
"""

INSTALL_HINT = (
    "install bubblewrap 0.10 or newer, or an older package to which your distribution backported `--bind-fd`"
)

_BASH = "/bin/bash"
_VAR_TMP = "/var/tmp"  # noqa: S108
"""A link to /tmp in the sandbox.

It is left out if a folder of the machine is mounted below it: no mount goes through a link.
"""

UID = 1000
USER_NAME = "agent"
HOST_NAME = "cell"
SMALL_TMPFS_BYTES = 67_108_864
LARGE_TMPFS_BYTES = 536_870_912
"""Bytes of memory that a temporary folder of the command may use."""

COMMAND_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": TMP, "TMPDIR": TMP, "USER": USER_NAME, "LOGNAME": USER_NAME, "SHELL": "/bin/sh", "LANG": "C.UTF-8",
    "TERM": "dumb", "EMAIL": f"{USER_NAME}@localhost", "CHOKIDAR_USEPOLLING": "1", "WATCHPACK_POLLING": "true",
}  # fmt: skip

RESOURCE_LIMITS = (
    ("c", resource.RLIMIT_CORE, 0, 1),
    ("f", resource.RLIMIT_FSIZE, 1_073_741_824, 1024),
    ("v", resource.RLIMIT_AS, 34_359_738_368, 1024),
    ("d", resource.RLIMIT_DATA, 4_294_967_296, 1024),
    ("n", resource.RLIMIT_NOFILE, 4096, 1),
    ("u", resource.RLIMIT_NPROC, 512, 1),
)
"""The shell's ulimit letter, the resource, its value, and the unit of the shell."""

CLI_AGENT_LIMITS = {"v": None, "d": 34_359_738_368, "u": 2048, "f": 4_294_967_296}
"""Other limits for CLI agents: their JavaScript engines reserve far more memory than they use."""

_AGENT_GROUP_LIMITS = cgroup.GroupLimits(processes=2048, memory_bytes=34_359_738_368)

_SH_ULIMIT_FLAGS = {"u": ("p", 1), "f": ("f", 512)}
"""Letters and units in which plain sh differs from bash."""

_WAIT_FOR_FIRST_PROCESS = """\
tries=0; while :; do
open=; for fd in /proc/1/fd/* /proc/self/fd/*; do if [ -d "$fd" ]; then open=$fd; fi; done
while read -r key filter; do if [ "$key" = Seccomp: ]; then break; fi; done </proc/1/status
if [ -z "$open" ] && [ "$filter" = 2 ]; then break; fi
tries=$((tries+1)); if [ $tries -gt 2000 ]; then
if [ -z "$open" ]; then echo "this bubblewrap does not filter its first process and cannot be used" >&2; exit 126; fi
echo "this bubblewrap leaves a host folder open inside the sandbox and cannot be used" >&2; exit 126; fi
done
"""
"""Shell code that waits until the first process of the sandbox is complete, and refuses to start otherwise.

An open folder is a way out. Bubblewrap's own first process holds one, the machine's /proc, and closes it only
after the command's process has started: that is waited for, and anything that stays open is refused. Last of
all, after it has asked the kernel to die with its parent, that process applies the seccomp filter.
"""

_WAIT_FOR_GO = """\
echo >&{ready}; exec {ready}>&-; read -r -u {go} || exit 126; exec {go}<&-
"""
"""Bash code that reports a complete sandbox, and starts nothing before Retinue has answered.

The thread that started bubblewrap answers: the kernel then ends the sandbox together with that thread. If the thread
has died before bubblewrap asked the kernel for that, no answer comes, and the pipe is closed with Retinue's last
thread. Plain sh cannot use these descriptors.
"""

_MAX_USER_PROCESSES = 8192
"""Maximum number of processes where those of the whole user are counted."""

_GENERATED_FILES = {
    "/etc/passwd": f"{USER_NAME}:x:{UID}:{UID}:{USER_NAME}:{TMP}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "/etc/group": f"{USER_NAME}:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}

_ETC_FOLDERS = ("alternatives", "fonts", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "pki/ca-trust/extracted",
         "pki/tls/certs", "ssl/certs")  # fmt: skip
_ETC_FILES = ("debian_version", "ld.so.cache", "localtime", "os-release", "ssl/openssl.cnf")
"""Files of /etc that programs of the system need; none is secret. A copy costs less than a mount."""

_HIDDEN_PROC_FILES = ("/proc/keys", "/proc/key-users")
"""Files that no namespace restricts: they list keys of the machine's users."""

_MASK_OPTIONS = {
    MountKind.MASKED_FILE: ("--ro-bind", "/dev/null"),
    MountKind.MASKED_FOLDER: ("--perms", "0000", "--size", "4096", "--tmpfs"),
    MountKind.EMPTY_FOLDER: ("--perms", "0555", "--size", "4096", "--tmpfs"),
}


class _Descriptors(Struct, frozen=True, kw_only=True):
    """Descriptors that are passed to bubblewrap."""

    fds: list[int] = field(default_factory=list[int])

    def for_text(self, text: bytes) -> str:
        """Return a descriptor that reads this text."""
        fd = os.memfd_create("retinue", os.MFD_CLOEXEC)
        self.fds.append(fd)
        os.write(fd, text)
        os.lseek(fd, 0, os.SEEK_SET)
        return str(fd)

    def for_options(self, *options: str) -> str:
        """Return a descriptor that reads these options."""
        return self.for_text(b"".join(os.fsencode(word) + b"\0" for word in options))

    def for_mount(self, mount: Mount) -> str:
        """Open exactly this file or folder, not a link that has taken its place meanwhile.

        Errors name the path that the command would see.
        """
        try:
            fd = os.open(mount.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Failed(
                f"{printable_path(mount.target)} cannot be mounted in the sandbox: {error.strerror}"
            ) from error
        self.fds.append(fd)
        if os.readlink(f"/proc/self/fd/{fd}") != mount.source:  # noqa: PTH115
            raise Failed(
                f"{printable_path(mount.target)} was moved while the sandbox was being built. Try again"
            )
        return str(fd)

    def close(self) -> None:
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


def find_bwrap() -> str | None:
    """Find the system's bubblewrap."""
    return next((path for path in BWRAP_PATHS if os.access(path, os.X_OK)), None)


def has_bind_fd(bwrap: str) -> bool:
    """Return whether bubblewrap can mount open descriptors; mounting by name is open to races."""
    return "--bind-fd" in _bwrap_help(bwrap)


def forget_bwrap_features() -> None:
    """Ask bubblewrap again what it supports; it may have been replaced, or not have answered."""
    _bwrap_help.cache_clear()


def bubblewrap_command(
    scope: Scope,
    command: str,
    *,
    bwrap: str,
    records_folder: str = "",
    cli_agent: CliAgentProcess | None = None,
    monitor: ReservedMonitor | None = None,
) -> SandboxedCommand:
    """Build a command that sees what the scope allows and nothing else.

    The records folder keeps the file state from before the command, so that a kill does not lose it. A
    CLI agent brings its own program and starts when its gate is opened; `command` is then unused.
    The monitor is released with the command; one is reserved here if it is missing and needed. Raises Failed if the sandbox
    cannot be built.
    """
    try:
        with ExitStack() as rollback:
            if monitor is not None:
                rollback.callback(monitor.release)
            seccomp_filter = _build_seccomp_filter(is_cli_agent=cli_agent is not None)
            _check_command(command, bwrap)
            fds = _Descriptors()
            rollback.callback(fds.close)
            killed_commands = clean_up_killed_commands(records_folder)
            plan = (
                plan_mounts(scope)
                if cli_agent is None
                else with_program_mounts(cli_agent, plan_mounts(scope))
            )
            if monitor is None and plan.writable_folders:
                monitor = reserve_monitor()
                rollback.callback(monitor.release)
            devices = acquire_devices()
            rollback.callback(devices.release)
            prepare_mount_points(plan)
            agent_options = _cli_agent_options(cli_agent, fds)
            options_fd = fds.for_options(
                *_NAMESPACE_OPTIONS,
                *_system_options(fds, devices),
                *_scope_options(plan, fds, bwrap),
                *agent_options,
                "--seccomp",
                fds.for_text(seccomp_filter),
            )
            groups = cgroup.create_groups(_AGENT_GROUP_LIMITS if cli_agent else None)
            rollback.callback(cgroup.remove_groups, groups)
            ready_fd, ready_writer = os.pipe2(os.O_CLOEXEC)
            fds.fds.append(ready_writer)
            rollback.callback(os.close, ready_fd)
            go_reader, go_fd = os.pipe2(os.O_CLOEXEC)
            fds.fds.append(go_reader)
            rollback.callback(os.close, go_fd)
            record = start_record(records_folder, _take_snapshot(scope, plan))
            rollback.pop_all()
    except OSError as error:
        raise Failed(f"the sandbox for the command cannot be built: {error.strerror}") from error
    join_argv = cgroup.join_argv(groups)

    def clean_up() -> tuple[str, ...]:
        os.close(ready_fd)
        os.close(go_fd)
        if monitor is not None:
            monitor.release()
        cgroup.remove_groups(groups)
        devices.release()
        return (*visible_notes(killed_commands, plan.writable_folders), *plan.notes, *record.clean_up())

    gate = _WAIT_FOR_GO.format(ready=ready_writer, go=go_reader) if _shell_path() == _BASH else ""
    argv_inside = (
        (*_shell_argv(gate, record.token, {}, f'exec {_shell_path()} -c -- "$0"'), command)
        if cli_agent is None
        else (*_shell_argv(gate, record.token, CLI_AGENT_LIMITS, 'exec "$0" "$@"'), *cli_agent.argv)
    )
    start_gate_fd, sigterm_grace_s = (
        (cli_agent.start_gate_fd, cli_agent.sigterm_grace_s) if cli_agent else (-1, 0.0)
    )
    return SandboxedCommand(
        argv=(*join_argv, bwrap, "--args", options_fd, "--", *argv_inside),
        env={},
        fds=tuple(fds.fds),
        clean_up=clean_up,
        start_monitor=monitor and partial(start_monitor, monitor, record.snapshot, plan.scanned_folders),
        launcher_argc=len(join_argv) + 1,
        ready_fd=ready_fd,
        go_fd=go_fd,
        start_gate_fd=start_gate_fd,
        sigterm_grace_s=sigterm_grace_s,
        separate_stderr=cli_agent is not None,
    )


def _build_seccomp_filter(*, is_cli_agent: bool) -> bytes:
    """Build the filter.

    A CLI agent has a network and limits for inotify of its own, set before it starts.
    """
    if (seccomp_filter := build_filter(allow_tcp=is_cli_agent, allow_inotify=is_cli_agent)) is None:
        raise Failed(
            "sandbox level strict needs an x86_64 or aarch64 machine: the seccomp filter supports no other"
        )
    return seccomp_filter


def _check_command(command: str, bwrap: str) -> None:
    if "\0" in command:
        raise Failed("the command contains a NUL character. Remove it")
    if not has_bind_fd(bwrap):
        raise Failed(f"{bwrap} has no --bind-fd, so it cannot mount folders safely: {INSTALL_HINT}")


def _cli_agent_options(cli_agent: CliAgentProcess | None, fds: _Descriptors) -> list[str]:
    """Return a CLI agent's options: variables, and the gate that blocks it until its proxy is up."""
    if cli_agent is None:
        return []
    gate_reader, gate_writer = os.pipe2(os.O_CLOEXEC)
    fds.fds.append(gate_reader)
    cli_agent.set_start_gate(gate_writer)
    env = {"HOME": AGENT_HOME, **cli_agent.env}
    return [
        "--block-fd", str(gate_reader),
        *(option for name, value in env.items() for option in ("--setenv", name, value)),
    ]  # fmt: skip


def _take_snapshot(scope: Scope, plan: MountPlan) -> FileSnapshot:
    return FileSnapshot(
        scope=scope,
        writable=plan.writable_folders,
        closed_paths={**plan.closed_paths, **dict.fromkeys(plan.missing_files, PathKind.PROTECTED)},
        links=plan.closed_links,
        repositories=read_repository_states(plan.repositories),
    )


_NAMESPACE_OPTIONS = (
    "--unshare-user", "--unshare-all", "--uid", str(UID), "--gid", str(UID), "--hostname", HOST_NAME,
    "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv",
    *(word for name, value in COMMAND_ENVIRONMENT.items() for word in ("--setenv", name, value)),
)  # fmt: skip


def _system_options(fds: _Descriptors, devices: CommandDevices) -> list[str]:
    """Return the options for what every command sees.

    These are programs, a few files of /etc, its own /proc and /dev, and temporary folders.
    """
    options: list[str] = []
    for path in SYSTEM_FOLDERS:
        if os.path.islink(path):  # noqa: PTH114
            options += ["--symlink", os.readlink(path), path]  # noqa: PTH115
        elif os.path.isdir(path):  # noqa: PTH112
            options += ["--ro-bind", path, path]
    for path, text in _GENERATED_FILES.items():
        options += ["--file", fds.for_text(text.encode()), path]
    for name in _ETC_FILES:
        if text := _read_etc_file(f"/etc/{name}"):
            options += ["--file", fds.for_text(text), f"/etc/{name}"]
    for name in _ETC_FOLDERS:
        options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"] if os.path.isdir(f"/etc/{name}") else []  # noqa: PTH112
    options += ["--proc", "/proc"]
    for path in _HIDDEN_PROC_FILES:
        options += ["--ro-bind", "/dev/null", path] if os.path.exists(path) else []  # noqa: PTH110
    options += ["--remount-ro", "/proc", "--dev", "/dev"]
    for name, path in devices.paths.items():
        options += ["--dev-bind", path, f"/dev/{name}"]
    options += [*_tmpfs_options("/dev/shm", SMALL_TMPFS_BYTES), "--remount-ro", "/dev"]  # noqa: S108
    return [*options, "--dir", "/run"]


def _read_etc_file(path: str) -> bytes:
    """Read the file as it is now; empty if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return b""
    return _read_cached(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _read_cached(path: str, _mtime_ns: int, size: int) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read(size)


def _scope_options(plan: MountPlan, fds: _Descriptors, bwrap: str) -> list[str]:
    options = (
        _mount_options(Mount(kind=MountKind.WRITE, target=TMP, source=plan.tmp_source), fds)
        if plan.tmp_source
        else _tmpfs_options(TMP, LARGE_TMPFS_BYTES)
    )
    if not any(mount.target.startswith(f"{_VAR_TMP}/") or mount.target == _VAR_TMP for mount in plan.mounts):
        options += ["--symlink", TMP, _VAR_TMP]
    for mount in plan.mounts:
        options += _mount_options(mount, fds)
    if "--disable-userns" in _bwrap_help(bwrap):
        options.append("--disable-userns")
    for mount in plan.mounts:
        options += ["--remount-ro", mount.target] if mount.kind is MountKind.MOUNT_PARENT else []
    return [*options, "--remount-ro", "/", "--chdir", plan.cwd]


def _mount_options(mount: Mount, fds: _Descriptors) -> list[str]:
    if mount.kind is MountKind.EMPTY_FILE:
        return [
            "--perms",
            "0444",
            "--ro-bind-data",
            fds.for_text(read_safe_config(mount.target)),
            mount.target,
        ]
    if mount.kind is MountKind.GENERATED_FILE:
        return ["--perms", "0444", "--ro-bind-data", fds.for_text(mount.content), mount.target]
    if mount.kind in (MountKind.MOUNT_PARENT, MountKind.SCRATCH_FOLDER):
        return _tmpfs_options(mount.target, SMALL_TMPFS_BYTES)
    if (mask := _MASK_OPTIONS.get(mount.kind)) is not None:
        remount = ["--remount-ro", mount.target] if "--tmpfs" in mask else []
        return [*mask, mount.target, *remount]
    return [
        "--bind-fd" if mount.kind is MountKind.WRITE else "--ro-bind-fd",
        fds.for_mount(mount),
        mount.target,
    ]


def _tmpfs_options(target: str, size: int) -> list[str]:
    return ["--perms", "0700", "--size", str(size), "--tmpfs", target]


def _shell_argv(
    gate: str, record_token: str, limit_overrides: Mapping[str, int | None], final_command: str
) -> tuple[str, ...]:
    """Return the shell that checks the sandbox, passes the gate, sets the limits, and then runs the final command.

    The token marks the processes that build the sandbox. In a user namespace the processes are counted
    separately; before Linux 5.14 all processes of the user were counted.
    """
    shell = _shell_path()
    flags = {} if shell == _BASH else _SH_ULIMIT_FLAGS
    lines: list[str] = []
    for letter, resource_id, default, unit in RESOURCE_LIMITS:
        if (limit := limit_overrides.get(letter, default)) is None:
            continue
        maximum = (
            _MAX_USER_PROCESSES
            if resource_id == resource.RLIMIT_NPROC and not _has_per_namespace_nproc()
            else limit
        )
        hard_limit = resource.getrlimit(resource_id)[1]
        value = maximum if hard_limit == resource.RLIM_INFINITY else min(maximum, hard_limit)
        flag, flag_unit = flags.get(letter, (letter, unit))
        lines.append(f"ulimit -{flag} {value // flag_unit}")
    script = f"{_WAIT_FOR_FIRST_PROCESS}{gate}{' && '.join(lines)} && {final_command}"
    return (shell, "-c", f": {record_token}\n{script}")


def _shell_path() -> str:
    return _BASH if os.access(_BASH, os.X_OK) else "/bin/sh"


@lru_cache(maxsize=1)
def _has_per_namespace_nproc() -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (5, 14)


@lru_cache(maxsize=8)
def _bwrap_help(bwrap: str) -> str:
    """Return what this bubblewrap supports, by its own help text. Cached."""
    result = subprocess.run([bwrap, "--help"], env={}, capture_output=True, text=True, check=False)  # noqa: S603
    return result.stdout + result.stderr
