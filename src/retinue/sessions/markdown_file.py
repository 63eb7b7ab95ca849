"""The session.md of an open session: read from its window on, appended to, never overwritten."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH104, PTH108, PTH118, PTH119, PTH120

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TypeVar

from retinue.domain.session import Session
from retinue.domain.transcript import Entry
from retinue.errors import Failed, Unreadable
from retinue.sessions.batched_fsync import sync_session
from retinue.sessions.markdown.chunks import iter_chunks
from retinue.sessions.markdown.parser import ParsedTranscript, join_chunks, parse_chunk, parse_file
from retinue.sessions.markdown.torn_tail import find_torn_tail
from retinue.sessions.markdown.writer import render_head
from retinue.sessions.window import WINDOW_BYTES, window_start
from retinue.storage import file_names
from retinue.storage.file_io import (
    FileStamp,
    copy_byte_range,
    file_stamp,
    open_regular_file,
    read_error,
    stamp_from_stat,
    unused_path,
    write_all,
    write_error,
)
from retinue.storage.thread_pool import DiskThreadPool

T = TypeVar("T")

_POLL_SECONDS = 0.02
"""Seconds between two polls of a file that somebody is saving."""
_MAX_POLLS = 25
_MAX_OPEN_FILES = 64
"""Maximum number of open conversations up to which each keeps its file descriptor."""


class SessionFile:
    """The file of an open session, accessed through the folder's descriptor, so that the folder may be moved."""

    def __init__(
        self, session: Session, dir_fd: int, threads: DiskThreadPool, *, window: int = WINDOW_BYTES
    ) -> None:
        self.path = f"{session.path}/{file_names.SESSION}"
        self._session = session
        self._dir_fd = dir_fd
        self._threads = threads
        self._window = window
        self.window_start = 0
        """Offset of the first byte that was read; everything before it is outside the window."""
        self._stamp: FileStamp | None = None
        self._missing_newlines = b""
        self._open_line_at: int | None = None
        """Offset of an empty open user line. The line is no entry, so appended data replaces it."""
        self._folder_synced = True
        self.has_unsynced = False
        """True if the file may hold unsynced data, which the next fsync includes."""
        self._unsynced_from: int | None = None
        """Offset of the first unsynced byte that this process appended."""
        self._fd = -1
        self._inode = (-1, -1)
        """Device and inode of the file while it is open for writing."""

    def open(self, torn_name: str) -> tuple[ParsedTranscript, str | None]:
        """Read the file; cut off a torn tail and keep it next to the file under the returned path."""
        if self._is_new_and_empty():
            return ParsedTranscript(), None
        torn_offset, parsed = self._read_stable(self._read_unless_torn)
        torn_path = None if torn_offset is None else self._cut_torn_tail(torn_offset, torn_name)
        if parsed is None:
            parsed = self._read_stable(self._read_window)
        self.has_unsynced = not self.is_empty  # the writer may have crashed before it was synced
        self._folder_synced = not self.is_empty or self._session.path in self._threads.durable_sessions
        return self._remember_end(parsed), torn_path

    def _is_new_and_empty(self) -> bool:
        """Return True if this process created the session and nothing was appended yet."""
        if self._session.path not in self._threads.durable_sessions:
            return False
        try:
            status = os.stat(file_names.SESSION, dir_fd=self._dir_fd)
        except OSError:
            return False
        self._stamp = stamp_from_stat(status)
        return self.is_empty and stat.S_ISREG(status.st_mode)

    def try_reattach(self, session: Session, dir_fd: int) -> bool:
        """Switch to another descriptor of the same folder if the file has not changed."""
        self._session, self._dir_fd = session, dir_fd
        return not self.has_changed() and self._is_window_unmoved()

    def has_changed(self) -> bool:
        return file_stamp(file_names.SESSION, dir_fd=self._dir_fd) != self._stamp

    def _is_window_unmoved(self) -> bool:
        """Return True if the window still starts at the same offset; it moves as the file grows."""
        if self.size <= self._window:
            return self.window_start == 0
        try:
            fd = open_regular_file(file_names.SESSION, dir_fd=self._dir_fd)
        except OSError:
            return False
        try:
            return window_start(fd, self.size, self._window) == self.window_start
        finally:
            os.close(fd)

    def reload(self) -> ParsedTranscript:
        """Read the file again once it has stopped changing.

        Some editors empty a file before they fill it again, so an empty file is accepted only after a while.
        """
        for poll in range(2 * _MAX_POLLS):
            self._stamp = file_stamp(file_names.SESSION, dir_fd=self._dir_fd)
            time.sleep(_POLL_SECONDS)
            if not self.has_changed() and (not self.is_empty or poll >= _MAX_POLLS):
                break
        return self._remember_end(self._read_stable(self._read_window))

    def entries_before_window(self, words: Collection[str]) -> Iterator[Entry]:
        """Yield entries before the window, including all whose marker contains one of these words.

        Most of a long file is only searched for the words, not parsed.
        """
        if not self.window_start:
            return
        encoded_words = [word.encode() for word in words]
        try:
            fd = open_regular_file(file_names.SESSION, dir_fd=self._dir_fd)
        except OSError as error:
            raise read_error(self.path, error) from error
        try:
            for chunk in iter_chunks(fd, 0, self.window_start):
                if any(word in chunk.data for word in encoded_words):
                    yield from parse_chunk(chunk, self.path, lenient=True).entries
        finally:
            os.close(fd)

    def append(self, data: bytes, *, sync: bool = True) -> bool:
        """Append data in one write; with `sync`, return after it and all earlier data are on disk.

        Returns False if somebody changed or replaced the file first: then it must be read before anything
        counts as written.
        """
        try:
            before = os.stat(file_names.SESSION, dir_fd=self._dir_fd)
            if stamp_from_stat(before) != self._stamp or not self._open_for_writing(before):
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise write_error(self.path, error) from error
        try:
            return self._append_and_verify(data, before, sync=sync)
        except FileNotFoundError:
            return False
        finally:
            if self._threads.open_conversations > _MAX_OPEN_FILES:
                self.close()

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def append_open_line(self, line: bytes) -> bool:
        """Append an open user line. It contains no data, so it is synced only together with earlier data."""
        size = self._stamp[1] + len(self._missing_newlines) if self._stamp else 0
        had_unsynced = self.has_unsynced
        added = self.append(line, sync=had_unsynced)
        self.has_unsynced = had_unsynced and not added
        if added:
            self._open_line_at = size
        return added

    @property
    def stamp(self) -> FileStamp | None:
        """Stamp of the file as last read or written."""
        return self._stamp

    @property
    def size(self) -> int:
        """Size in bytes if known, else 0."""
        return self._stamp[1] if self._stamp else 0

    @property
    def loaded_bytes(self) -> int:
        """Number of the file's bytes that were read, or written since."""
        return max(0, self.size - self.window_start)

    @property
    def is_empty(self) -> bool:
        return self.size == 0

    def sync(self) -> None:
        """Fsync the whole file, including text a person typed, before anything acts on it."""
        try:
            fd = os.open(file_names.SESSION, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir_fd)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise write_error(self.path, error) from error
        self._mark_synced()

    def _open_for_writing(self, status: os.stat_result) -> bool:
        """Open the file that currently has the name; while it is open, its inode cannot be reused."""
        if self._fd >= 0 and self._inode == (status.st_dev, status.st_ino):
            return True
        self.close()
        self._fd = os.open(file_names.SESSION, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=self._dir_fd)
        opened = os.fstat(self._fd)
        self._inode = (opened.st_dev, opened.st_ino)
        return os.path.samestat(opened, status)

    def _append_and_verify(self, data: bytes, before: os.stat_result, *, sync: bool) -> bool:
        size = before.st_size
        if self._open_line_at is not None:
            size, self._open_line_at = self._open_line_at, None
            self._truncate(self._fd, size)
        head_line = render_head(self._session).encode() if not size else b""
        data_to_write = b"".join((head_line, self._missing_newlines, data))
        self._write_data(self._fd, data_to_write, size, sync=sync)
        after = os.stat(file_names.SESSION, dir_fd=self._dir_fd)
        is_ours = after.st_ino == before.st_ino and after.st_size == size + len(data_to_write)
        self._stamp = stamp_from_stat(after) if is_ours else None
        self._missing_newlines = b""
        return is_ours

    def _write_data(self, fd: int, data: bytes, size: int, *, sync: bool) -> None:
        try:
            write_all(fd, data)
            if sync:
                os.fsync(fd)
                self._sync_folder()
                self._mark_synced()
            elif not self.has_unsynced:
                self.has_unsynced, self._unsynced_from = True, size
        except OSError as error:
            self._undo_append(fd, size)
            raise write_error(self.path, error) from error

    def _mark_synced(self) -> None:
        self.has_unsynced, self._unsynced_from = False, None

    def _undo_append(self, fd: int, size: int) -> None:
        """Truncate a failed append.

        Whether earlier unsynced data reached the disk is unknown, so it is truncated too. The stamp is reset,
        so the file looks changed and that data is written again.
        """
        before = self._unsynced_from
        with suppress(OSError):
            os.ftruncate(fd, size if before is None else min(before, size))
        self._stamp = stamp_from_stat(os.fstat(fd)) if before is None else None
        self._unsynced_from = None

    def _sync_folder(self) -> None:
        """Sync the session's folder, if that was not done yet, before its first entry is acknowledged."""
        if not self._folder_synced:
            sync_session(self._session, self._threads)
            self._folder_synced = True

    def _read_unless_torn(self, fd: int, size: int) -> tuple[int | None, ParsedTranscript | None]:
        """Return the offset of a torn tail, or the parsed file if there is none."""
        torn_offset = find_torn_tail(fd, size)
        return torn_offset, self._read_window(fd, size) if torn_offset is None else None

    def _read_window(self, fd: int, size: int) -> ParsedTranscript:
        self.window_start = window_start(fd, size, self._window)
        return join_chunks(parse_file(fd, self.window_start, size, self.path))

    def _remember_end(self, parsed: ParsedTranscript) -> ParsedTranscript:
        self._open_line_at = parsed.end if parsed.open_line_id and not parsed.draft else None
        self._missing_newlines = parsed.missing_newlines if self._open_line_at is None else b""
        return parsed

    def _read_stable(self, read_at_once: Callable[[int, int], T]) -> T:
        """Read the file at one consistent moment; while saving, an editor may briefly remove it."""
        for _ in range(_MAX_POLLS):
            try:
                found = self._read_once(read_at_once)
            except FileNotFoundError:
                time.sleep(_POLL_SECONDS)
                continue
            except OSError as error:
                raise read_error(self.path, error) from error
            except Unreadable:
                if not self.has_changed():
                    raise
                continue
            if not self.has_changed():
                return found
        if file_stamp(file_names.SESSION, dir_fd=self._dir_fd) is None:
            raise Failed(f"{self.path} is missing. Restore it, or create an empty file to start again.")
        raise Failed(f"{self.path} keeps changing. Try again when no other program is writing to it.")

    def _read_once(self, read_at_once: Callable[[int, int], T]) -> T:
        fd = open_regular_file(file_names.SESSION, dir_fd=self._dir_fd)
        try:
            self._stamp = stamp_from_stat(os.fstat(fd))
            return read_at_once(fd, self._stamp[1])
        finally:
            os.close(fd)

    def _cut_torn_tail(self, intact_size: int, torn_name: str) -> str:
        """Copy the torn bytes to another file durably, then truncate."""
        folder = os.path.dirname(self.path)
        try:
            torn_path = unused_path(folder, torn_name)
            temporary = os.path.join(folder, f".{os.path.basename(torn_path)}")
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            fd = os.open(file_names.SESSION, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._dir_fd)
            try:
                self._check_unchanged(fd)
                copy_byte_range(temporary, fd, intact_size, os.fstat(fd).st_size, fsync=True)
                os.rename(temporary, torn_path)
                os.fsync(self._dir_fd)
                self._check_unchanged(fd)
                os.ftruncate(fd, intact_size)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise write_error(self.path, error) from error
        return torn_path

    def _check_unchanged(self, fd: int) -> None:
        if stamp_from_stat(os.fstat(fd)) != self._stamp:
            raise OSError(errno.EBUSY, "another program is writing to it")

    def _truncate(self, fd: int, size: int) -> None:
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise write_error(self.path, error) from error
