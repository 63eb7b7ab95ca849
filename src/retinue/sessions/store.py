"""Conversations as folders below one root: the store that one machine uses."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH118, PTH119, PTH120

import os
import shutil
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from retinue.agents import definition_file
from retinue.agents.pattern_grants import widened
from retinue.domain.agent import Agent
from retinue.domain.approval import Touch
from retinue.domain.clock import Chance
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry
from retinue.errors import Conflict, Usage
from retinue.sessions import branches, draft, folder, preset_cache, restore, session_tree
from retinue.sessions.batched_fsync import Settling
from retinue.sessions.conversation import FileConversation
from retinue.sessions.conversation_cache import Residents
from retinue.sessions.list_cache import SETTLED_NS
from retinue.sessions.lookup import Shelf, top_folder
from retinue.sessions.metadata_files import write_facts, write_plan
from retinue.sessions.pagination import Pages, Span
from retinue.sessions.preset_cache import Presets
from retinue.sessions.scan import Survey, entries_of, everything, survey, text_of
from retinue.sessions.trash import sweep
from retinue.sessions.window import WINDOW
from retinue.storage import file_names
from retinue.storage.file_io import (
    Stamp,
    no_room,
    not_moved,
    read_file,
    replace_file,
    stamp_of,
    sync_path,
    unused,
    write_new,
)
from retinue.storage.file_lock import alone, held, hold
from retinue.storage.thread_pool import Threads

T = TypeVar("T")
_LONGEST_NAME = 200
_SHORT = 1 << 14
_LONG = 1 << 20
_MOST_KEPT = 256
_MANY = 500
"""Sessions that are listed aside: looking at their folders would keep others waiting."""
_CHANGEABLE = frozenset({"name", "pinned_at", "attributes", "preset_hash", "aliases", "lifted"})


class FileStore:
    """Implements `ports.Store`."""

    def __init__(
        self, root: Path, chance: Chance, *, window: int = WINDOW, threads: Threads | None = None
    ) -> None:
        self.root = root
        self._chance = chance
        self._threads = threads or Threads()
        self._settling = Settling(self._threads)
        self._residents = Residents(chance, self._threads, window=window)
        self._pages = Pages()
        self._surveys: dict[str, tuple[Stamp, Survey]] = {}
        self._presets = Presets()
        self._shelf = Shelf(os.path.realpath(root), chance.uuid)
        self._rooted = False
        """Whether the root was there before: whoever finds it gone makes it anew."""
        self._sorted: tuple[Sequence[Session], list[Session]] = ((), [])
        """The last list as it was found, and as it is shown."""

    def close(self) -> None:
        """Ends the threads; what they are writing is written first."""
        self._threads.close()

    @property
    def _many(self) -> bool:
        """Whether looking at all sessions would keep others waiting."""
        return len(self._sorted[0]) > _MANY

    async def create(self, new: NewSession) -> Session:
        """On disk when this returns: a run that is acknowledged finds it after a loss of power."""
        if new.name is None:
            built = await self._threads.do(lambda: self._built(new), quick=True)
        else:
            built = await self._threads.through(lambda: self._named(new), long=True)
        session = built.session
        try:
            await self._settling.settled(built)
        except OSError as error:
            shutil.rmtree(top_folder(session), ignore_errors=True)
            raise no_room(session.path, error) from error
        finally:
            built.close()
        self._presets.wrote(session, new.preset, built.preset)
        self._shelf.touched(session.path)
        return self._shelf.put(session)

    async def find(self, ref: str) -> Session:
        known = self._shelf.unchanged(ref) or self._shelf.at_the_same(ref)
        return known or await self._threads.do(lambda: self._shelf.find(ref))

    async def named(self, ref: str) -> Session:
        """By id, slug, alias or unambiguous prefix, and never by a path or a name."""
        return self._shelf.unchanged(ref) or await self._threads.do(
            lambda: self._shelf.find(ref, paths=False), long=self._many
        )

    async def sessions(
        self, *, agent: str | None = None, children: bool = True, age: float = 0.0
    ) -> list[Session]:
        """Newest first by updated_at. With an `age`, what other processes changed in a session so many seconds ago, or
        later, need not show yet; what this one changed does."""
        everything = await self._threads.do(lambda: self._shelf.listed(age=age), long=self._many)
        if everything is not self._sorted[0]:
            by_id = sorted(everything, key=attrgetter("id"), reverse=True)
            self._sorted = (everything, sorted(by_id, key=attrgetter("updated_at"), reverse=True))
        if agent is None and children:
            return self._sorted[1].copy()
        return [each for each in self._sorted[1] if (children or each.top) and agent in (None, each.agent)]

    async def free(self, session: Session) -> None:
        """Held says who has the session open; nothing is read or written."""
        await self._threads.through(lambda: os.close(hold(session.path)))

    def open(self, session: Session) -> AbstractAsyncContextManager[FileConversation]:
        return _Opening(session, self._threads, self._residents, self._shelf)

    async def preset(self, session: Session) -> tuple[Agent, str]:
        return self._presets.unchanged(session) or await self._threads.do(lambda: self._presets.read(session))

    async def change(self, session: Session, **facts: Any) -> Session:
        return await self._threads.do(
            lambda: self._change(session, facts), long="name" in facts and self._many
        )

    async def widen(self, session: Session, touch: Touch, pattern: str) -> None:
        """One pattern more in the session's own preset.md."""
        await self._threads.do(lambda: self._widen(session, touch, pattern))

    async def set_preset(self, session: Session, text: str) -> None:
        """A person or a scope command changes what a session obeys; only this moves the plan's `updated`."""
        await self._threads.do(lambda: self._set_preset(session, text))

    async def entries(self, session: Session) -> tuple[list[Entry], list[str]]:
        """What the file says, read without a lock and without touching it, and what is wrong with it."""
        return await self._threads.do(lambda: everything(_file(session)))

    async def survey(self, session: Session) -> Survey:
        """How much the file holds and what is wrong with it: read as `entries` does, and nothing of it is kept."""
        return await self._threads.do(lambda: self._survey(_file(session)), long=_is_long(session))

    def portions(self, session: Session) -> AsyncGenerator[list[Entry]]:
        """The entries of a file of any length, some at a time."""
        return self._step_by_step(entries_of(_file(session), []))

    async def page(self, session: Session, span: Span) -> list[Entry]:
        """Some entries of a file of any length, oldest first."""
        return await self._threads.do(lambda: self._pages.page(_file(session), span), long=_is_long(session))

    async def recent(self, session: Session, *, after: str = "", before: str = "", limit: int) -> list[Entry]:
        """The first entries after one, the last before one, or the newest."""
        return await self.page(session, Span(after=after, before=before, limit=limit))

    def between(self, session: Session, *, after: str = "", before: str = "") -> AsyncGenerator[list[Entry]]:
        """All entries after one and before another, some at a time."""
        return self._step_by_step(self._pages.between(_file(session), after=after, before=before))

    async def typed(self, session: Session) -> str:
        """What stands below the file's open user line."""
        return await self._threads.do(lambda: draft.typed_in(_file(session)))

    async def draft(self, session: Session, text: str) -> None:
        """Replaces what stands there."""
        await self._threads.through(lambda: draft.put(session, text, self._chance))
        self._shelf.touched(session.path)

    def text(self, session: Session) -> AsyncGenerator[str]:
        """The file of any length as it stands, piece by piece."""
        return self._step_by_step(text_of(_file(session)))

    async def _step_by_step(self, found: Iterator[T]) -> AsyncGenerator[T]:
        while (each := await self._threads.do(lambda: next(found, None))) is not None:
            yield each

    async def problems(self, session: Session) -> tuple[str, ...]:
        """What is wrong with the files that say who the session is."""
        return await self._threads.do(
            lambda: (*self._shelf.at(session.path).problems, *preset_cache.problems(session))
        )

    async def clear(self, session: Session) -> Session:
        """The history is put aside under another name; who the session is stays."""
        return await self._threads.do(lambda: self._clear(session))

    async def delete(self, session: Session) -> str:
        """The folder gets a name that no list shows and no reference finds; `sweep` removes it later."""
        return await self._threads.do(lambda: self._delete(session))

    async def restore(self, ref: str) -> Session:
        """A deleted session is where it was again; `ref` is its id, slug, or the folder's name after it was deleted."""
        return await self._threads.do(lambda: self._restore(ref))

    async def put_aside(self, path: str) -> str | None:
        """Where the file of a session is that was deleted, as long as it is there."""
        return await self._threads.do(lambda: restore.put_aside(self._shelf.root, path))

    async def branch(
        self, session: Session, *, at: str | None = None, include: bool = True, name: str
    ) -> Session:
        """A new branch of a top-level session, from here on the current one."""
        return await self._threads.do(lambda: self._branch(session, at=at, include=include, name=name))

    def sweep(self) -> list[str]:
        """What crashes left half built and what was deleted long ago is removed, at most once a day; says what was."""
        return sweep(self._shelf.root, self._chance.now())

    def _survey(self, path: str) -> Survey:
        """A file that looks as it did is not counted again."""
        known, now = self._surveys.get(path), stamp_of(path)
        if known is not None and known[0] == now:
            return known[1]
        found = survey(path)
        if len(self._surveys) >= _MOST_KEPT:
            self._surveys.clear()
        if now is not None and time.time_ns() - now[3] > SETTLED_NS:
            self._surveys[path] = (now, found)
        return found

    def _built(self, new: NewSession) -> folder.Built:
        if not self._rooted:
            self._make_root()
        return folder.build(self._shelf.root, new, self._chance)

    def _named(self, new: NewSession) -> folder.Built:
        self._make_root()
        with alone(os.path.join(self._shelf.root, file_names.CHANGES)):
            self._free_name(new.name or "", None)
            return folder.build(self._shelf.root, new, self._chance)

    def _make_root(self) -> None:
        try:
            os.makedirs(self._shelf.root, 0o700, exist_ok=True)
        except OSError as error:
            raise no_room(self._shelf.root, error) from error
        self._rooted = True

    def _free_name(self, name: str, slug: str | None) -> None:
        if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise Usage(f"A session's name is one line of at most {_LONGEST_NAME} characters")
        if file_names.ours(name):
            raise Usage(f'A session cannot be called "{name}": ids and slugs look so; choose other words')
        if taken := self._taken(name, slug):
            raise Usage(taken)

    def _taken(self, name: str, slug: str | None) -> str:
        """Why nobody but the session of this slug can be called so; empty when it can."""
        for each in self._shelf.all():
            if each.slug != slug and name in (each.id, each.slug, each.key, *each.aliases):
                return f'Session name "{name}" is already in use: another session is found by it'
            if each.slug != slug and each.name is not None and each.name.casefold() == name.casefold():
                return f'Session name "{name}" is already in use'
        return ""

    def _change(self, session: Session, facts: dict[str, Any]) -> Session:
        unknown = sorted(set(facts) - _CHANGEABLE)
        if unknown:
            raise Usage(f"A session's {unknown[0]} cannot be changed; {', '.join(sorted(_CHANGEABLE))} can")
        self._make_root()
        with alone(os.path.join(self._shelf.root, file_names.CHANGES)):
            if facts.get("name") is not None:
                self._free_name(facts["name"], session.slug)
            known = replace(self._shelf.at(session.path).session, **facts)
            where = os.path.join(session.path, file_names.FACTS)
            replace_file(where, write_facts(known), token=self._chance.uuid())
        self._shelf.touched(session.path)
        return self._shelf.at(session.path).session

    def _widen(self, session: Session, touch: Touch, pattern: str) -> None:
        where = os.path.join(session.path, file_names.PRESET)
        text = read_file(where).decode()
        wider = widened(text, touch, pattern, top=session.top, where=where, name=session.agent)
        if wider != text:
            self._set_preset(session, wider)

    def _set_preset(self, session: Session, text: str) -> None:
        where = os.path.join(session.path, file_names.PRESET)
        definition_file.parse_preset(text, where, name=session.agent)
        replace_file(where, text.encode(), token=self._chance.uuid())
        plan = write_plan(self._shelf.at(session.path).session, updated=self._chance.now())
        replace_file(os.path.join(session.path, file_names.PLAN), plan, token=self._chance.uuid())
        self._shelf.touched(session.path)

    def _clear(self, session: Session) -> Session:
        now = self._chance.now()
        with held(session.path):
            for name in (file_names.SESSION, file_names.TOOLS, file_names.THOUGHTS):
                where = os.path.join(session.path, name)
                if os.path.lexists(where):
                    self._put_aside(where, file_names.cleared(name, now), keep=name != file_names.THOUGHTS)
            sync_path(session.path)
        self._shelf.touched(session.path)
        return self._shelf.at(session.path).session

    def _put_aside(self, where: str, name: str, *, keep: bool) -> None:
        """An empty file takes the old one's place in one step: the folder is never without it."""
        above = os.path.dirname(where)
        try:
            os.link(where, unused(above, name))
            if not keep:
                os.unlink(where)
                return
            temporary = os.path.join(above, f".{os.path.basename(where)}.{self._chance.uuid()}")
            write_new(temporary, b"")
            os.replace(temporary, where)
        except OSError as error:
            raise no_room(where, error) from error

    def _delete(self, session: Session) -> str:
        top = top_folder(session)
        now = self._chance.now()
        with ExitStack() as stack:
            for path in session_tree.within(top):
                stack.enter_context(held(path))
            final = unused(os.path.dirname(top), file_names.deleted(os.path.basename(top), now))
            try:
                os.rename(top, final)
                sync_path(os.path.dirname(top))
            except OSError as error:
                raise not_moved(top, error) from error
        self._shelf.touched(top)
        return final

    def _branch(self, session: Session, *, at: str | None, include: bool, name: str) -> Session:
        path = branches.branch(session, self._chance, at=at, include=include, name=name)
        self._shelf.touched(path)
        return self._shelf.at(path).session

    def _restore(self, ref: str) -> Session:
        folder_now = restore.found(self._shelf.root, ref)
        with alone(os.path.join(self._shelf.root, file_names.CHANGES)):
            for each in restore.sessions_in(folder_now):
                if each.name is not None and (taken := self._taken(each.name, each.slug)):
                    raise Conflict(f"{taken}: rename that session first")
            before = restore.restored(folder_now)
        self._shelf.touched(before)
        inside = [self._shelf.at(path).session for path in session_tree.within(before)]
        return (
            next((each for each in inside if each.id == ref), None)
            or self._shelf.at(session_tree.current(before) or before).session
        )


