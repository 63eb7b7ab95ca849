"""The strict cell's filter: what no command needs of the kernel is refused, and what programs need is not."""

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
    got = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return "ok" if got >= 0 else errno.errorcode[ctypes.get_errno()]
def tried(do, *args):
    try:
        do(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
"""

REFUSED = {
    "ptrace of a child": "call(101, 117, 0, 0, 0, 0)",
    "reading another's memory": "call(310, 270, os.getppid(), 0, 0, 0, 0, 0)",
    "writing another's memory": "call(311, 271, os.getppid(), 0, 0, 0, 0, 0)",
    "taking another's descriptor": "call(438, 438, 0, 0, 0)",
    "bpf": "call(321, 280, 0, 0, 0)",
    "perf_event_open": "call(298, 241, 0, 0, -1, -1, 0)",
    "userfaultfd": "call(323, 282, 0)",
    "io_uring_setup": "call(425, 425, 1, ctypes.create_string_buffer(200))",
    "keyctl": "call(250, 219, 0, -3, 0)",
    "add_key": "call(248, 217, b'user', b'x', b'y', 1, -3)",
    "open_by_handle_at": "call(304, 265, -100, ctypes.create_string_buffer(200), 0)",
    "unshare of the user": "call(272, 97, 0x10000000)",
    "setns": "call(308, 268, 0, 0)",
    "clone into a new user": "call(56, 220, 0x10000011, 0, 0, 0, 0)",
    "mount": "call(165, 40, b'x', b'/tmp', b'tmpfs', 0, 0)",
    "umount2": "call(166, 39, b'/proc', 2)",
    "open_tree": "call(428, 428, -100, b'/', 1)",
    "fsopen": "call(430, 430, b'tmpfs', 0)",
    "mount_setattr": "call(442, 442, -100, b'/', 0, ctypes.create_string_buffer(32), 32)",
    "pivot_root": "call(155, 41, b'/', b'/tmp')",
    "chroot": "call(161, 51, b'/tmp')",
    "the kernel's log": "call(103, 116, 3, ctypes.create_string_buffer(100), 100)",
    "kexec": "call(246, 104, 0, 0, 0, 0)",
    "modules": "call(313, 273, 0, b'', 0)",
    "the host's name": "call(170, 161, b'x', 1)",
    "AF_UNIX": "tried(socket.socket, 1, 1)",
    "AF_INET": "tried(socket.socket, 2, 1)",
    "AF_INET6": "tried(socket.socket, 10, 2)",
    "AF_NETLINK": "tried(socket.socket, 16, 3)",
    "AF_PACKET": "tried(socket.socket, 17, 3)",
    "AF_ALG": "tried(socket.socket, 38, 5)",
    "AF_VSOCK": "tried(socket.socket, 40, 1)",
    "AF_XDP": "tried(socket.socket, 44, 3)",
    "a pair of datagram sockets": "tried(socket.socketpair, 1, 2)",
    "a pair of packet sockets": "tried(socket.socketpair, 1, 5)",
    "the family with high bits": "call(41, 198, (1 << 32) | 1, 1, 0)",
    "chmod u+s": "tried(os.chmod, 'f', 0o4755)",
    "chmod g+s": "tried(os.chmod, 'f', 0o2755)",
    "fchmod u+s": "tried(os.fchmod, os.open('f', os.O_RDONLY), 0o4755)",
    "a file born with u+s": "tried(os.open, 'g', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "a device": "tried(os.mknod, 'd', 0o020666, os.makedev(1, 3))",
    "a socket's name": "tried(os.mknod, 's', 0o140666)",
    "TIOCSTI": "call(16, 29, 0, 0x5412, b'x')",
    "TIOCSTI with high bits": "call(16, 29, 0, (1 << 32) | 0x5412, b'x')",
    "TIOCLINUX": "call(16, 29, 0, 0x541C, b'x')",
}

ABSENT = {"clone3": "call(435, 435, 0, 0)", "openat2": "call(437, 437, -100, b'f', b'', 0)"}

ALLOWED = {
    "a pair of streams": "tried(socket.socketpair)",
    "chmod": "tried(os.chmod, 'f', 0o755)",
    "a new file": "tried(os.open, 'n', os.O_CREAT | os.O_WRONLY, 0o600)",
    "a pipe with a name": "tried(os.mkfifo, '/tmp/p')",
    "a process": "'ok' if os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] == 0 else 'no'",
    "a thread": "(__import__('threading').Thread(target=print).start(), 'ok')[1]",
    "a file mapped into memory": "(__import__('mmap').mmap(-1, 4096), 'ok')[1]",
}


def test_every_way_out_through_the_kernel_is_refused_and_ordinary_work_is_not(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S04, S08, S09."""
    (workspace / "f").write_text("x")
    tries = {**REFUSED, **ABSENT, **ALLOWED}
    lines = "\n".join(f"print({name!r}, {code}, sep='=')" for name, code in tries.items())
    came = run_in_sandbox(scope, f"{PREAMBLE}\n{lines}", python=True)
    said = dict(line.rsplit("=", 1) for line in came.text.splitlines() if "=" in line)
    assert said == {
        **dict.fromkeys(REFUSED, "EPERM"),
        **dict.fromkeys(ABSENT, "ENOSYS"),
        **dict.fromkeys(ALLOWED, "ok"),
    }, came.text


def test_calls_by_the_numbers_of_another_abi_are_refused(scope: Scope, run_in_sandbox: RunInSandbox):
    """Shows: S09."""
    came = run_in_sandbox(scope, f"{PREAMBLE}\nprint(call(0x40000000 + 41, -1, 2, 1, 0))", python=True)
    assert came.text.strip() in ("EPERM", "ENOSYS")


def test_nothing_can_be_typed_into_the_terminal_that_a_command_was_given(
    scope: Scope, run_in_sandbox: RunInSandbox
):
    """Shows: S10."""
    ours, theirs = pty.openpty()
    try:
        came = run_in_sandbox(
            scope,
            f"{PREAMBLE}\nprint(call(16, 29, 0, 0x5412, b'x'), call(16, 29, 0, (1 << 32) | 0x5412, b'x'))\n"
            "print(tried(os.open, '/dev/tty', os.O_RDWR))",
            python=True,
            stdin=theirs,
        )
        os.set_blocking(theirs, False)
        with pytest.raises(BlockingIOError):
            os.read(theirs, 1)
    finally:
        os.close(ours)
        os.close(theirs)
    assert came.text.split() == ["EPERM", "EPERM", "ENXIO"]


def test_servers_of_this_machine_are_not_reached(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """A socket in the workspace, one by an abstract name, and the loopback.

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
    came = run_in_sandbox(
        scope,
        f"""{PREAMBLE}
print(tried(lambda: socket.socket(1).connect("sock")))
print(tried(lambda: socket.socket(1).connect("\\0retinue-test-{os.getpid()}")))
print(tried(lambda: socket.create_connection(("127.0.0.1", {port}), 2)))
print(os.path.exists("/run/docker.sock"), os.listdir("/run"))
""",
        python=True,
    )
    for server in servers:
        with pytest.raises(BlockingIOError):
            server.accept()
        server.close()
    assert came.text.split() == ["EPERM", "EPERM", "EPERM", "False", "[]"]


def test_the_filter_is_made_for_known_machines_only():
    for machine in ("x86_64", "aarch64"):
        code = build_filter(machine)
        assert code is not None
        assert 0 < len(code) // 8 < 4096
        assert len(code) % 8 == 0
    assert build_filter("riscv64") is None


def test_outside_the_cell_the_same_calls_are_let_through():
    """A positive control: it is the filter that refuses them."""
    for pair in (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), (socket.socket(socket.AF_UNIX),)):
        for each in pair:
            each.close()
