"""The session store: conversations as folders below one root on this machine."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH118, PTH119, PTH120

import os
import shutil
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TypeVar, Unpack

from msgspec.structs import replace

from retinue.agents import definition_file
from retinue.agents.pattern_grants import with_granted_pattern
from retinue.domain.agent import Agent
from retinue.domain.approval import ToolAccess
from retinue.domain.clock import Clock
from retinue.domain.purge import PurgeTarget
from retinue.domain.session import SESSION_KEYWORDS, NewSession, Session
from retinue.domain.transcript import Entry
from retinue.errors import Conflict, UsageError
from retinue.interfaces import SessionChanges
from retinue.sessions import branches, draft, folder, preset_cache, purge, restore, session_tree
from retinue.sessions.batched_fsync import BatchedFsync
from retinue.sessions.conversation import FileConversation
from retinue.sessions.conversation_cache import ConversationCache
from retinue.sessions.list_cache import STAMP_SETTLE_NS
from retinue.sessions.lookup import SessionLookup, top_folder
from retinue.sessions.metadata_files import render_metadata, render_scope_plan
from retinue.sessions.pagination import PageReader, PageRequest
from retinue.sessions.preset_cache import PresetCache
from retinue.sessions.scan import SessionScan, iter_entry_batches, iter_text, read_all_entries, scan_session
from retinue.sessions.trash import sweep_trash
from retinue.sessions.window import WINDOW_BYTES
from retinue.storage import file_names
from retinue.storage.file_io import (
    FileStamp,
    create_file,
    file_stamp,
    fsync_path,
    move_error,
    read_file,
    replace_file,
    unused_path,
    write_error,
)
from retinue.storage.file_lock import acquire_session_lock, file_lock, session_lock
from retinue.storage.thread_pool import DiskThreadPool

T = TypeVar("T")
_MAX_NAME_CHARS = 200
_SMALL_FILE_BYTES = 1 << 14
_LARGE_FILE_BYTES = 1 << 20
_MAX_CACHED_SCANS = 256
_MANY_SESSIONS = 500
"""From this many sessions on, lists are made in a thread so that the event loop is not blocked."""
_CHANGEABLE_FIELDS = frozenset(SessionChanges.__annotations__)


class FileStore:
    """Implements `interfaces.SessionStore` with one folder per session."""

    def __init__(
        self, root: Path, clock: Clock, *, window: int = WINDOW_BYTES, threads: DiskThreadPool | None = None
    ) -> None:
        self.root = root
        self._clock = clock
        self._threads = threads or DiskThreadPool()
        self._fsync_batch = BatchedFsync(self._threads)
        self._conversation_cache = ConversationCache(clock, self._threads, window=window)
        self._page_reader = PageReader()
        self._scan_cache: dict[str, tuple[FileStamp, SessionScan]] = {}
        self._preset_cache = PresetCache()
        self._lookup = SessionLookup(os.path.realpath(root), clock.new_uuid)
        self._root_exists = False
        """True if this process has seen the root folder; a missing root is created again."""
        self._sorted_list: tuple[Sequence[Session], list[Session]] = ((), [])
        """The last list as found, and as sorted for display."""

    def close(self) -> None:
        """Stop the threads after their running writes are finished."""
        self._threads.close()

    @property
    def _has_many_sessions(self) -> bool:
        """True if looking at all sessions would block other work."""
        return len(self._sorted_list[0]) > _MANY_SESSIONS

    async def create(self, new: NewSession) -> Session:
        """Create a session and return once it is on disk.

        A run that was acknowledged afterwards finds its session even after a power loss.
        """
        if new.name is None:
            new_folder = await self._threads.submit(lambda: self._create_unnamed(new), force_inline=True)
        else:
            new_folder = await self._threads.run(lambda: self._create_named(new), force_thread=True)
        session = new_folder.session
        try:
            await self._fsync_batch.sync(new_folder)
        except OSError as error:
            shutil.rmtree(top_folder(session), ignore_errors=True)
            raise write_error(session.path, error) from error
        finally:
            new_folder.close()
        self._preset_cache.put_written(session, new.preset_text, new_folder.preset_stamp)
        self._lookup.mark_changed(session.path)
        return self._lookup.remember_new(session)

    async def find(self, ref: str) -> Session:
        cached = self._lookup.get_if_unchanged(ref) or self._lookup.get_by_same_path(ref)
        return cached or await self._threads.submit(lambda: self._lookup.find(ref))

    async def find_by_key(self, ref: str) -> Session:
        """Find a session by id, slug, alias or unambiguous prefix, never by path or display name."""
        return self._lookup.get_if_unchanged(ref) or await self._threads.submit(
            lambda: self._lookup.find(ref, paths=False), force_thread=self._has_many_sessions
        )

    async def sessions(
        self, *, agent: str | None = None, children: bool = True, max_age_s: float = 0.0
    ) -> list[Session]:
        """List sessions, newest first by `updated_at`.

        With `max_age_s`, changes that other processes made within this many seconds may be missing;
        changes by this process always show.
        """
        all_sessions = await self._threads.submit(
            lambda: self._lookup.list_cached(max_age_s=max_age_s), force_thread=self._has_many_sessions
        )
        if all_sessions is not self._sorted_list[0]:
            by_id = sorted(all_sessions, key=attrgetter("id"), reverse=True)
            self._sorted_list = (all_sessions, sorted(by_id, key=attrgetter("updated_at"), reverse=True))
        if agent is None and children:
            return self._sorted_list[1].copy()
        return [
            each
            for each in self._sorted_list[1]
            if (children or each.is_top_level) and agent in (None, each.agent)
        ]

    async def children(self, session: Session) -> list[Session]:
        """Return the sessions in a session's own folder, without looking at any other."""
        return await self._threads.submit(
            lambda: [self._lookup.load(path).session for path in session_tree.child_folders(session.path)]
        )

    async def check_unlocked(self, session: Session) -> None:
        """Raise SessionLocked if another process has the session open; read and write nothing."""
        await self._threads.run(lambda: os.close(acquire_session_lock(session.path)))

    def open(self, session: Session) -> AbstractAsyncContextManager[FileConversation]:
        return _OpenConversation(session, self._threads, self._conversation_cache, self._lookup)

    async def read_preset(self, session: Session) -> tuple[Agent, str]:
        return self._preset_cache.get_unchanged(session) or await self._threads.submit(
            lambda: self._preset_cache.load(session)
        )

    async def update(self, session: Session, **changes: Unpack[SessionChanges]) -> Session:
        return await self._threads.submit(
            lambda: self._write_metadata(session, changes),
            force_thread="name" in changes and self._has_many_sessions,
        )

    async def grant_pattern(self, session: Session, access: ToolAccess, pattern: str) -> None:
        """Add one pattern to the permissions in the session's own preset.md."""
        await self._threads.submit(lambda: self._grant_pattern(session, access, pattern))

    async def set_preset(self, session: Session, text: str) -> None:
        """Replace a session's preset on behalf of a person. Only this changes the plan's `updated` time."""
        await self._threads.submit(lambda: self._write_preset(session, text))

    async def read_entries(self, session: Session) -> tuple[list[Entry], list[str]]:
        """Read all entries and the file's problems without taking the session's lock."""
        return await self._threads.submit(lambda: read_all_entries(_session_file(session)))

    async def scan(self, session: Session) -> SessionScan:
        """Count a conversation's entries and find problems in its file without keeping the entries."""
        return await self._threads.submit(
            lambda: self._scan_file(_session_file(session)), force_thread=_is_large(session)
        )

    def iter_entries(self, session: Session) -> AsyncGenerator[list[Entry]]:
        """Iterate over a conversation of any length in batches of entries."""
        return self._iterate_in_threads(iter_entry_batches(_session_file(session), []))

    async def read_page(self, session: Session, request: PageRequest) -> list[Entry]:
        """Read some entries of a conversation of any length, oldest first."""
        return await self._threads.submit(
            lambda: self._page_reader.read_page(_session_file(session), request),
            force_thread=_is_large(session),
        )

    async def read_entry_page(
        self, session: Session, *, after: str = "", before: str = "", limit: int
    ) -> list[Entry]:
        """Return the first entries after one, the last before one, or the newest."""
        return await self.read_page(session, PageRequest(after=after, before=before, limit=limit))

    async def read_entry(self, session: Session, entry_id: str) -> Entry:
        """Return one entry; raises NotFound."""
        return (await self.read_page(session, PageRequest(around=entry_id, limit=1)))[0]

    def iter_entries_between(
        self, session: Session, *, after: str = "", before: str = ""
    ) -> AsyncGenerator[list[Entry]]:
        """Iterate in batches over all entries after one and before another."""
        return self._iterate_in_threads(
            self._page_reader.iter_between(_session_file(session), after=after, before=before)
        )

    async def read_draft(self, session: Session) -> str:
        """Return the draft below the file's open user line."""
        return await self._threads.submit(lambda: draft.read_draft(_session_file(session)))

    async def save_draft(self, session: Session, text: str) -> None:
        """Replace the draft below the file's open user line."""
        await self._threads.run(lambda: draft.write_draft(session, text, self._clock))
        self._lookup.mark_changed(session.path)

    def iter_text(self, session: Session) -> AsyncGenerator[str]:
        """Iterate over the raw text of session.md in pieces."""
        return self._iterate_in_threads(iter_text(_session_file(session)))

    async def _iterate_in_threads(self, iterator: Iterator[T]) -> AsyncGenerator[T]:
        while (each := await self._threads.submit(lambda: next(iterator, None))) is not None:
            yield each

    async def problems(self, session: Session) -> tuple[str, ...]:
        """Return the problems in the files that identify the session."""
        return await self._threads.submit(
            lambda: (*self._lookup.load(session.path).problems, *preset_cache.preset_problems(session))
        )

    async def clear(self, session: Session) -> Session:
        """Archive the history under another name; the session keeps its identity."""
        return await self._threads.submit(lambda: self._clear_history(session))

    async def delete(self, session: Session, *, at: datetime | None = None) -> str:
        """Rename the folder to a deleted name, which no list or lookup finds; `sweep` removes it later.

        `at`: the time in the new name; by default now.
        """
        return await self._threads.submit(lambda: self._delete_folder(session, at or self._clock.now()))

    def path_in_trash(self, path: str, at: datetime) -> str:
        return file_names.deleted_name(path, at)

    async def find_deleted(self, ref: str) -> tuple[Session, str]:
        """Find a deleted session by its id, slug or the folder's name; return it and its folder in the trash."""
        return await self._threads.submit(lambda: self._find_deleted(ref))

    def purge_target(self, session: Session, folder: str, *, keeps_session: bool = False) -> PurgeTarget:
        """Return what to purge with a session: everything in the folder.

        Reads the whole folder: call it in a thread.
        """
        ids = purge.session_ids_below(folder) | {session.id}
        return PurgeTarget(
            session=session.id,
            session_ids=ids,
            removed_ids=ids - {session.id} if keeps_session else ids,
            folders=(purge.original_folder(self._lookup.root, folder),),
        )

    def remove_deleted_folder(self, folder: str, target: PurgeTarget) -> None:
        """Remove a deleted session's folder for good. Call it in a thread."""
        purge.remove_folder(self._lookup.root, folder, target, self._clock.new_uuid())
        self._lookup.mark_changed(file_names.name_before_deletion(folder))

    def remove_history(self, session: Session, target: PurgeTarget) -> None:
        """Remove a session's messages, children and archived copies. Call it in a thread."""
        with ExitStack() as stack:
            for path in session_tree.walk_subtree(session.path):
                stack.enter_context(session_lock(path))
            purge.remove_history(self._lookup.root, session.path, target.removed_ids, self._clock.new_uuid())
        self._lookup.mark_changed(session.path)

    def other_branches_with_history(self, session: Session) -> list[Session]:
        """Return the other branches that may hold copies of a session's messages. Call it in a thread."""
        if not session.is_top_level:
            return []
        return [
            self._lookup.load(path).session
            for path in session_tree.branch_folders(top_folder(session))
            if path != session.path and purge.has_history(path)
        ]

    async def restore(self, ref: str) -> Session:
        """Restore a deleted session to its place.

        Args:
            ref: Its id, its slug, or the folder's name after the deletion.
        """
        return await self._threads.submit(lambda: self._restore_folder(ref))

    async def find_deleted_file(self, path: str) -> str | None:
        """Return the current path of a file of a deleted session, or None once it is removed."""
        return await self._threads.submit(lambda: restore.find_deleted_file(self._lookup.root, path))

    async def branch(
        self, session: Session, *, prompt_id: str | None = None, include: bool = True, name: str
    ) -> Session:
        """Create a branch of a top-level session and make it the current one."""
        return await self._threads.submit(
            lambda: self._create_branch(session, prompt_id=prompt_id, include=include, name=name)
        )

    def sweep(self) -> list[str]:
        """Remove leftovers of crashes and old deleted sessions; return the removed paths.

        Does nothing if the last sweep was less than a day ago.
        """
        return sweep_trash(self._lookup.root, self._clock.now())

    def _scan_file(self, path: str) -> SessionScan:
        """Scan a file, or return the cached result if the file has not changed."""
        cached, current_stamp = self._scan_cache.get(path), file_stamp(path)
        if cached is not None and cached[0] == current_stamp:
            return cached[1]
        result = scan_session(path)
        if len(self._scan_cache) >= _MAX_CACHED_SCANS:
            self._scan_cache.clear()
        if current_stamp is not None and time.time_ns() - current_stamp[3] > STAMP_SETTLE_NS:
            self._scan_cache[path] = (current_stamp, result)
        return result

    def _create_unnamed(self, new: NewSession) -> folder.NewSessionFolder:
        if not self._root_exists:
            self._ensure_root()
        return folder.create_session_folder(self._lookup.root, new, self._clock)

    def _create_named(self, new: NewSession) -> folder.NewSessionFolder:
        self._ensure_root()
        with file_lock(os.path.join(self._lookup.root, file_names.CHANGES_LOCK)):
            self._check_name_free(new.name or "", None)
            return folder.create_session_folder(self._lookup.root, new, self._clock)

    def _ensure_root(self) -> None:
        try:
            os.makedirs(self._lookup.root, 0o700, exist_ok=True)
        except OSError as error:
            raise write_error(self._lookup.root, error) from error
        self._root_exists = True

    def _check_name_free(self, name: str, slug: str | None) -> None:
        if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
            raise UsageError(f"A session's name must be one line of at most {_MAX_NAME_CHARS} characters.")
        if name.strip().lower() in SESSION_KEYWORDS:
            raise UsageError(
                f'A session cannot be named "{name}", because that word chooses a session. Choose another name.'
            )
        if file_names.looks_like_session_id(name):
            raise UsageError(
                f'A session cannot be named "{name}", because that looks like an id or slug. Choose another name.'
            )
        if conflict := self._name_conflict(name, slug):
            raise Conflict(conflict)

    def _name_conflict(self, name: str, slug: str | None) -> str:
        """Explain why no session but the one with this slug can take the name; empty if it is free."""
        for each in self._lookup.load_all():
            if each.slug != slug and name in (each.id, each.slug, each.key, *each.aliases):
                return f'Session name "{name}" is already in use as the id, slug or alias of another session'
            taken_name = None if each.slug == slug else each.name
            if taken_name is not None and taken_name.strip().casefold() == name.strip().casefold():
                return f'Session name "{name}" is already in use'
        return ""

    def _write_metadata(self, session: Session, changes: SessionChanges) -> Session:
        unknown = sorted(set(changes) - _CHANGEABLE_FIELDS)
        if unknown:
            raise UsageError(
                f"A session's {unknown[0]} cannot be changed; {', '.join(sorted(_CHANGEABLE_FIELDS))} can"
            )
        self._ensure_root()
        with file_lock(os.path.join(self._lookup.root, file_names.CHANGES_LOCK)):
            if (name := changes.get("name")) is not None:
                self._check_name_free(name, session.slug)
            changed = replace(self._lookup.load(session.path).session, **changes)
            path = os.path.join(session.path, file_names.METADATA)
            replace_file(path, render_metadata(changed), token=self._clock.new_uuid())
        self._lookup.mark_changed(session.path)
        return self._lookup.load(session.path).session

    def _grant_pattern(self, session: Session, access: ToolAccess, pattern: str) -> None:
        path = os.path.join(session.path, file_names.PRESET)
        text = read_file(path).decode()
        new_text = with_granted_pattern(
            text, access, pattern, is_top_level=session.is_top_level, location=path, name=session.agent
        )
        if new_text != text:
            self._write_preset(session, new_text)

    def _write_preset(self, session: Session, text: str) -> None:
        path = os.path.join(session.path, file_names.PRESET)
        definition_file.parse_preset(text, path, name=session.agent)
        replace_file(path, text.encode(), token=self._clock.new_uuid())
        plan = render_scope_plan(self._lookup.load(session.path).session, updated=self._clock.now())
        replace_file(os.path.join(session.path, file_names.PLAN), plan, token=self._clock.new_uuid())
        self._lookup.mark_changed(session.path)

    def _clear_history(self, session: Session) -> Session:
        now = self._clock.now()
        with session_lock(session.path):
            for name in (file_names.SESSION, file_names.TOOLS, file_names.PROVIDER_DATA):
                path = os.path.join(session.path, name)
                if os.path.lexists(path):
                    self._archive_file(
                        path,
                        file_names.cleared_name(name, now),
                        leave_empty_file=name != file_names.PROVIDER_DATA,
                    )
            fsync_path(session.path)
        self._lookup.mark_changed(session.path)
        return self._lookup.load(session.path).session

    def _archive_file(self, path: str, name: str, *, leave_empty_file: bool) -> None:
        """Rename a file and put an empty one in its place atomically, so that the file is never missing."""
        parent = os.path.dirname(path)
        try:
            os.link(path, unused_path(parent, name))
            if not leave_empty_file:
                os.unlink(path)
                return
            temporary = os.path.join(parent, f".{os.path.basename(path)}.{self._clock.new_uuid()}")
            create_file(temporary, b"")
            os.replace(temporary, path)
        except OSError as error:
            raise write_error(path, error) from error

    def _delete_folder(self, session: Session, at: datetime) -> str:
        top = top_folder(session)
        with ExitStack() as stack:
            for path in session_tree.walk_subtree(top):
                stack.enter_context(session_lock(path))
            deleted_path = unused_path(
                os.path.dirname(top), file_names.deleted_name(os.path.basename(top), at)
            )
            try:
                os.rename(top, deleted_path)
                fsync_path(os.path.dirname(top))
            except OSError as error:
                raise move_error(top, error) from error
        self._lookup.mark_changed(top)
        return deleted_path

    def _create_branch(self, session: Session, *, prompt_id: str | None, include: bool, name: str) -> Session:
        path = branches.create_branch(session, self._clock, prompt_id=prompt_id, include=include, name=name)
        self._lookup.mark_changed(path)
        return self._lookup.load(path).session

    def _find_deleted(self, ref: str) -> tuple[Session, str]:
        path = restore.find_deleted_session(self._lookup.root, ref)
        found = restore.sessions_in_folder(path)
        named = (each for each in found if ref in (each.id, each.slug, *each.aliases))
        session = next(named, None) or self._lookup.load(session_tree.current_branch(path) or path).session
        if ids := purge.purged_ids(path):  # its own files may be gone already
            session = replace(session, id=ref if ref in ids else ids[0])
        return session, path

    def _restore_folder(self, ref: str) -> Session:
        deleted_folder = restore.find_deleted_session(self._lookup.root, ref)
        if ids := purge.purged_ids(deleted_folder):
            raise Conflict(
                f"{deleted_folder} was being purged and is no longer complete. Finish it with `retinue sessions delete {ids[0]} --purge`."
            )
        with file_lock(os.path.join(self._lookup.root, file_names.CHANGES_LOCK)):
            for each in restore.sessions_in_folder(deleted_folder):
                if each.name is not None and (conflict := self._name_conflict(each.name, each.slug)):
                    raise Conflict(f"{conflict}. Rename that session first.")
            restored_path = restore.restore_folder(deleted_folder)
        self._lookup.mark_changed(restored_path)
        restored = [self._lookup.load(path).session for path in session_tree.walk_subtree(restored_path)]
        return (
            next((each for each in restored if each.id == ref), None)
            or self._lookup.load(session_tree.current_branch(restored_path) or restored_path).session
        )


