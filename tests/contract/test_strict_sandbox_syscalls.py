"""The seccomp filter of the strict sandbox: dangerous system calls are refused, ordinary ones work."""

import os
import pty
import socket
from pathlib import Path

import pytest
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import Scope
from retinue.sandbox.seccomp import build_filter

PREAMBLE = """
import ctypes, errno, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
def call(x86, arm64, *args):
    number = arm64 if arm else x86
    ctypes.set_errno(0)
    status = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return "ok" if status >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(function, *args):
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
"""

REFUSED = {
    "ptrace of a child": "call(101, 117, 0, 0, 0, 0)",
    "reading the memory of another process": "call(310, 270, os.getppid(), 0, 0, 0, 0, 0)",
    "writing the memory of another process": "call(311, 271, os.getppid(), 0, 0, 0, 0, 0)",
    "copying a file descriptor of another process": "call(438, 438, 0, 0, 0)",
    "bpf": "call(321, 280, 0, 0, 0)",
    "perf_event_open": "call(298, 241, 0, 0, -1, -1, 0)",
    "userfaultfd": "call(323, 282, 0)",
    "io_uring_setup": "call(425, 425, 1, ctypes.create_string_buffer(200))",
    "keyctl": "call(250, 219, 0, -3, 0)",
    "add_key": "call(248, 217, b'user', b'x', b'y', 1, -3)",
    "open_by_handle_at": "call(304, 265, -100, ctypes.create_string_buffer(200), 0)",
    "unshare of the user namespace": "call(272, 97, 0x10000000)",
    "setns": "call(308, 268, 0, 0)",
    "clone into a new user namespace": "call(56, 220, 0x10000011, 0, 0, 0, 0)",
    "mount": "call(165, 40, b'x', b'/tmp', b'tmpfs', 0, 0)",
    "umount2": "call(166, 39, b'/proc', 2)",
    "open_tree": "call(428, 428, -100, b'/', 1)",
    "fsopen": "call(430, 430, b'tmpfs', 0)",
    "mount_setattr": "call(442, 442, -100, b'/', 0, ctypes.create_string_buffer(32), 32)",
    "pivot_root": "call(155, 41, b'/', b'/tmp')",
    "chroot": "call(161, 51, b'/tmp')",
    "reading the kernel log": "call(103, 116, 3, ctypes.create_string_buffer(100), 100)",
    "kexec": "call(246, 104, 0, 0, 0, 0)",
    "loading a kernel module": "call(313, 273, 0, b'', 0)",
    "setting the host name": "call(170, 161, b'x', 1)",
    "AF_UNIX": "attempt(socket.socket, 1, 1)",
    "AF_INET": "attempt(socket.socket, 2, 1)",
    "AF_INET6": "attempt(socket.socket, 10, 2)",
    "AF_NETLINK": "attempt(socket.socket, 16, 3)",
    "AF_PACKET": "attempt(socket.socket, 17, 3)",
    "AF_ALG": "attempt(socket.socket, 38, 5)",
    "AF_VSOCK": "attempt(socket.socket, 40, 1)",
    "AF_XDP": "attempt(socket.socket, 44, 3)",
    "a pair of datagram sockets": "attempt(socket.socketpair, 1, 2)",
    "a pair of packet sockets": "attempt(socket.socketpair, 1, 5)",
    "AF_UNIX with high bits": "call(41, 198, (1 << 32) | 1, 1, 0)",
    "chmod u+s": "attempt(os.chmod, 'f', 0o4755)",
    "chmod g+s": "attempt(os.chmod, 'f', 0o2755)",
    "fchmod u+s": "attempt(os.fchmod, os.open('f', os.O_RDONLY), 0o4755)",
    "a new file with u+s": "attempt(os.open, 'g', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "a device node": "attempt(os.mknod, 'd', 0o020666, os.makedev(1, 3))",
    "a socket node": "attempt(os.mknod, 's', 0o140666)",
    "TIOCSTI": "call(16, 29, 0, 0x5412, b'x')",
    "TIOCSTI with high bits": "call(16, 29, 0, (1 << 32) | 0x5412, b'x')",
    "TIOCLINUX": "call(16, 29, 0, 0x541C, b'x')",
}

ABSENT = {"clone3": "call(435, 435, 0, 0)", "openat2": "call(437, 437, -100, b'f', b'', 0)"}

