"""Build the seccomp filter: block calls that commands do not need or that leave the sandbox."""

import errno
import platform
import struct
from collections.abc import Iterable

from msgspec import Struct

_BPF_LOAD, _BPF_AND, _BPF_RETURN = 0x20, 0x54, 0x06
_BPF_JUMP_EQUAL, _BPF_JUMP_GE, _BPF_JUMP_SET = 0x15, 0x35, 0x45
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16

_RET_ALLOW, _RET_KILL, _RET_ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000
"""Bit that marks calls of the x32 ABI: other numbers for the same calls."""

_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_AF_INET, _AF_INET6 = 2, 10
_CLONE_NEW_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_CREATE_FLAGS = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE: without them the mode is ignored and may hold anything."""
_SETID_BITS = 0o6000
_FILE_TYPE_MASK, _FILE_TYPE_FIFO, _FILE_TYPE_REGULAR = 0o170000, 0o010000, 0o100000

_BLOCKED_SYSCALLS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440),
    "socket": (41, 198),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116), "vhangup": (153, 58),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "nfsservctl": (180, 42),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip
"""Numbers on x86_64 and on aarch64.

`socket` is blocked for every family: a command has no network, and the sockets of other programs are ways
out. Calls by which a process can only restrict itself further (prctl, seccomp) are allowed.
"""

_IPC_SYSCALLS = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
}  # fmt: skip
"""System V IPC and POSIX message queues, which have no files that Landlock could check.

They are blocked where a command shares them with the rest of the machine.
"""

_UNSUPPORTED_SYSCALLS = {"clone3": (435, 435), "openat2": (437, 437)}
"""System calls whose arguments are in memory, which no filter can read: programs fall back to the older call."""

_INOTIFY_SYSCALLS = {"inotify_init": (253, None), "inotify_init1": (294, 26)}
"""The instances are the user's: a command could take all of them. Programs that watch files poll instead."""

_CHMOD_SYSCALLS = {"chmod": (90, None, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2),
          "creat": (85, None, 1)}  # fmt: skip
"""The third number is the index of the mode argument.

No file gets a set-user-id or set-group-id bit: its owner may be root outside the sandbox.
"""

