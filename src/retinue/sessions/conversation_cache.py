"""A cache of recently closed conversations: an unchanged file is not read again."""

import os
import threading

from retinue.domain.clock import Clock
from retinue.domain.session import Session
from retinue.sessions.conversation import FileConversation, open_conversation
from retinue.sessions.window import WINDOW_BYTES
from retinue.storage.file_lock import acquire_session_lock
from retinue.storage.thread_pool import DiskThreadPool

MAX_CACHED = 64
"""Maximum number of small conversations in the cache."""
MAX_CACHED_BYTES = 4 << 20
"""Maximum total file bytes of small conversations; in memory they take a few times as much."""
LARGE_CONVERSATION_BYTES = 1 << 20
"""From this size on a conversation is large.

Large ones share a separate budget as big as the largest conversation that can be loaded, because reading one
again takes longer than everything else in a run.
"""


class ConversationCache:
    """The most recently closed conversations, by folder.

    The files stay authoritative: each is compared with its stamp under its lock.
    """

    def __init__(self, clock: Clock, threads: DiskThreadPool, *, window: int = WINDOW_BYTES) -> None:
        self._clock = clock
        self._threads = threads
        self._window = window
        self._lock = threading.Lock()
        self._small = _LruCache(MAX_CACHED, min(MAX_CACHED_BYTES, window))
        self._large = _LruCache(MAX_CACHED, window)

    def open(self, session: Session) -> FileConversation:
        """Lock a session and return its conversation as its file has it."""
        cached = self._take(session.path)
        if cached is not None:
            dir_fd = acquire_session_lock(session.path)
            if (reopened := cached.reopen(session, dir_fd)) is not None:
                return reopened
            os.close(dir_fd)
        return open_conversation(session, clock=self._clock, threads=self._threads, window=self._window)

    def close(self, conversation: FileConversation) -> None:
        """Release the session's lock and cache the conversation if it equals its file."""
        conversation.close()
        path, size = conversation.session.path, conversation.cached_bytes
        with self._lock:
            self._small.take(path)
            self._large.take(path)
            if size:
                (self._large if size > LARGE_CONVERSATION_BYTES else self._small).put(
                    path, conversation, size
                )

    def _take(self, path: str) -> FileConversation | None:
        with self._lock:
            return self._small.take(path) or self._large.take(path)


class _LruCache:
    """A size-limited cache that drops the oldest items first."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._items: dict[str, tuple[FileConversation, int]] = {}
        self._bytes = 0

    def put(self, path: str, conversation: FileConversation, size: int) -> None:
        if size > self._max_bytes:
            return
        self._items[path] = (conversation, size)
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._items) > self._max_count:
            self.take(next(iter(self._items)))

    def take(self, path: str) -> FileConversation | None:
        conversation, size = self._items.pop(path, (None, 0))
        self._bytes -= size
        return conversation
