"""Watch folders for new names with Linux inotify, through ctypes."""

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

CREATED = 0x100
MOVED_IN = 0x80
QUEUE_OVERFLOW = 0x4000
"""The kernel's queue overflowed: scan the folders instead."""
WATCH_REMOVED = 0x8000
"""The folder is no longer watched: it is gone."""
IS_FOLDER = 0x4000_0000

_ONLY_FOLDERS = 0x0100_0000
_NO_LINKS = 0x0200_0000
_MASK = CREATED | MOVED_IN | _ONLY_FOLDERS | _NO_LINKS
_EVENT_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 65_536


class InotifyEvent(NamedTuple):
    """An event in a watched folder, or about it."""

    watch_id: int
    mask: int
    name: str


class Inotify:
    """A set of watched folders. Its descriptor becomes readable when there are events."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._check_result(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add_watch(self, folder: str) -> int:
        """Watch a folder and return its watch id.

        Raises OSError if it is not a folder, cannot be read, or exceeds the limit.
        """
        path = ctypes.c_char_p(os.fsencode(folder))
        return self._check_result(self._libc.inotify_add_watch(self.fd, path, ctypes.c_uint32(_MASK)))

    def read_events(self) -> Iterator[InotifyEvent]:
        """Yield the events available now, up to one buffer."""
        try:
            buffer = os.read(self.fd, _BUFFER_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(buffer):
            watch_id, mask, _, length = _EVENT_HEADER.unpack_from(buffer, offset)
            offset += _EVENT_HEADER.size + length
            yield InotifyEvent(watch_id, mask, os.fsdecode(buffer[offset - length : offset].rstrip(b"\0")))

    def close(self) -> None:
        os.close(self.fd)

    @staticmethod
    def _check_result(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
