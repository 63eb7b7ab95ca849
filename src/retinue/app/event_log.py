"""The event log: one line for each operation that succeeded or failed."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from retinue.app.log_file import LogFile
from retinue.domain.clock import Clock
from retinue.domain.event import Event
from retinue.domain.run import Status
from retinue.domain.session import NewSession, Session
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import RetinueError
from retinue.interfaces import SessionChanges
from retinue.sessions.store import FileStore

LOGGED_KINDS = frozenset({"run.queued", "run.started", "run.ended", "announcement.delivered"})
"""Events that are logged. All of them are durable; live events of a turn are not logged."""
LOGGED_FIELDS = ("status", "reason", "duration_ms", "attempt", "entry_point", "delivery", "to")
"""Fields of an event's data that are logged. None of them contains text of a user or a model."""
ID_FIELDS = frozenset({"run", "session", "delivery"})
"""Fields that hold an id. A value in our own id format cannot be a secret and is not searched for one."""
_ID_PATTERN = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|01[0-9A-HJKMNP-TV-Z]{24}"
)
FAILED_STATUSES = frozenset({Status.FAILED, Status.LOST, Status.TIMED_OUT})

LogRecord = tuple[dict[str, Any], dict[str, Any]]
"""The header that every line has, and the fields of this line."""


class EventLog:
    """Log operations at three levels: `info` for success, `error` for failure, `warn` for warnings."""

    def __init__(self, home: Path, redact: Callable[[str], str], clock: Clock) -> None:
        self._file = LogFile(home)
        self._redact = redact
        self._clock = clock
        self._pending: list[LogRecord] = []
        self._flush_scheduled = False

    def log_event(self, event: Event) -> None:
        """Log an event if it is of a logged kind or carries a warning."""
        warning = event.data.get("warning")
        if event.kind not in LOGGED_KINDS and warning is None:
            return
        subject = {"run": event.run, "session": event.session, "agent": event.agent}
        if warning is not None:
            self._append("warn", warning, at=iso_timestamp(event.at), **subject)
            return
        fields = {name: event.data[name] for name in LOGGED_FIELDS if event.data.get(name) not in (None, "")}
        level = "error" if event.data.get("status") in FAILED_STATUSES else "info"
        self._append(level, event.kind, at=iso_timestamp(event.at), **subject, **fields)

    def log_success(self, message: str, **fields: Any) -> None:
        self._append("info", message, at=iso_timestamp(self._clock.now()), **fields)

    def log_failure(self, message: str, error: Exception, **fields: Any) -> None:
        self._append("error", message, at=iso_timestamp(self._clock.now()), **fields, error=str(error))

    def _append(self, level: str, message: str, *, at: str | None, **fields: Any) -> None:
        self._pending.append(({"at": at, "level": level, "event": message}, fields))
        if level != "info" or (loop := _running_loop()) is None:
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write all pending lines at once, so that a thousand runs started together cost one write."""
        lines, self._pending, self._flush_scheduled = self._pending, [], False
        if lines:
            if not self._has_no_secrets(lines):
                lines = [(header, self._redact_fields(fields)) for header, fields in lines]
            self._file.append([header | fields for header, fields in lines])

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _has_no_secrets(self, lines: Sequence[LogRecord]) -> bool:
        """Check all fields for secrets with a single redaction, because hardly any line holds one."""
        joined = "\n".join(
            [
                value
                for _, fields in lines
                for name, value in fields.items()
                if isinstance(value, str) and not (name in ID_FIELDS and _ID_PATTERN.fullmatch(value))
            ]
        )
        return self._redact(joined) == joined

    def _redact_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self._redact(value) if isinstance(value, str) else value for name, value in fields.items()
        }


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LoggedStore(FileStore):
    """A session store that logs each session created and each write that failed."""

    def __init__(self, root: Path, clock: Clock, log: EventLog) -> None:
        super().__init__(root, clock)
        self._log = log

    async def create(self, new: NewSession) -> Session:
        try:
            session = await super().create(new)
        except (OSError, RetinueError) as error:
            parent = {} if new.parent is None else {"parent": new.parent.id}
            self._log.log_failure("session.created", error, agent=new.agent, **parent)
            raise
        self._log.log_success("session.created", session=session.id, agent=session.agent, path=session.path)
        return session

    async def update(self, session: Session, **changes: Unpack[SessionChanges]) -> Session:
        try:
            return await super().update(session, **changes)
        except (OSError, RetinueError) as error:
            self._log.log_failure("session.changed", error, session=session.id, path=session.path)
            raise