class _OpenConversation:
    """Context manager of an open conversation."""

    __slots__ = ("_conversation", "_conversation_cache", "_lookup", "_session", "_threads")

    def __init__(
        self,
        session: Session,
        threads: DiskThreadPool,
        conversation_cache: ConversationCache,
        lookup: SessionLookup,
    ) -> None:
        self._session = session
        self._threads = threads
        self._conversation_cache = conversation_cache
        self._lookup = lookup
        self._conversation: FileConversation | None = None

    async def __aenter__(self) -> FileConversation:
        session, conversation_cache = self._session, self._conversation_cache
        conversation = self._conversation = await self._threads.open_conversation(
            lambda: conversation_cache.open(session),
            FileConversation.close,
            force_inline=_is_small(session),
        )
        self._lookup.track_work(session.path, change=1)
        return conversation

    async def __aexit__(self, *_: object) -> None:
        conversation, path = self._conversation, self._session.path
        if conversation is not None:
            self._conversation_cache.close(conversation)
            self._lookup.update_conversation_end(path, conversation.final_state)
            self._lookup.track_work(path, change=-1)


def _is_small(session: Session) -> bool:
    """Return True if reading the file inline is faster than handing it to a thread."""
    stamp = file_stamp(_session_file(session))
    return stamp is not None and stamp[1] <= _SMALL_FILE_BYTES


def _is_large(session: Session) -> bool:
    """Return True if reading the file would block other work."""
    stamp = file_stamp(_session_file(session))
    return stamp is not None and stamp[1] > _LARGE_FILE_BYTES


def _session_file(session: Session) -> str:
    return f"{session.path}/{file_names.SESSION}"
