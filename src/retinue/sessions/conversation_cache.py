"""Conversations closed lately, kept as they were: a file that nobody touched since then is not read again."""

import os
import threading

from retinue.domain.clock import Chance
from retinue.domain.session import Session
from retinue.sessions.conversation import FileConversation, opened
from retinue.sessions.window import WINDOW
from retinue.storage.file_lock import hold
from retinue.storage.thread_pool import Threads

MOST = 64
"""Short conversations that are kept."""
MOST_BYTES = 4 << 20
"""Of what is held of their files together: it takes a few times as much memory."""
LONG = 1 << 20
"""From so many bytes on a conversation is long. Of those at most so much is kept together as a single one may hold: reading
one again takes longer than everything else in a run."""


class Residents:
    """The latest few, by their folder. The files stay the truth: each is compared by its stamp, under its lock."""

    def __init__(self, chance: Chance, threads: Threads, *, window: int = WINDOW) -> None:
        self._chance = chance
        self._threads = threads
        self._window = window
        self._lock = threading.Lock()
        self._short = _Kept(MOST, min(MOST_BYTES, window))
        self._long = _Kept(MOST, window)

    def opened(self, session: Session) -> FileConversation:
        """The conversation as its file has it, locked by this process."""
        kept = self._taken(session.path)
        if kept is not None:
            directory = hold(session.path)
            if (anew := kept.successor(session, directory)) is not None:
                return anew
            os.close(directory)
        return opened(session, chance=self._chance, threads=self._threads, window=self._window)

    def close(self, conversation: FileConversation) -> None:
        """Gives the lock back, and keeps what would be found again."""
        conversation.close()
        path, weight = conversation.session.path, conversation.weight
        with self._lock:
            self._short.take(path)
            self._long.take(path)
            if weight:
                (self._long if weight > LONG else self._short).put(path, conversation, weight)

    def _taken(self, path: str) -> FileConversation | None:
        with self._lock:
            return self._short.take(path) or self._long.take(path)


class _Kept:
    """As many as have room; the oldest make way."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[FileConversation, int]] = {}
        self._bytes = 0

    def put(self, path: str, conversation: FileConversation, weight: int) -> None:
        if weight > self._most_bytes:
            return
        self._kept[path] = (conversation, weight)
        self._bytes += weight
        while self._bytes > self._most_bytes or len(self._kept) > self._most:
            self.take(next(iter(self._kept)))

    def take(self, path: str) -> FileConversation | None:
        conversation, weight = self._kept.pop(path, (None, 0))
        self._bytes -= weight
        return conversation
