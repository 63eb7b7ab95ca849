"""The watch: a person may write into a conversation's file while somebody looks at it, and that is told too."""

import os
from collections.abc import Callable, Iterable
from datetime import datetime

from retinue.domain.event import Event
from retinue.domain.session import Session
from retinue.server.event_stream import DELTAS

LOOK_SECONDS = 1.0

Stamp = tuple[int, int, int] | None


class _Seen:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.path = f"{session.path}/session.md"
        self.stamp = _stamp(self.path)
        self.told = 0


class Watch:
    """Looks at the files of those sessions alone that somebody looks at. What this process writes tells itself."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._seen: dict[str, _Seen] = {}
        self._look_at = 0.0

    def look_at(self, session: Session) -> None:
        if session.id not in self._seen:
            self._seen[session.id] = _Seen(session)

    def only(self, wanted: Iterable[str]) -> None:
        """Nobody looks at the others any more."""
        kept = set(wanted)
        self._seen = {each: seen for each, seen in self._seen.items() if each in kept}

    def heard(self, event: Event) -> None:
        """This process has worked on the session: the file is as it left it."""
        if (seen := self._seen.get(event.session)) is not None and event.kind not in DELTAS:
            seen.stamp = _stamp(seen.path)

    def changes(self, now: float) -> list[Event]:
        """What others have written since, once a second."""
        if not self._seen or now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        return [self._changed(seen) for seen in self._seen.values() if seen.stamp != _stamp(seen.path)]

    def _changed(self, seen: _Seen) -> Event:
        seen.stamp = _stamp(seen.path)
        seen.told += 1
        return Event(
            kind="session.changed",
            at=self._now(),
            session=seen.session.id,
            agent=seen.session.agent,
            n=seen.told,
            data={"what": "file"},
        )


def _stamp(path: str) -> Stamp:
    """What differs when a file was changed or replaced; None: it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  (a path object for each look would cost more than the look)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)
