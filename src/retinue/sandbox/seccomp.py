"""The filter on system calls, assembled here: what no command needs and what leads out of a sandbox is refused."""

import errno
import platform
import struct
from collections.abc import Iterable

from retinue.domain.value import value

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
"""The bit that marks calls of the x32 ABI: other numbers for the same calls."""

_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_AF_INET, _AF_INET6 = 2, 10
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_MAKES_A_FILE = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE: without them the mode is not looked at and may hold anything."""
_SET_ID = 0o6000
_KIND, _FIFO, _REGULAR = 0o170000, 0o010000, 0o100000

_REFUSED = {
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
"""Numbers on x86_64 and on aarch64. `socket` goes with them whatever its family: a command has no network, and the
sockets of other programs are ways out. What a process may still do to itself (prctl, seccomp) only takes more away."""

_ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
"""What they are to do stands in memory, where no filter can look: programs take the older call instead."""

_MODES = {"chmod": (90, None, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2),
          "creat": (85, None, 1)}  # fmt: skip
"""And which argument is the mode. Nothing gets a set-user-id or set-group-id bit: its owner here may be root there."""

_OPENS = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""And which argument holds the flags; the mode is the next."""

_NODES = {"mknod": (133, None, 1), "mknodat": (259, 33, 2)}
_SOCKETPAIR, _CLONE, _IOCTL = (53, 199), (56, 220), (16, 29)


@value
class _Machine:
    arch: int
    column: int
    x32: bool = False


_MACHINES = {
    "x86_64": _Machine(arch=0xC000003E, column=0, x32=True),
    "aarch64": _Machine(arch=0xC00000B7, column=1),
}

Code = list[tuple[int, int, int, int]]


def program(machine: str | None = None, *, talks: bool = False) -> bytes | None:
    """The filter for this kind of machine, as the kernel reads it; None where its numbers are not known. What `talks`
    may make streams of the internet's kind: in a network of its own, where nothing is but what was put there."""
    kind = _MACHINES.get(machine or platform.machine())
    if kind is None:
        return None
    code: Code = [_load(_ARCH), (_EQUAL, 1, 0, kind.arch), _give(_KILL), _load(_NUMBER)]
    if kind.x32:
        code += [(_AT_LEAST, 0, 1, _X32), _refuse()]
    refused = [numbers for name, numbers in _REFUSED.items() if not (talks and name == "socket")]
    code += _all_refused((numbers[kind.column] for numbers in refused), errno.EPERM)
    code += _all_refused((numbers[kind.column] for numbers in _ABSENT.values()), errno.ENOSYS)
    if talks:
        code += _for(_REFUSED["socket"][kind.column], _streams())
    for number, body in _looked_into(kind.column):
        code += _for(number, body)
    code.append(_give(_ALLOW))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _looked_into(column: int) -> Iterable[tuple[int | None, Code]]:
    """The calls whose arguments decide. Only the low half of an argument is compared: the kernel, too, takes no more."""
    yield _SOCKETPAIR[column], _pairs()
    yield _CLONE[column], [_argument(0), *_refuse_bits(_NEW_NAMESPACES), _give(_ALLOW)]
    yield _IOCTL[column], [_argument(1), *_refuse_value(_TIOCSTI), *_refuse_value(_TIOCLINUX), _give(_ALLOW)]
    for *numbers, at in _MODES.values():
        yield numbers[column], [_argument(at or 0), *_refuse_bits(_SET_ID), _give(_ALLOW)]
    for *numbers, at in _OPENS.values():
        yield numbers[column], _opening(at or 0)
    for *numbers, at in _NODES.values():
        yield numbers[column], _making(at or 0)


def _pairs() -> Code:
    """A connected pair of streams is a pipe. Datagram pairs can be pointed elsewhere."""
    return [
        _argument(0), (_EQUAL, 1, 0, _AF_UNIX), _refuse(),
        _argument(1), (_AND, 0, 0, _SOCK_TYPE), (_EQUAL, 1, 0, _SOCK_STREAM), _refuse(), _give(_ALLOW),
    ]  # fmt: skip


def _streams() -> Code:
    return [
        _argument(0), (_EQUAL, 2, 0, _AF_INET), (_EQUAL, 1, 0, _AF_INET6), _refuse(),
        _argument(1), (_AND, 0, 0, _SOCK_TYPE), (_EQUAL, 1, 0, _SOCK_STREAM), _refuse(), _give(_ALLOW),
    ]  # fmt: skip


def _opening(flags: int) -> Code:
    return [
        _argument(flags), (_ANY_BIT, 1, 0, _MAKES_A_FILE), _give(_ALLOW),
        _argument(flags + 1), *_refuse_bits(_SET_ID), _give(_ALLOW),
    ]  # fmt: skip


def _making(mode: int) -> Code:
    """Files and pipes with a name; no devices and no sockets."""
    return [
        _argument(mode), *_refuse_bits(_SET_ID), (_AND, 0, 0, _KIND),
        (_EQUAL, 3, 0, _FIFO), (_EQUAL, 2, 0, _REGULAR), (_EQUAL, 1, 0, 0), _refuse(), _give(_ALLOW),
    ]  # fmt: skip


def _all_refused(numbers: Iterable[int | None], code: int) -> Code:
    return [line for number in numbers for line in _for(number, [_refuse(code)])]


def _for(number: int | None, body: Code) -> Code:
    """A body always ends the filter, so whoever passes by still has the number loaded."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _refuse_bits(bits: int) -> Code:
    return [(_ANY_BIT, 0, 1, bits), _refuse()]


def _refuse_value(value: int) -> Code:
    return [(_EQUAL, 0, 1, value), _refuse()]


def _load(at: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, at)


def _argument(which: int) -> tuple[int, int, int, int]:
    """Its low half: both kinds of machine are little-endian."""
    return _load(_ARGUMENTS + 8 * which)


def _give(verdict: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, verdict)


def _refuse(code: int = errno.EPERM) -> tuple[int, int, int, int]:
    return _give(_ERRNO | code)
