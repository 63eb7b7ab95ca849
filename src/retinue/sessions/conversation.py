"""An open session: read its entries and append to them."""

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from retinue.domain.clock import Clock
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult, make_ids_unique
from retinue.errors import DiskError, Failed
from retinue.sessions import provider_data_file
from retinue.sessions.markdown.marker import quote_value
from retinue.sessions.markdown.parser import ParsedTranscript
from retinue.sessions.markdown.writer import render_entry, render_open_line
from retinue.sessions.markdown_file import SessionFile
from retinue.sessions.metadata_files import is_blank_plan, render_scope_plan
from retinue.sessions.snippet import snippet_from_entries
from retinue.sessions.tools_log import render_tool_heading
from retinue.sessions.window import WINDOW_BYTES
from retinue.storage import file_names
from retinue.storage.file_io import FileStamp, file_stamp, read_file, replace_file, write_all
from retinue.storage.file_lock import acquire_session_lock
from retinue.storage.thread_pool import DiskThreadPool

_BATCH_THRESHOLD = 2
"""A reply and its tool result may come in one event-loop turn; more appends than that are batched."""
_MAX_ATTEMPTS = 8
"""Attempts to append while a person keeps saving the file."""

QueuedAppend = tuple[Sequence[Entry], asyncio.Future[None]]
EntryKey = tuple[bool, str]
"""A tool result has the id of its call, so the id alone is not unique."""