_OPEN_SYSCALLS = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""The third number is the index of the flags argument; the mode is the next one."""

_MKNOD_SYSCALLS = {"mknod": (133, None, 1), "mknodat": (259, 33, 2)}
_SOCKETPAIR, _CLONE, _IOCTL = (53, 199), (56, 220), (16, 29)


class _Architecture(Struct, frozen=True, kw_only=True):
    audit_arch: int
    column: int
    x32: bool = False


_ARCHITECTURES = {
    "x86_64": _Architecture(audit_arch=0xC000003E, column=0, x32=True),
    "aarch64": _Architecture(audit_arch=0xC00000B7, column=1),
}

Instructions = list[tuple[int, int, int, int]]


def build_filter(
    machine: str | None = None,
    *,
    allow_tcp: bool = False,
    allow_inotify: bool = False,
    block_ipc: bool = False,
) -> bytes | None:
    """Build the filter for a machine type in the kernel's format; None for an unknown machine.

    `allow_tcp` permits TCP sockets: for a process in a network namespace that contains only what was put
    there. `allow_inotify` is for a process in a user namespace with a limit of its own. `block_ipc` blocks IPC by
    number or name: for a process without an IPC namespace of its own.
    """
    architecture = _ARCHITECTURES.get(machine or platform.machine())
    if architecture is None:
        return None
    instructions: Instructions = [
        _load_word(_OFFSET_ARCH),
        (_BPF_JUMP_EQUAL, 1, 0, architecture.audit_arch),
        _return_verdict(_RET_KILL),
        _load_word(_OFFSET_NUMBER),
    ]
    if architecture.x32:
        instructions += [(_BPF_JUMP_GE, 0, 1, _X32_BIT), _return_errno()]
    blocked = [numbers for name, numbers in _BLOCKED_SYSCALLS.items() if not (allow_tcp and name == "socket")]
    blocked += _IPC_SYSCALLS.values() if block_ipc else ()
    instructions += _block_syscalls((numbers[architecture.column] for numbers in blocked), errno.EPERM)
    unsupported = (*_UNSUPPORTED_SYSCALLS.values(), *(() if allow_inotify else _INOTIFY_SYSCALLS.values()))
    instructions += _block_syscalls((numbers[architecture.column] for numbers in unsupported), errno.ENOSYS)
    if allow_tcp:
        instructions += _syscall_rules(_BLOCKED_SYSCALLS["socket"][architecture.column], _tcp_socket_rules())
    for number, rules in _argument_rules(architecture.column):
        instructions += _syscall_rules(number, rules)
    instructions.append(_return_verdict(_RET_ALLOW))
    return b"".join(struct.pack("<HBBI", *each) for each in instructions)


def _argument_rules(column: int) -> Iterable[tuple[int | None, Instructions]]:
    """Yield the calls that are decided by their arguments.

    Only the low half of an argument is compared: the kernel uses no more either.
    """
    yield _SOCKETPAIR[column], _socketpair_rules()
    yield _CLONE[column], [_load_argument(0), *_block_bits(_CLONE_NEW_FLAGS), _return_verdict(_RET_ALLOW)]
    yield (
        _IOCTL[column],
        [_load_argument(1), *_block_value(_TIOCSTI), *_block_value(_TIOCLINUX), _return_verdict(_RET_ALLOW)],
    )
    for *numbers, index in _CHMOD_SYSCALLS.values():
        yield (
            numbers[column],
            [_load_argument(index or 0), *_block_bits(_SETID_BITS), _return_verdict(_RET_ALLOW)],
        )
    for *numbers, index in _OPEN_SYSCALLS.values():
        yield numbers[column], _open_rules(index or 0)
    for *numbers, index in _MKNOD_SYSCALLS.values():
        yield numbers[column], _mknod_rules(index or 0)


def _socketpair_rules() -> Instructions:
    """Allow connected stream pairs, which are pipes. Datagram pairs can be redirected elsewhere."""
    return [
        _load_argument(0), (_BPF_JUMP_EQUAL, 1, 0, _AF_UNIX), _return_errno(),
        _load_argument(1), (_BPF_AND, 0, 0, _SOCK_TYPE_MASK), (_BPF_JUMP_EQUAL, 1, 0, _SOCK_STREAM), _return_errno(), _return_verdict(_RET_ALLOW),
    ]  # fmt: skip


def _tcp_socket_rules() -> Instructions:
    return [
        _load_argument(0), (_BPF_JUMP_EQUAL, 2, 0, _AF_INET), (_BPF_JUMP_EQUAL, 1, 0, _AF_INET6), _return_errno(),
        _load_argument(1), (_BPF_AND, 0, 0, _SOCK_TYPE_MASK), (_BPF_JUMP_EQUAL, 1, 0, _SOCK_STREAM), _return_errno(), _return_verdict(_RET_ALLOW),
    ]  # fmt: skip


def _open_rules(flags: int) -> Instructions:
    return [
        _load_argument(flags), (_BPF_JUMP_SET, 1, 0, _CREATE_FLAGS), _return_verdict(_RET_ALLOW),
        _load_argument(flags + 1), *_block_bits(_SETID_BITS), _return_verdict(_RET_ALLOW),
    ]  # fmt: skip


def _mknod_rules(mode: int) -> Instructions:
    """Allow regular files and named pipes; no devices and no sockets."""
    return [
        _load_argument(mode), *_block_bits(_SETID_BITS), (_BPF_AND, 0, 0, _FILE_TYPE_MASK),
        (_BPF_JUMP_EQUAL, 3, 0, _FILE_TYPE_FIFO), (_BPF_JUMP_EQUAL, 2, 0, _FILE_TYPE_REGULAR), (_BPF_JUMP_EQUAL, 1, 0, 0), _return_errno(), _return_verdict(_RET_ALLOW),
    ]  # fmt: skip


def _block_syscalls(numbers: Iterable[int | None], error_number: int) -> Instructions:
    return [
        instruction
        for number in numbers
        for instruction in _syscall_rules(number, [_return_errno(error_number)])
    ]


def _syscall_rules(number: int | None, rules: Instructions) -> Instructions:
    """Apply rules to one call number.

    The rules always end the filter, so the number is still loaded when they are skipped.
    """
    return [] if number is None else [(_BPF_JUMP_EQUAL, 0, len(rules), number), *rules]


def _block_bits(bits: int) -> Instructions:
    return [(_BPF_JUMP_SET, 0, 1, bits), _return_errno()]


def _block_value(value: int) -> Instructions:
    return [(_BPF_JUMP_EQUAL, 0, 1, value), _return_errno()]


def _load_word(offset: int) -> tuple[int, int, int, int]:
    return (_BPF_LOAD, 0, 0, offset)


def _load_argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument: both architectures are little-endian."""
    return _load_word(_OFFSET_ARGUMENTS + 8 * index)


def _return_verdict(verdict: int) -> tuple[int, int, int, int]:
    return (_BPF_RETURN, 0, 0, verdict)


def _return_errno(error_number: int = errno.EPERM) -> tuple[int, int, int, int]:
    return _return_verdict(_RET_ERRNO | error_number)
