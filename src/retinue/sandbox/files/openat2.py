"""Opening below a folder so that nothing on the way can lead out of it: the kernel's openat2, or a walk that does the same."""

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Callable
from functools import cache

NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08

_NUMBERS = {"x86_64": 437, "aarch64": 437}
"""The system call's number on the machines we know; elsewhere the walk is used."""

_TRIES = 256
"""A rename that races with the lookup makes the kernel answer EAGAIN; it is asked again this often."""

_MAX_LINKS = 40
"""As many as the kernel itself would follow."""

_MISSING = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG})
"""What a kernel, or a filter in front of it, answers when there is no openat2."""

Opener = Callable[[int, str, int, bool], int]
"""(anchor, rest, flags, links) → descriptor: `rest` is opened below `anchor`, through links only if `links`."""


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def best_opener() -> Opener:
    """The kernel's way where it works on this machine, else the walk. Tried once."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return walk_open
    asked = _kernel_opener(number)
    try:
        here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return walk_open
    try:
        os.close(asked(here, ".", os.O_PATH | os.O_CLOEXEC, True))
    except OSError as error:
        return walk_open if error.errno in _MISSING else asked
    finally:
        os.close(here)
    return asked


@cache
def _how(flags: int, links: bool) -> _How:
    """The kernel only reads it, so one serves every call that wants the same."""
    resolve = BENEATH | NO_MAGICLINKS | (0 if links else NO_SYMLINKS)
    return _How(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)


def _kernel_opener(number: int) -> Opener:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    syscall.restype = ctypes.c_long
    size = ctypes.sizeof(_How)

    def kernel_open(anchor: int, rest: str, flags: int, links: bool) -> int:
        how = _how(flags, links)
        name = os.fsencode(rest)
        code = errno.EAGAIN
        for _ in range(_TRIES):
            got: int = syscall(number, anchor, name, ctypes.addressof(how), size)
            if got >= 0:
                return got
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code), rest)

    return kernel_open


def walk_open(anchor: int, rest: str, flags: int, links: bool) -> int:
    """Component by component with no link followed by the kernel: each link's text is put in its place here.
    `..` goes back to the descriptor it came from, so a folder moved meanwhile cannot lead out."""
    trail = [os.dup(anchor)]
    todo = _parts(rest)
    links_left = _MAX_LINKS if links else 0
    try:
        while todo:
            name = todo.pop()
            if name == "..":
                _back(trail, rest)
                continue
            got = _component(trail[-1], name, os.O_PATH | os.O_DIRECTORY if todo else flags)
            if isinstance(got, str):
                links_left -= 1
                todo += _parts(_followed(got, links_left, rest))
            elif todo:
                trail.append(got)
            else:
                return got
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=trail[-1])
    finally:
        for fd in trail:
            os.close(fd)


def _parts(path: str) -> list[str]:
    """Last first, ready to be popped."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _component(folder: int, name: str, flags: int) -> int | str:
    """A descriptor, or what the link of this name says."""
    try:
        got = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return _target(folder, name, error)
    if not stat.S_ISLNK(os.fstat(got).st_mode):
        return got
    os.close(got)
    return os.readlink(name, dir_fd=folder)


def _target(folder: int, name: str, error: OSError) -> str:
    """If it is no link after all, the first answer stands."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        raise error from None


def _followed(target: str, links_left: int, rest: str) -> str:
    if links_left < 0:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), rest)
    if target.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), rest)
    return target


def _back(trail: list[int], rest: str) -> None:
    if len(trail) == 1:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), rest)
    os.close(trail.pop())
