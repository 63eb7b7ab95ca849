"""The session.md of a folder held open: read from its window on, added to by one write, never written over."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH104, PTH108, PTH118, PTH119, PTH120

import errno
import os
import stat as kinds
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TypeVar

from retinue.domain.session import Session
from retinue.domain.transcript import Entry
from retinue.errors import Failed, Unreadable
from retinue.sessions.batched_fsync import settle
from retinue.sessions.markdown.chunks import portions
from retinue.sessions.markdown.parser import Reading, joined, read_portion, readings
from retinue.sessions.markdown.torn_tail import torn_from
from retinue.sessions.markdown.writer import head
from retinue.sessions.window import WINDOW, beginning
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, copy_new, no_room, open_file, stamp, stamp_of, unused, write_all
from retinue.storage.thread_pool import Threads

T = TypeVar("T")

_SETTLE = 0.02
"""Seconds between two looks at a file that somebody is saving."""
_LOOKS = 25
_FEW = 64
"""While no more conversations are open, each has its file open: a process may open only so many."""


class SessionFile:
    """Reached through the folder's descriptor, so that a folder moved while it is open does not matter."""

    def __init__(self, session: Session, directory: int, threads: Threads, *, window: int = WINDOW) -> None:
        self.path = f"{session.path}/{file_names.SESSION}"
        self._session = session
        self._directory = directory
        self._threads = threads
        self._window = window
        self.start = 0
        """Where what was read begins: what stands before it is left out."""
        self._stamp: Stamp | None = None
        self._gap = b""
        self._blank: int | None = None
        """Where a blank open user line starts: it is no entry, so what is added takes its place."""
        self._synced = True
        self.loose = False
        """Whether anything stands there that may not be synced yet: the next sync takes it along."""
        self._loose_from: int | None = None
        """Where what this process has added so begins."""
        self._file = -1
        self._inode = (-1, -1)
        """Of the file that is open to be written, as long as it is."""

    def open(self, torn_name: str) -> tuple[Reading, str | None]:
        """The file as it stands, without a torn tail; that is kept beside it under the name given back."""
        if self._newborn():
            return Reading(), None
        torn, reading = self._steadily(self._whole)
        kept = None if torn is None else self._cut(torn, torn_name)
        if reading is None:
            reading = self._steadily(self._read)
        self.loose = not self.empty  # whoever wrote it may have died before it was synced
        self._synced = not self.empty or self._session.path in self._threads.settled
        return self._understood(reading), kept

    def _newborn(self) -> bool:
        """Whether this process has made the session, and nobody has said anything in it."""
        if self._session.path not in self._threads.settled:
            return False
        try:
            found = os.stat(file_names.SESSION, dir_fd=self._directory)
        except OSError:
            return False
        self._stamp = stamp(found)
        return self.empty and kinds.S_ISREG(found.st_mode)

    def taken_up(self, session: Session, directory: int) -> bool:
        """Goes on below another descriptor of the same folder, when the file is still as it was left."""
        self._session, self._directory = session, directory
        return not self.changed() and self._begins_as_before()

    def changed(self) -> bool:
        return stamp_of(file_names.SESSION, directory=self._directory) != self._stamp

    def _begins_as_before(self) -> bool:
        """Whether reading it anew would begin where it began: a window moves on while the file grows."""
        if self.size <= self._window:
            return self.start == 0
        try:
            file = open_file(file_names.SESSION, directory=self._directory)
        except OSError:
            return False
        try:
            return beginning(file, self.size, self._window) == self.start
        finally:
            os.close(file)

    def reread(self) -> Reading:
        """The file as a person left it, once it has stopped changing. Some editors empty a file before they fill
        it again, so an empty one is believed only after a while."""
        for look in range(2 * _LOOKS):
            self._stamp = stamp_of(file_names.SESSION, directory=self._directory)
            time.sleep(_SETTLE)
            if not self.changed() and (not self.empty or look >= _LOOKS):
                break
        return self._understood(self._steadily(self._read))

    def left_out(self, words: Collection[str]) -> Iterator[Entry]:
        """Entries before the window, among them all whose marker holds one of these words. Most of a long file is only
        looked through for them."""
        if not self.start:
            return
        wanted = [word.encode() for word in words]
        try:
            file = open_file(file_names.SESSION, directory=self._directory)
        except OSError as error:
            raise Failed(f"{self.path} cannot be read: {error.strerror}") from error
        try:
            for portion in portions(file, 0, self.start):
                if any(word in portion.data for word in wanted):
                    yield from read_portion(portion, self.path, lenient=True).entries
        finally:
            os.close(file)

    def add(self, data: bytes, *, sync: bool = True) -> bool:
        """Adds at the end, in one write; with `sync` it is on disk then, with all before it. False when somebody changed or replaced the file before it was on disk:
        then what stands there must be read before anything is taken for written."""
        try:
            before = os.stat(file_names.SESSION, dir_fd=self._directory)
            if stamp(before) != self._stamp or not self._writable(before):
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise no_room(self.path, error) from error
        try:
            return self._add(data, before, sync=sync)
        except FileNotFoundError:
            return False
        finally:
            if self._threads.conversations > _FEW:
                self.close()

    def close(self) -> None:
        """What is added later opens it anew."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def add_open_line(self, line: bytes) -> bool:
        """An invitation to type; losing it loses nothing, so it is not synced for its own sake."""
        size = self._stamp[1] + len(self._gap) if self._stamp else 0
        loose = self.loose
        added = self.add(line, sync=loose)
        self.loose = loose and not added
        if added:
            self._blank = size
        return added

    @property
    def stamp(self) -> Stamp | None:
        """Of the file as it was read, or written last."""
        return self._stamp

    @property
    def size(self) -> int:
        """In bytes, as far as it is known; 0 when it is not."""
        return self._stamp[1] if self._stamp else 0

    @property
    def held(self) -> int:
        """How many of its bytes were read, or written since."""
        return max(0, self.size - self.start)

    @property
    def empty(self) -> bool:
        return self.size == 0

    def sync(self) -> None:
        """All that stands there is on disk: so is what a person typed, before it is acted on."""
        try:
            file = os.open(file_names.SESSION, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise no_room(self.path, error) from error
        self._tight()

    def _writable(self, now: os.stat_result) -> bool:
        """Opens the file that has the name now, unless it is open already: nobody else gets its inode until then."""
        if self._file >= 0 and self._inode == (now.st_dev, now.st_ino):
            return True
        self.close()
        self._file = os.open(
            file_names.SESSION, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=self._directory
        )
        opened = os.fstat(self._file)
        self._inode = (opened.st_dev, opened.st_ino)
        return os.path.samestat(opened, now)

    def _add(self, data: bytes, before: os.stat_result, *, sync: bool) -> bool:
        size = before.st_size
        if self._blank is not None:
            size, self._blank = self._blank, None
            self._shorten(self._file, size)
        opening = head(self._session).encode() if not size else b""
        whole = b"".join((opening, self._gap, data))
        self._write(self._file, whole, size, sync=sync)
        after = os.stat(file_names.SESSION, dir_fd=self._directory)
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
                self._tight()
            elif not self.loose:
                self.loose, self._loose_from = True, size
        except OSError as error:
            self._cut_back(file, size)
            raise no_room(self.path, error) from error

    def _tight(self) -> None:
        self.loose, self._loose_from = False, None

    def _cut_back(self, file: int, size: int) -> None:
        """What could not be written was not said. Of what was added before and not synced nobody knows any more whether
        the disk has it: it goes too, and is written anew, because the file looks changed then."""
        before = self._loose_from
        with suppress(OSError):
            os.ftruncate(file, size if before is None else min(before, size))
        self._stamp = stamp(os.fstat(file)) if before is None else None
        self._loose_from = None

    def _sync_folder(self) -> None:
        """A folder that somebody made by other means reaches the disk together with its first acknowledged entry."""
        if not self._synced:
            settle(self._session, self._threads)
            self._synced = True

    def _whole(self, file: int, size: int) -> tuple[int | None, Reading | None]:
        """Where the tail is torn, or what stands there when it is not."""
        torn = torn_from(file, size)
        return torn, self._read(file, size) if torn is None else None

    def _read(self, file: int, size: int) -> Reading:
        self.start = beginning(file, size, self._window)
        return joined(readings(file, self.start, size, self.path))

    def _understood(self, reading: Reading) -> Reading:
        self._blank = reading.end if reading.opened and not reading.typed else None
        self._gap = reading.gap if self._blank is None else b""
        return reading

    def _steadily(self, look: Callable[[int, int], T]) -> T:
        """A look at the file as it was at one moment. An editor that saves may take it away for that long."""
        for _ in range(_LOOKS):
            try:
                found = self._looked(look)
            except FileNotFoundError:
                time.sleep(_SETTLE)
                continue
            except OSError as error:
                raise Failed(f"{self.path} cannot be read: {error.strerror}") from error
            except Unreadable:
                if not self.changed():
                    raise
                continue
            if not self.changed():
                return found
        if stamp_of(file_names.SESSION, directory=self._directory) is None:
            raise Failed(f"{self.path} is gone; put it back, or make an empty one to start anew")
        raise Failed(f"{self.path} keeps changing; try again when nobody is writing to it")

    def _looked(self, look: Callable[[int, int], T]) -> T:
        file = open_file(file_names.SESSION, directory=self._directory)
        try:
            self._stamp = stamp(os.fstat(file))
            return look(file, self._stamp[1])
        finally:
            os.close(file)

    def _cut(self, good: int, torn_name: str) -> str:
        """The torn bytes are safe under another name before the file is shortened."""
        folder = os.path.dirname(self.path)
        try:
            kept = unused(folder, torn_name)
            temporary = os.path.join(folder, f".{os.path.basename(kept)}")
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            file = os.open(file_names.SESSION, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                self._check_unchanged(file)
                copy_new(temporary, file, good, os.fstat(file).st_size, sync=True)
                os.rename(temporary, kept)
                os.fsync(self._directory)
                self._check_unchanged(file)
                os.ftruncate(file, good)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise no_room(self.path, error) from error
        return kept

    def _check_unchanged(self, file: int) -> None:
        if stamp(os.fstat(file)) != self._stamp:
            raise OSError(errno.EBUSY, "somebody else is writing to it")

    def _shorten(self, file: int, size: int) -> None:
        try:
            os.ftruncate(file, size)
        except OSError as error:
            raise no_room(self.path, error) from error