class _Opening:
    """A conversation while it is open."""

    __slots__ = ("_conversation", "_residents", "_session", "_shelf", "_threads")

    def __init__(self, session: Session, threads: Threads, residents: Residents, shelf: Shelf) -> None:
        self._session = session
        self._threads = threads
        self._residents = residents
        self._shelf = shelf
        self._conversation: FileConversation | None = None

    async def __aenter__(self) -> FileConversation:
        session, residents = self._session, self._residents
        opened = self._conversation = await self._threads.have(
            lambda: residents.opened(session),
            FileConversation.close,
            quick=_is_short(session),
        )
        self._shelf.working(session.path, more=1)
        return opened

    async def __aexit__(self, *_: object) -> None:
        conversation, path = self._conversation, self._session.path
        if conversation is not None:
            self._residents.close(conversation)
            self._shelf.grown(path, conversation.left)
            self._shelf.working(path, more=-1)


def _is_short(session: Session) -> bool:
    """Whether reading its file takes no longer than asking somebody else to."""
    stamp = stamp_of(_file(session))
    return stamp is not None and stamp[1] <= _SHORT


def _is_long(session: Session) -> bool:
    """Whether reading its file would keep others waiting."""
    stamp = stamp_of(_file(session))
    return stamp is not None and stamp[1] > _LONG


def _file(session: Session) -> str:
    return f"{session.path}/{file_names.SESSION}"
