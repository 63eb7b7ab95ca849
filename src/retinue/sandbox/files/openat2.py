"""Open a path below a folder that cannot lead outside: with openat2 or an equivalent walk."""

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Callable
from functools import cache

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_SYSCALL_NUMBERS = {"x86_64": 437, "aarch64": 437}
"""System call numbers of known machines; elsewhere the walk is used."""

_MAX_TRIES = 256
"""Retries after EAGAIN, which the kernel returns when a rename races with the lookup."""

_MAX_LINKS = 40
"""The kernel's own limit."""

_UNSUPPORTED_ERRORS = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG})
"""Errors from a kernel, or a filter in front of it, without openat2."""

Opener = Callable[[int, str, int, bool], int]
"""(anchor, rest, flags, follow_links) → descriptor: open `rest` below `anchor`."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def best_opener() -> Opener:
    """Return the kernel's openat2 if it works on this machine, else the walk. Cached."""
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        return walk_open
    kernel_open = _kernel_opener(number)
    try:
        root_fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return walk_open
    try:
        os.close(kernel_open(root_fd, ".", os.O_PATH | os.O_CLOEXEC, True))
    except OSError as error:
        return walk_open if error.errno in _UNSUPPORTED_ERRORS else kernel_open
    finally:
        os.close(root_fd)
    return kernel_open


@cache
def _open_how(flags: int, follow_links: bool) -> _OpenHow:
    """Return the structure for these options. The kernel only reads it, so it can be shared."""
    resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (0 if follow_links else RESOLVE_NO_SYMLINKS)
    return _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)


def _kernel_opener(number: int) -> Opener:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    syscall.restype = ctypes.c_long
    size = ctypes.sizeof(_OpenHow)

    def kernel_open(anchor: int, rest: str, flags: int, follow_links: bool) -> int:
        open_how = _open_how(flags, follow_links)
        name = os.fsencode(rest)
        code = errno.EAGAIN
        for _ in range(_MAX_TRIES):
            fd: int = syscall(number, anchor, name, ctypes.addressof(open_how), size)
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code), rest)

    return kernel_open


def walk_open(anchor: int, rest: str, flags: int, follow_links: bool) -> int:
    """Open component by component, resolving each link here instead of in the kernel.

    `..` returns to the descriptor it came from, so a folder moved meanwhile cannot lead out.
    """
    trail = [os.dup(anchor)]
    pending = _reversed_parts(rest)
    links_left = _MAX_LINKS if follow_links else 0
    try:
        while pending:
            name = pending.pop()
            if name == "..":
                _open_parent(trail, rest)
                continue
            found = _open_component(trail[-1], name, os.O_PATH | os.O_DIRECTORY if pending else flags)
            if isinstance(found, str):
                links_left -= 1
                pending += _reversed_parts(_check_link_target(found, links_left, rest))
            elif pending:
                trail.append(found)
            else:
                return found
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=trail[-1])
    finally:
        for fd in trail:
            os.close(fd)


def _reversed_parts(path: str) -> list[str]:
    """Return the components, last first, ready to be popped."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open_component(folder: int, name: str, flags: int) -> int | str:
    """Open one component; return a descriptor, or the text of a link."""
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return _read_link(folder, name, error)
    if not stat.S_ISLNK(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return os.readlink(name, dir_fd=folder)


def _read_link(folder: int, name: str, error: OSError) -> str:
    """Return a link's text; raise the first error if it is no link after all."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        raise error from None


def _check_link_target(target: str, links_left: int, rest: str) -> str:
    if links_left < 0:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), rest)
    if target.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), rest)
    return target


def _open_parent(trail: list[int], rest: str) -> None:
    if len(trail) == 1:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), rest)
    os.close(trail.pop())