ALLOWED = {
    "a pair of streams": "attempt(socket.socketpair)",
    "chmod": "attempt(os.chmod, 'f', 0o755)",
    "a new file": "attempt(os.open, 'n', os.O_CREAT | os.O_WRONLY, 0o600)",
    "a named pipe": "attempt(os.mkfifo, '/tmp/p')",
    "a process": "'ok' if os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] == 0 else 'no'",
    "a thread": "(__import__('threading').Thread(target=print).start(), 'ok')[1]",
    "a file mapped into memory": "(__import__('mmap').mmap(-1, 4096), 'ok')[1]",
}


def test_dangerous_system_calls_are_refused_and_ordinary_ones_are_allowed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S04, S08, S09."""
    (workspace / "f").write_text("x")
    attempts = {**REFUSED, **ABSENT, **ALLOWED}
    lines = "\n".join(f"print({name!r}, {code}, sep='=')" for name, code in attempts.items())
    result = run_in_sandbox(scope, f"{PREAMBLE}\n{lines}", python=True)
    outcomes = dict(line.rsplit("=", 1) for line in result.output.splitlines() if "=" in line)
    assert outcomes == {
        **dict.fromkeys(REFUSED, "EPERM"),
        **dict.fromkeys(ABSENT, "ENOSYS"),
        **dict.fromkeys(ALLOWED, "ok"),
    }, result.output


def test_system_calls_of_the_x32_abi_are_refused(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: S09."""
    result = run_in_sandbox(scope, f"{PREAMBLE}\nprint(call(0x40000000 + 41, -1, 2, 1, 0))", python=True)
    assert result.output.strip() in ("EPERM", "ENOSYS")


def test_a_command_cannot_inject_input_into_its_terminal(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: S10."""
    master, slave = pty.openpty()
    try:
        result = run_in_sandbox(
            scope,
            f"{PREAMBLE}\nprint(call(16, 29, 0, 0x5412, b'x'), call(16, 29, 0, (1 << 32) | 0x5412, b'x'))\n"
            "print(attempt(os.open, '/dev/tty', os.O_RDWR))",
            python=True,
            stdin=slave,
        )
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 1)
    finally:
        os.close(master)
        os.close(slave)
    assert result.output.split() == ["EPERM", "EPERM", "ENXIO"]


def test_a_command_cannot_connect_to_servers_of_this_machine(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The servers listen on a Unix socket in the workspace, an abstract Unix socket and loopback TCP.

    Shows: S03, S04, S05.
    """
    servers = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.socket()]
    before = Path.cwd()
    os.chdir(workspace)
    servers[0].bind("sock")
    os.chdir(before)
    servers[1].bind(f"\0retinue-test-{os.getpid()}")
    servers[2].bind(("127.0.0.1", 0))
    for server in servers:
        server.listen()
        server.setblocking(False)
    port = servers[2].getsockname()[1]
    result = run_in_sandbox(
        scope,
        f"""{PREAMBLE}
print(attempt(lambda: socket.socket(1).connect("sock")))
print(attempt(lambda: socket.socket(1).connect("\\0retinue-test-{os.getpid()}")))
print(attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 2)))
print(os.path.exists("/run/docker.sock"), os.listdir("/run"))
""",
        python=True,
    )
    for server in servers:
        with pytest.raises(BlockingIOError):
            server.accept()
        server.close()
    assert result.output.split() == ["EPERM", "EPERM", "EPERM", "False", "[]"]


def test_a_command_cannot_read_which_keys_users_of_the_machine_have(
    scope: Scope, run_in_sandbox: RunInSandbox
):
    for name in ("/proc/keys", "/proc/key-users"):
        if Path(name).exists():
            assert Path(name).read_text(), "control: outside the sandbox, everyone can read it"
            assert run_in_sandbox(scope, f"cat {name} 2>/dev/null").output == ""
            assert run_in_sandbox(scope, f"umount {name}").exit_code != 0


def test_a_seccomp_filter_is_built_only_for_known_architectures():
    for machine in ("x86_64", "aarch64"):
        code = build_filter(machine)
        assert code is not None
        assert 0 < len(code) // 8 < 4096
        assert len(code) % 8 == 0
    assert build_filter("riscv64") is None


def test_the_same_socket_calls_work_outside_the_sandbox():
    """Control test: only the filter refuses these calls."""
    for pair in (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), (socket.socket(socket.AF_UNIX),)):
        for opened in pair:
            opened.close()
