"""Detects changes that people make to the session files that clients are viewing."""

import os
from collections.abc import Callable, Iterable
from datetime import datetime

from retinue.domain.event import Event
from retinue.domain.session import Session
from retinue.server.event_queue import DELTA_KINDS

POLL_SECONDS = 1.0

FileStamp = tuple[int, int, int] | None


class _WatchedFile:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.path = f"{session.path}/session.md"
        self.stamp = _file_stamp(self.path)
        self.change_count = 0


class SessionFileWatcher:
    """Poll the files of viewed sessions for changes by others; this process announces its own."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._files: dict[str, _WatchedFile] = {}
        self._next_poll_at = 0.0

    def add_session(self, session: Session) -> None:
        if session.id not in self._files:
            self._files[session.id] = _WatchedFile(session)

    def retain(self, session_ids: Iterable[str]) -> None:
        """Stop watching all sessions but these."""
        retained_ids = set(session_ids)
        self._files = {
            session_id: file for session_id, file in self._files.items() if session_id in retained_ids
        }

    def on_event(self, event: Event) -> None:
        """Record that this process has written to the session: the file's current state is known."""
        if (file := self._files.get(event.session)) is not None and event.kind not in DELTA_KINDS:
            file.stamp = _file_stamp(file.path)

    def poll_changes(self, now: float) -> list[Event]:
        """Return an event for each file that was changed since, at most once a second."""
        if not self._files or now < self._next_poll_at:
            return []
        self._next_poll_at = now + POLL_SECONDS
        return [
            self._make_change_event(file)
            for file in self._files.values()
            if file.stamp != _file_stamp(file.path)
        ]

    def _make_change_event(self, file: _WatchedFile) -> Event:
        file.stamp = _file_stamp(file.path)
        file.change_count += 1
        return Event(
            kind="session.changed",
            at=self._now(),
            session=file.session.id,
            agent=file.session.agent,
            live_seq=file.change_count,
            data={"change": "file"},
        )


def _file_stamp(path: str) -> FileStamp:
    """Return a stamp that differs once the file was changed or replaced; None if it does not exist."""
    try:
        info = os.stat(path)  # noqa: PTH116  (creating a Path would cost more than the stat)
    except OSError:
        return None
    return (info.st_ino, info.st_size, info.st_mtime_ns)
