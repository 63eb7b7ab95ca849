"""The kernel's word that a name has appeared in a folder: inotify, through the C library that Python itself runs on."""

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

CREATED = 0x100
MOVED_IN = 0x80
LOST = 0x4000
"""There was more than the kernel keeps: look for yourself."""
ENDED = 0x8000
"""The folder is watched no more: it is gone."""
IS_FOLDER = 0x4000_0000

_ONLY_FOLDERS = 0x0100_0000
_NO_LINKS = 0x0200_0000
_MASK = CREATED | MOVED_IN | _ONLY_FOLDERS | _NO_LINKS
_HEAD = struct.Struct("iIII")
_PIECE = 65_536


class Appeared(NamedTuple):
    """Something in a watched folder, or about it."""

    watch: int
    what: int
    name: str


class Inotify:
    """One set of watched folders. Its descriptor becomes readable when there is something to tell."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._done(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, folder: str) -> int:
        """The number by which the folder is told of. OSError when it is none, cannot be read, or is one too many."""
        path = ctypes.c_char_p(os.fsencode(folder))
        return self._done(self._libc.inotify_add_watch(self.fd, path, ctypes.c_uint32(_MASK)))

    def read(self) -> Iterator[Appeared]:
        """What the kernel has to tell now, up to a piece of it."""
        try:
            piece = os.read(self.fd, _PIECE)
        except BlockingIOError:
            return
        at = 0
        while at < len(piece):
            watch, what, _, length = _HEAD.unpack_from(piece, at)
            at += _HEAD.size + length
            yield Appeared(watch, what, os.fsdecode(piece[at - length : at].rstrip(b"\0")))

    def close(self) -> None:
        os.close(self.fd)

    @staticmethod
    def _done(answer: int) -> int:
        if answer < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return answer
