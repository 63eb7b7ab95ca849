"""The session.md of a folder held open: read whole, added to by one write, never written over."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH104, PTH108, PTH118, PTH119, PTH120

import errno
import os
import time
from contextlib import suppress

from retinue.domain.session import Session
from retinue.errors import Failed
from retinue.store import names
from retinue.store.disk import (
    Stamp,
    no_room,
    read_all,
    stamp,
    stamp_of,
    sync_path,
    unused,
    write_all,
    write_new,
)
from retinue.store.markdown import head
from retinue.store.reading import Reading, read
from retinue.store.tail import torn_at
from retinue.store.threads import Threads

_SETTLE = 0.02
"""Seconds between two looks at a file that somebody is saving."""
_LOOKS = 25


class SessionFile:
    """Reached through the folder's descriptor, so that a folder moved while it is open does not matter."""

    def __init__(self, session: Session, directory: int, threads: Threads) -> None:
        self.path = os.path.join(session.path, names.SESSION)
        self._session = session
        self._directory = directory
        self._threads = threads
        self._stamp: Stamp | None = None
        self._gap = b""
        self._blank: int | None = None
        """Where a blank open user line starts: it is no entry, so what is added takes its place."""
        self._synced = True

    def open(self, torn_name: str) -> tuple[Reading, str | None]:
        """The file as it stands, without a torn tail; that is kept beside it under the name given back."""
        data = self._load()
        torn = torn_at(data)
        kept = None
        if torn is not None:
            kept = self._cut(data, torn, torn_name)
            data = data[:torn]
        self._synced = bool(data)
        return self._understood(data), kept

    def changed(self) -> bool:
        return stamp_of(names.SESSION, directory=self._directory) != self._stamp

    def reread(self) -> Reading:
        """The file as a person left it, once it has stopped changing. Some editors empty a file before they fill
        it again, so an empty one is believed only after a while."""
        data = self._load()
        for look in range(2 * _LOOKS):
            time.sleep(_SETTLE)
            if self.changed():
                data = self._load()
            elif data or look >= _LOOKS:
                break
        return self._understood(data)

    def add(self, data: bytes, *, sync: bool = True) -> bool:
        """Adds at the end, in one write. False when somebody changed or replaced the file before it was on disk:
        then what stands there must be read before anything is taken for written."""
        try:
            file = os.open(names.SESSION, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise no_room(self.path, error) from error
        try:
            return self._add(file, data, sync=sync)
        except FileNotFoundError:
            return False
        finally:
            os.close(file)

    def add_open_line(self, line: bytes) -> bool:
        """An invitation to type; losing it loses nothing, so it is not synced."""
        size = self._stamp[1] + len(self._gap) if self._stamp else 0
        added = self.add(line, sync=False)
        if added:
            self._blank = size
        return added

    @property
    def empty(self) -> bool:
        return self._stamp is None or self._stamp[1] == 0

    def sync(self) -> None:
        """What a person typed is on disk before it is acted on."""
        try:
            sync_path(self.path)
        except OSError as error:
            raise no_room(self.path, error) from error

    def _add(self, file: int, data: bytes, *, sync: bool) -> bool:
        before = os.fstat(file)
        if stamp(before) != self._stamp:
            return False
        size = before.st_size
        if self._blank is not None:
            size, self._blank = self._blank, None
            self._shorten(file, size)
        opening = head(self._session).encode() if not size else b""
        whole = b"".join((opening, self._gap, data))
        self._write(file, whole, size, sync=sync)
        after = os.stat(names.SESSION, dir_fd=self._directory)
        mine = after.st_ino == before.st_ino and after.st_size == size + len(whole)
        self._stamp = stamp(after) if mine else None
        self._gap = b""
        return mine

    def _write(self, file: int, data: bytes, size: int, *, sync: bool) -> None:
        try:
            write_all(file, data)
            if sync:
                os.fsync(file)
                self._sync_folder()
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, size)
            self._stamp = stamp(os.fstat(file))
            raise no_room(self.path, error) from error

    def _sync_folder(self) -> None:
        """A new folder reaches the disk together with its first acknowledged entry. The plan's facts stand in
        session.json too, so the plan need not be waited for."""
        if self._synced:
            return
        folder = os.path.dirname(self.path)
        for name in (names.PRESET, names.FACTS):
            with suppress(FileNotFoundError):
                sync_path(os.path.join(folder, name))
        os.fsync(self._directory)
        for _ in range(3 if self._session.top else 2):
            folder = os.path.dirname(folder)
            known = self._threads.known_folder(folder)
            self._threads.sync_folder(folder)
            if known:
                break
        self._synced = True

    def _understood(self, data: bytes) -> Reading:
        reading = read(data, self.path)
        self._blank = reading.end if reading.opened and not reading.typed else None
        self._gap = reading.gap if self._blank is None else b""
        return reading

    def _load(self) -> bytes:
        """The whole file, as it was at one moment. An editor that saves may take it away for that long."""
        for _ in range(_LOOKS):
            try:
                data = self._read()
            except FileNotFoundError:
                time.sleep(_SETTLE)
                continue
            except OSError as error:
                raise Failed(f"{self.path} cannot be read: {error.strerror}") from error
            if self._stamp is not None and len(data) == self._stamp[1] and not self.changed():
                return data
        if stamp_of(names.SESSION, directory=self._directory) is None:
            raise Failed(f"{self.path} is gone; put it back, or make an empty one to start anew")
        raise Failed(f"{self.path} keeps changing; try again when nobody is writing to it")

    def _read(self) -> bytes:
        file = os.open(names.SESSION, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            self._stamp = stamp(os.fstat(file))
            return read_all(file)
        finally:
            os.close(file)

    def _cut(self, data: bytes, good: int, torn_name: str) -> str:
        """The torn bytes are safe under another name before the file is shortened."""
        folder = os.path.dirname(self.path)
        try:
            kept = unused(folder, torn_name)
            temporary = os.path.join(folder, f".{os.path.basename(kept)}")
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            write_new(temporary, data[good:], sync=True)
            os.rename(temporary, kept)
            os.fsync(self._directory)
            self._shorten_whole(good, len(data))
        except OSError as error:
            raise no_room(self.path, error) from error
        return kept

    def _shorten_whole(self, good: int, size: int) -> None:
        file = os.open(names.SESSION, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            if os.fstat(file).st_size != size:
                raise OSError(errno.EBUSY, "somebody else is writing to it")
            os.ftruncate(file, good)
            os.fsync(file)
            self._stamp = stamp(os.fstat(file))
        finally:
            os.close(file)

    def _shorten(self, file: int, size: int) -> None:
        try:
            os.ftruncate(file, size)
        except OSError as error:
            raise no_room(self.path, error) from error
