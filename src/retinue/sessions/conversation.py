"""A session held open by this process: its entries as the file has them, and the only way to add to it."""

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from retinue.domain.clock import Chance
from retinue.domain.session import Session
from retinue.domain.transcript import Called, Entry, Returned, Said, distinct
from retinue.errors import Failed, NoRoom
from retinue.sessions import thinking_blocks
from retinue.sessions.markdown.marker import quoted
from retinue.sessions.markdown.parser import Reading
from retinue.sessions.markdown.writer import open_line, render
from retinue.sessions.markdown_file import SessionFile
from retinue.sessions.metadata_files import blank, write_plan
from retinue.sessions.snippet import last_said
from retinue.sessions.tools_log import heading
from retinue.sessions.window import WINDOW
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, read_file, replace_file, stamp_of, write_all
from retinue.storage.file_lock import hold
from retinue.storage.thread_pool import Threads

_SEVERAL = 2
"""A reply and the result of its call may well come in one turn of the loop; more are many at once."""
_TRIES = 8
"""How often an append is repeated when a person saves the file at the very same moment."""

Asked = tuple[Sequence[Entry], asyncio.Future[None]]
Key = tuple[bool, str]
"""A result bears its call's id, so the id alone does not tell them apart."""


class FileConversation:
    """Implements `ports.Conversation` on a folder. Whatever waits for the disk is done in a thread where that would hold
    others up, one thing at a time."""

    def __init__(
        self, session: Session, *, directory: int, chance: Chance, threads: Threads, window: int = WINDOW
    ) -> None:
        self.session = session
        self.entries: list[Entry] = []
        self.memo: dict[str, Any] = {}
        self.torn: str | None = None
        self._directory = directory
        self._file = SessionFile(session, directory, threads, window=window)
        self._chance = chance
        self._threads = threads
        self.alone = threading.Lock()
        self._present: set[Key] = set()
        self._own: dict[Key, Entry] = {}
        """What was added since the conversation was opened or last rested: a save may not drop it."""
        self._opened = ""
        self._typed = ""
        self._taken: dict[str, Said] = {}
        self.exact = True
        """Whether reading the file anew would find exactly these entries: not after a write that failed, nor where a
        person typed, nor when earlier ones were looked up."""
        self._asked: list[Asked] = []
        """What is to be added next, with those who wait for it."""
        self._flying = False
        """Whether something is being added."""
        self._lately = 0
        """How often something was added in this very turn of the loop: what comes now may have company."""
        self._thoughts: Stamp | None = None
        """Of the file of thoughts, when the conversation was closed."""

    @property
    def weight(self) -> int:
        """The bytes of the file it stands for as long as nobody touches it; 0 when the file must be read anew."""
        return self._file.held if self.exact else 0

    @property
    def left(self) -> tuple[Stamp, str] | None:
        """The stamp of a file that holds exactly these entries, and its last words as lists show them; None where they
        may stand so far from its end that nobody would look for them."""
        if not self.exact or self._file.stamp is None:
            return None
        words = last_said(self.entries)
        return None if words is None else (self._file.stamp, words)

    @property
    def abridged(self) -> bool:
        return self._file.start > 0

    async def earlier(self, run: str) -> list[Entry]:
        return await self._threads.through(lambda: self._earlier(run)) if self.abridged else []

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        """What comes at the same time, or while others are being written, is written together, by one write and one
        sync."""
        if not (sync or self._flying) and self._idle and self._append(entries, sync=False, waits=False):
            return
        loop = asyncio.get_running_loop()
        if self._threads.free and not self._flying and self._lately < _SEVERAL:
            if not self._lately:
                loop.call_soon(self._not_lately)
            self._lately += 1
            self._append(entries)
            return
        landed: asyncio.Future[None] = loop.create_future()
        self._asked.append((entries, landed))
        if not self._flying:
            self._flying = True
            loop.call_soon(self._fly)
        await self._threads.over(landed)

    def _not_lately(self) -> None:
        self._lately = 0

    def _fly(self) -> None:
        asked, self._asked = self._asked, []
        self._flying = bool(asked)
        if asked:
            entries = [entry for some, _ in asked for entry in some]
            try:
                self._threads.told(lambda: self._append(entries), lambda error: self._landed(asked, error))
            except BaseException as error:  # whatever ends the process must not leave anybody waiting
                self._landed(asked, error)
                raise

    def _landed(self, asked: "list[Asked]", error: BaseException | None) -> None:
        for _, landed in asked:
            if landed.done():
                continue
            if error is None:
                landed.set_result(None)
            else:
                landed.set_exception(error)
        self._fly()

    async def refresh(self) -> bool:
        if self._directory < 0 or not self._file.changed():
            return False
        return await self._threads.through(self._refresh)

    def typed(self) -> str:
        return self._typed

    async def take_typed(self, said: Entry) -> None:
        await self._threads.through(lambda: self._take_typed(said))

    async def rest(self) -> None:
        quick = not self._threads.free and not self._file.loose and self._at_hand
        await self._threads.through(self._rest, quick=quick)

    async def log_tool(self, called: Called, returned: Returned) -> None:
        text = heading(called, returned, self._chance.now() - timedelta(milliseconds=returned.ms))
        raw = text.encode("utf-8", "backslashreplace")
        await self._threads.do(lambda: self._log_tool(raw), quick=not self.alone.locked())

    @property
    def _at_hand(self) -> bool:
        """Whether nobody is writing to the file, so that what is not synced may be added at once."""
        return self._idle and not self._file.changed()

    @property
    def _idle(self) -> bool:
        return not self.alone.locked() and self._directory >= 0

    def load(self) -> None:
        """Reads the file for the first time; a torn tail is cut aside now and never later, and a plan that never reached
        the disk is written anew."""
        if self.session.path not in self._threads.settled:
            self._mend_plan()
        reading, self.torn = self._file.open(file_names.torn(self._chance.now()))
        self._adopt(reading)

    def _mend_plan(self) -> None:
        with suppress(OSError, NoRoom):
            if blank(read_file(file_names.PLAN, directory=self._directory)):
                replace_file(
                    f"{self.session.path}/{file_names.PLAN}", write_plan(self.session), token=self.session.id
                )

    def successor(self, session: Session, directory: int) -> "FileConversation | None":
        """What was closed, opened anew under another lock, when its files are still as they were left."""
        if not self._file.taken_up(session, directory) or self._thoughts != _thoughts_in(directory):
            return None
        anew = FileConversation(session, directory=directory, chance=self._chance, threads=self._threads)
        anew._file = self._file
        anew.entries, anew.memo = self.entries.copy(), self.memo
        anew._present, anew._opened = self._present, self._opened
        return anew

    def close(self) -> None:
        """Gives the lock back, once nothing is being written any more."""
        with self.alone:
            directory, self._directory = self._directory, -1
            if directory >= 0:
                self._thoughts = _thoughts_in(directory)
                if self._file.loose:
                    with suppress(NoRoom):  # it is written, and would be found elsewhere or come again
                        self._file.sync()
                self._threads.conversations -= 1
                self._file.close()
                os.close(directory)

    def begin(self) -> None:
        """From here on nobody else writes."""
        self.alone.acquire()
        if self._directory < 0:
            self.alone.release()
            raise Failed(f"{self.session.slug} is not open any more")

    def _append(self, entries: Sequence[Entry], *, sync: bool = True, waits: bool = True) -> bool:
        """False, where nobody `waits`: a person has changed the file, and it must be read first."""
        with _Alone(self):
            fresh = {key: entry for entry in entries if (key := _key(entry)) not in self._present}
            if not fresh:
                if sync and self._file.loose:
                    self._file.sync()
                return True
            self._own.update(fresh)
            added = False
            try:
                added = self._write(list(fresh.values()), sync=sync, waits=waits)
            finally:
                if not added:
                    for key in fresh:
                        self._own.pop(key, None)
            return added

    def _write(self, missing: list[Entry], *, sync: bool = True, waits: bool = True) -> bool:
        for _ in range(_TRIES):
            thinking_blocks.add(self.session.path, self._directory, missing)
            if self._file.add(b"".join([render(entry) for entry in missing]), sync=sync):
                self._note(missing)
                return True
            if not waits:
                return False
            missing = self._reread()
            if not missing:
                return True
        raise Failed(f"{self._file.path} keeps changing; try again when nobody is writing to it")

    def _note(self, added: Sequence[Entry]) -> None:
        if self._typed:
            self._hear(Said(id=self._opened, by="user", text=self._typed))
        self._opened = self._typed = ""
        self.entries.extend(added)
        self._present.update(map(_key, added))

    def _hear(self, said: Said) -> None:
        self.entries.append(said)
        self._present.add(_key(said))

    def _refresh(self) -> bool:
        with _Alone(self):
            if not self._file.changed():
                return False
            before = self.entries
            missing = self._reread()
            if missing:
                self._write(missing)
            return self.entries != before

    def _reread(self) -> list[Entry]:
        """Takes the file as a person left it; what is missing of our own must be added again."""
        self._adopt(self._file.reread())
        missing = {key: entry for key, entry in self._own.items() if key not in self._present}
        if missing:
            for entry in self._file.left_out([f"={quoted(entry_id)}" for _, entry_id in missing]):
                missing.pop(_key(entry), None)
        return list(missing.values())

    def _earlier(self, run: str) -> list[Entry]:
        """From here on they are present: none of them is added again."""
        with _Alone(self):
            found = [entry for entry in self._file.left_out([f" run={quoted(run)}"]) if entry.run == run]
            self.exact = self.exact and not found
            self._present.update(map(_key, found))
            return found

    def _adopt(self, reading: Reading) -> None:
        entries = (
            thinking_blocks.restored(reading.entries, reading.thoughtful, self._directory)
            if reading.thoughtful
            else reading.entries
        )
        self._opened, self._typed = reading.opened, reading.typed
        self.exact = self.exact and not self._typed
        if self._typed and self._opened in self._taken:
            entries.append(replace(self._taken[self._opened], text=self._typed))
            self._typed = ""
        self._present = set(map(_key, entries))
        if len(self._present) != len(entries):
            entries = distinct(entries)
        if entries != self.entries:
            self.entries, self.memo = entries, {}

    def _take_typed(self, said: Entry) -> None:
        with _Alone(self):
            if self._file.changed():
                self._reread()
            typed, opened = self._typed, self._opened
            if typed and isinstance(said, Said):
                self._file.sync()
                self._taken[opened] = replace(said, id=opened, text=typed)
                self._hear(self._taken[opened])
                self._typed = ""
                return
        self._append((said,))

    def _rest(self) -> None:
        with _Alone(self):
            self._own.clear()
            for _ in range(_TRIES):
                if self._file.empty or (self._opened and self._opened not in self._taken):
                    return
                entry_id = self._chance.entry_id()
                if self._file.add_open_line(open_line(entry_id).encode()):
                    self._opened = entry_id
                    return
                self._reread()

    def _log_tool(self, heading: bytes) -> None:
        """The log is derived and never read back, so a full disk may cost it a heading."""
        with _Alone(self), suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(file_names.TOOLS, flags, 0o600, dir_fd=self._directory)
            try:
                write_all(file, heading)
            finally:
                os.close(file)


class _Alone:
    """One at a time writes to a conversation that is open."""

    __slots__ = ("_conversation",)

    def __init__(self, conversation: FileConversation) -> None:
        self._conversation = conversation

    def __enter__(self) -> None:
        self._conversation.begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._conversation.exact = False
        self._conversation.alone.release()


def opened(session: Session, *, chance: Chance, threads: Threads, window: int = WINDOW) -> FileConversation:
    """Takes the session's lock and reads its file; the lock is given back when that fails."""
    directory = hold(session.path)
    try:
        conversation = FileConversation(
            session, directory=directory, chance=chance, threads=threads, window=window
        )
        conversation.load()
    except BaseException:
        os.close(directory)
        raise
    return conversation


def _key(entry: Entry) -> Key:
    return (isinstance(entry, Returned), entry.id)


def _thoughts_in(directory: int) -> Stamp | None:
    """Most have none, and to find that out by an error costs three times as much."""
    there = os.access(file_names.THOUGHTS, os.F_OK, dir_fd=directory)
    return stamp_of(file_names.THOUGHTS, directory=directory) if there else None
