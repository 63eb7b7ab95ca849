"""Conversations closed lately, kept as they were: a file that nobody touched since then is not read again."""

import os
import threading

from retinue.domain.chance import Chance
from retinue.domain.session import Session
from retinue.store.conversation import FileConversation, opened
from retinue.store.lock import hold
from retinue.store.threads import Threads
from retinue.store.window import WINDOW

MOST = 64
"""Conversations that are kept."""
MOST_BYTES = 4 << 20
"""Of their files together: what is held of them takes a few times as much memory."""


class Residents:
    """The latest few, by their folder. The files stay the truth: each is compared by its stamp, under its lock."""

    def __init__(self, chance: Chance, threads: Threads, *, window: int = WINDOW) -> None:
        self._chance = chance
        self._threads = threads
        self._window = window
        self._most_bytes = min(MOST_BYTES, window)
        self._lock = threading.Lock()
        self._kept: dict[str, FileConversation] = {}
        self._bytes = 0

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
        path, size = conversation.session.path, conversation.weight
        if not 0 < size <= self._most_bytes:
            return
        with self._lock:
            self._forget(path)
            self._kept[path] = conversation
            self._bytes += size
            while self._bytes > self._most_bytes or len(self._kept) > MOST:
                self._forget(next(iter(self._kept)))

    def _taken(self, path: str) -> FileConversation | None:
        with self._lock:
            return self._forget(path)

    def _forget(self, path: str) -> FileConversation | None:
        kept = self._kept.pop(path, None)
        if kept is not None:
            self._bytes -= kept.weight
        return kept