class FileConversation:
    """Implements `interfaces.Conversation` on a folder.

    Disk work runs one at a time, in a thread wherever it would block other work.
    """

    def __init__(
        self,
        session: Session,
        *,
        dir_fd: int,
        clock: Clock,
        threads: DiskThreadPool,
        window: int = WINDOW_BYTES,
    ) -> None:
        self.session = session
        self.entries: list[Entry] = []
        self.provider_cache: dict[str, Any] = {}
        self.torn_tail_path: str | None = None
        self._dir_fd = dir_fd
        self._file = SessionFile(session, dir_fd, threads, window=window)
        self._clock = clock
        self._threads = threads
        self.write_lock = threading.Lock()
        self._known_keys: set[EntryKey] = set()
        self._own_entries: dict[EntryKey, Entry] = {}
        """Entries added since the conversation was opened or idle; an outside save must not drop them."""
        self._open_line_id = ""
        self._draft = ""
        self._taken_drafts: dict[str, Message] = {}
        self.matches_file = True
        """True if reading the file again would give exactly these entries.

        False after a failed write, after a person typed, and when earlier entries were looked up.
        """
        self._queued: list[QueuedAppend] = []
        """Entries to append next, with the futures of their callers."""
        self._append_running = False
        """True while an append is running."""
        self._recent_appends = 0
        """Number of appends in the current event-loop turn; more may follow that can share a write."""
        self._thinking_stamp: FileStamp | None = None
        """Stamp of the thinking-blocks file when the conversation was closed."""

    @property
    def cached_bytes(self) -> int:
        """Size of the loaded part of the file; 0 if the file must be read again."""
        return self._file.loaded_bytes if self.matches_file else 0

    @property
    def final_state(self) -> tuple[FileStamp, str] | None:
        """The file's stamp and its snippet for lists, or None.

        None if the file may differ from the entries, or the last message may be too far from the file's end
        to be found there.
        """
        if not self.matches_file or self._file.stamp is None:
            return None
        snippet = snippet_from_entries(self.entries)
        return None if snippet is None else (self._file.stamp, snippet)

    @property
    def is_truncated(self) -> bool:
        return self._file.window_start > 0

    async def read_earlier_entries(self, run_id: str) -> list[Entry]:
        return await self._threads.run(lambda: self._read_earlier(run_id)) if self.is_truncated else []

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        """Append entries; concurrent appends share one write and one fsync."""
        if (
            not (sync or self._append_running)
            and self._is_idle
            and self._append_entries(entries, sync=False, retry=False)
        ):
            return
        loop = asyncio.get_running_loop()
        if (
            self._threads.can_run_inline
            and not self._append_running
            and self._recent_appends < _BATCH_THRESHOLD
        ):
            if not self._recent_appends:
                loop.call_soon(self._reset_recent_appends)
            self._recent_appends += 1
            self._append_entries(entries)
            return
        written: asyncio.Future[None] = loop.create_future()
        self._queued.append((entries, written))
        if not self._append_running:
            self._append_running = True
            loop.call_soon(self._start_queued_append)
        await self._threads.await_completion(written)

    def _reset_recent_appends(self) -> None:
        self._recent_appends = 0

    def _start_queued_append(self) -> None:
        batch, self._queued = self._queued, []
        self._append_running = bool(batch)
        if batch:
            entries = [entry for queued_entries, _ in batch for entry in queued_entries]
            try:
                self._threads.submit_with_callback(
                    lambda: self._append_entries(entries), lambda error: self._resolve_queued(batch, error)
                )
            # Even an exception that ends the process must not leave a caller waiting.
            except BaseException as error:
                self._resolve_queued(batch, error)
                raise

    def _resolve_queued(self, batch: "list[QueuedAppend]", error: BaseException | None) -> None:
        for _, written in batch:
            if written.done():
                continue
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)
        self._start_queued_append()

    async def reload_if_edited(self) -> bool:
        if self._dir_fd < 0 or not self._file.has_changed():
            return False
        return await self._threads.run(self._reload_if_edited)

    def typed_text(self) -> str:
        return self._draft

    async def save_typed_text(self, message: Entry) -> None:
        await self._threads.run(lambda: self._take_draft(message))

    async def write_idle_prompt(self) -> None:
        force_inline = (
            not self._threads.can_run_inline and not self._file.has_unsynced and self._can_append_inline
        )
        await self._threads.run(self._write_open_line, force_inline=force_inline)

    async def log_tool_call(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        text = render_tool_heading(
            tool_call, tool_result, self._clock.now() - timedelta(milliseconds=tool_result.duration_ms)
        )
        raw = text.encode("utf-8", "backslashreplace")
        await self._threads.submit(
            lambda: self._append_tool_log(raw), force_inline=not self.write_lock.locked()
        )

    @property
    def _can_append_inline(self) -> bool:
        """True if nobody is writing to the file, so that unsynced data may be added inline."""
        return self._is_idle and not self._file.has_changed()

    @property
    def _is_idle(self) -> bool:
        return not self.write_lock.locked() and self._dir_fd >= 0

    def load(self) -> None:
        """Read the file for the first time.

        A torn tail is cut off now and never later; a plan that never reached the disk is written again.
        """
        if self.session.path not in self._threads.durable_sessions:
            self._repair_plan()
        parsed, self.torn_tail_path = self._file.open(file_names.torn_tail_name(self._clock.now()))
        self._adopt_transcript(parsed)

    def _repair_plan(self) -> None:
        with suppress(OSError, DiskError):
            if is_blank_plan(read_file(file_names.PLAN, dir_fd=self._dir_fd)):
                replace_file(
                    f"{self.session.path}/{file_names.PLAN}",
                    render_scope_plan(self.session),
                    token=self.session.id,
                )

    def reopen(self, session: Session, dir_fd: int) -> "FileConversation | None":
        """Reopen a closed conversation under a new lock, or return None if its files changed."""
        if not self._file.try_reattach(session, dir_fd) or self._thinking_stamp != _thinking_file_stamp(
            dir_fd
        ):
            return None
        reopened = FileConversation(session, dir_fd=dir_fd, clock=self._clock, threads=self._threads)
        reopened._file = self._file
        reopened.entries, reopened.provider_cache = self.entries.copy(), self.provider_cache
        reopened._known_keys, reopened._open_line_id = self._known_keys, self._open_line_id
        return reopened

    def close(self) -> None:
        """Release the session's lock after running writes are finished."""
        with self.write_lock:
            dir_fd, self._dir_fd = self._dir_fd, -1
            if dir_fd >= 0:
                self._thinking_stamp = _thinking_file_stamp(dir_fd)
                if self._file.has_unsynced:
                    # The data is written; if it is lost, the entries are appended again.
                    with suppress(DiskError):
                        self._file.sync()
                self._threads.open_conversations -= 1
                self._file.close()
                os.close(dir_fd)

    def acquire_write_lock(self) -> None:
        """Acquire the write lock; raise Failed if the conversation is closed."""
        self.write_lock.acquire()
        if self._dir_fd < 0:
            self.write_lock.release()
            raise Failed(f"{self.session.slug} is not open any more")

    def _append_entries(self, entries: Sequence[Entry], *, sync: bool = True, retry: bool = True) -> bool:
        """Append entries that are not in the file yet.

        Without `retry`, return False if a person changed the file, which must then be read first.
        """
        with _WriteLock(self):
            new_entries = {
                key: entry for entry in entries if (key := _entry_key(entry)) not in self._known_keys
            }
            if not new_entries:
                if sync and self._file.has_unsynced:
                    self._file.sync()
                return True
            self._own_entries.update(new_entries)
            is_added = False
            try:
                is_added = self._write_entries(list(new_entries.values()), sync=sync, retry=retry)
            finally:
                if not is_added:
                    for key in new_entries:
                        self._own_entries.pop(key, None)
            return is_added

    def _write_entries(self, missing: list[Entry], *, sync: bool = True, retry: bool = True) -> bool:
        for _ in range(_MAX_ATTEMPTS):
            provider_data_file.append_provider_data(self.session.path, self._dir_fd, missing)
            if self._file.append(b"".join([render_entry(entry) for entry in missing]), sync=sync):
                self._record_entries(missing)
                return True
            if not retry:
                return False
            missing = self._reload()
            if not missing:
                return True
        raise Failed(f"{self._file.path} keeps changing. Try again when no other program is writing to it.")

    def _record_entries(self, added: Sequence[Entry]) -> None:
        if self._draft:
            self._record_message(Message(id=self._open_line_id, role="user", text=self._draft))
        self._open_line_id = self._draft = ""
        self.entries.extend(added)
        self._known_keys.update(map(_entry_key, added))

    def _record_message(self, message: Message) -> None:
        self.entries.append(message)
        self._known_keys.add(_entry_key(message))

    def _reload_if_edited(self) -> bool:
        with _WriteLock(self):
            if not self._file.has_changed():
                return False
            before = self.entries
            missing = self._reload()
            if missing:
                self._write_entries(missing)
            return self.entries != before

    def _reload(self) -> list[Entry]:
        """Reload the file after an outside change; return our own entries that it no longer contains."""
        self._adopt_transcript(self._file.reload())
        missing = {key: entry for key, entry in self._own_entries.items() if key not in self._known_keys}
        if missing:
            for entry in self._file.entries_before_window(
                [f"={quote_value(entry_id)}" for _, entry_id in missing]
            ):
                missing.pop(_entry_key(entry), None)
        return list(missing.values())

    def _read_earlier(self, run_id: str) -> list[Entry]:
        """Read a run's entries before the window.

        After this call, `append` skips these entries.
        """
        with _WriteLock(self):
            found = [
                entry
                for entry in self._file.entries_before_window([f" run={quote_value(run_id)}"])
                if entry.run == run_id
            ]
            self.matches_file = self.matches_file and not found
            self._known_keys.update(map(_entry_key, found))
            return found

    def _adopt_transcript(self, parsed: ParsedTranscript) -> None:
        entries = (
            provider_data_file.restore_provider_data(
                parsed.entries, parsed.ids_with_provider_data, self._dir_fd
            )
            if parsed.ids_with_provider_data
            else parsed.entries
        )
        self._open_line_id, self._draft = parsed.open_line_id, parsed.draft
        self.matches_file = self.matches_file and not self._draft
        if self._draft and self._open_line_id in self._taken_drafts:
            entries.append(replace(self._taken_drafts[self._open_line_id], text=self._draft))
            self._draft = ""
        self._known_keys = set(map(_entry_key, entries))
        if len(self._known_keys) != len(entries):
            entries = make_ids_unique(entries)
        if entries != self.entries:
            self.entries, self.provider_cache = entries, {}

    def _take_draft(self, message: Entry) -> None:
        with _WriteLock(self):
            if self._file.has_changed():
                self._reload()
            draft, open_line_id = self._draft, self._open_line_id
            if draft and isinstance(message, Message):
                self._file.sync()
                self._taken_drafts[open_line_id] = replace(message, id=open_line_id, text=draft)
                self._record_message(self._taken_drafts[open_line_id])
                self._draft = ""
                return
        self._append_entries((message,))

    def _write_open_line(self) -> None:
        with _WriteLock(self):
            self._own_entries.clear()
            for _ in range(_MAX_ATTEMPTS):
                if self._file.is_empty or (
                    self._open_line_id and self._open_line_id not in self._taken_drafts
                ):
                    return
                entry_id = self._clock.new_entry_id()
                if self._file.append_open_line(render_open_line(entry_id).encode()):
                    self._open_line_id = entry_id
                    return
                self._reload()

    def _append_tool_log(self, heading: bytes) -> None:
        """Append to tools.org. The log is derived and never read back, so a full disk may drop an entry."""
        with _WriteLock(self), suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(file_names.TOOLS, flags, 0o600, dir_fd=self._dir_fd)
            try:
                write_all(file, heading)
            finally:
                os.close(file)


class _WriteLock:
    """Context manager that lets one writer at a time use an open conversation."""

    __slots__ = ("_conversation",)

    def __init__(self, conversation: FileConversation) -> None:
        self._conversation = conversation

    def __enter__(self) -> None:
        self._conversation.acquire_write_lock()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._conversation.matches_file = False
        self._conversation.write_lock.release()


def open_conversation(
    session: Session, *, clock: Clock, threads: DiskThreadPool, window: int = WINDOW_BYTES
) -> FileConversation:
    """Lock a session and read its file; release the lock if that fails."""
    dir_fd = acquire_session_lock(session.path)
    try:
        conversation = FileConversation(session, dir_fd=dir_fd, clock=clock, threads=threads, window=window)
        conversation.load()
    except BaseException:
        os.close(dir_fd)
        raise
    return conversation


def _entry_key(entry: Entry) -> EntryKey:
    return (isinstance(entry, ToolResult), entry.id)


def _thinking_file_stamp(dir_fd: int) -> FileStamp | None:
    """Return the stamp of the thinking-blocks file, or None.

    Most sessions have none, and a failing stat costs three times as much as the access check.
    """
    exists = os.access(file_names.PROVIDER_DATA, os.F_OK, dir_fd=dir_fd)
    return file_stamp(file_names.PROVIDER_DATA, dir_fd=dir_fd) if exists else None
