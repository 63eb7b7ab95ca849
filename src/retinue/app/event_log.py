"""What the log tells: what succeeded and what failed, so that a person can see afterwards what went on."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retinue.app.log_file import LogFile
from retinue.domain.clock import Chance
from retinue.domain.event import Event
from retinue.domain.run import Status, iso
from retinue.domain.session import NewSession, Session
from retinue.errors import RetinueError
from retinue.sessions.store import FileStore

TOLD = frozenset({"run.queued", "run.started", "run.ended", "announcement.delivered"})
"""Events that get a line. All of them are kept by the ledger: nothing that a turn tells on its way is here."""
FACTS = ("status", "reason", "duration_ms", "attempt", "door", "delivery", "to")
"""What a line takes over of an event's data: no words of anybody."""
IDS = frozenset({"run", "session", "delivery"})
"""What holds an id. One that looks as ours do is no secret: nobody looks further into it."""
_OUR_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|01[0-9A-HJKMNP-TV-Z]{24}"
)
FAILURES = frozenset({Status.FAILED, Status.LOST, Status.TIMED_OUT})

Line = tuple[dict[str, Any], dict[str, Any]]
"""What every line has, and the facts of this one."""


class Log:
    """Lines at three levels: `info` for what succeeded, `error` for what did not, `warn` for what went otherwise."""

    def __init__(self, home: Path, redact: Callable[[str], str], chance: Chance) -> None:
        self._file = LogFile(home)
        self._redact = redact
        self._chance = chance
        self._lines: list[Line] = []
        self._soon = False

    def heard(self, event: Event) -> None:
        """One line for an event that matters afterwards."""
        warning = event.data.get("warning")
        if event.kind not in TOLD and warning is None:
            return
        who = {"run": event.run, "session": event.session, "agent": event.agent}
        if warning is not None:
            self._line("warn", warning, at=iso(event.at), **who)
            return
        facts = {name: event.data[name] for name in FACTS if event.data.get(name) not in (None, "")}
        level = "error" if event.data.get("status") in FAILURES else "info"
        self._line(level, event.kind, at=iso(event.at), **who, **facts)

    def done(self, what: str, **facts: Any) -> None:
        self._line("info", what, at=iso(self._chance.now()), **facts)

    def failed(self, what: str, error: Exception, **facts: Any) -> None:
        self._line("error", what, at=iso(self._chance.now()), **facts, error=str(error))

    def _line(self, level: str, what: str, *, at: str | None, **facts: Any) -> None:
        self._lines.append(({"at": at, "level": level, "what": what}, facts))
        if level != "info" or (loop := _loop()) is None:
            self.flush()
        elif not self._soon:
            self._soon = True
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """What happens in one moment is written at once: a thousand runs that begin together are one write."""
        lines, self._lines, self._soon = self._lines, [], False
        if lines:
            if not self._harmless(lines):
                lines = [(head, self._safe(facts)) for head, facts in lines]
            self._file.add([head | facts for head, facts in lines])

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _harmless(self, lines: Sequence[Line]) -> bool:
        """Facts hold secrets as good as never: one look at all of them together says so."""
        together = "\n".join(
            [
                fact
                for _, facts in lines
                for name, fact in facts.items()
                if isinstance(fact, str) and not (name in IDS and _OUR_ID.fullmatch(fact))
            ]
        )
        return self._redact(together) == together

    def _safe(self, facts: dict[str, Any]) -> dict[str, Any]:
        return {name: self._redact(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LoggedStore(FileStore):
    """The store, with a line for each folder that was made, and for each folder or fact that could not be written."""

    def __init__(self, root: Path, chance: Chance, log: Log) -> None:
        super().__init__(root, chance)
        self._log = log

    async def create(self, new: NewSession) -> Session:
        try:
            session = await super().create(new)
        except (OSError, RetinueError) as error:
            above = {} if new.parent is None else {"parent": new.parent.id}
            self._log.failed("session.created", error, agent=new.agent, **above)
            raise
        self._log.done("session.created", session=session.id, agent=session.agent, path=session.path)
        return session

    async def change(self, session: Session, **facts: Any) -> Session:
        try:
            return await super().change(session, **facts)
        except (OSError, RetinueError) as error:
            self._log.failed("session.changed", error, session=session.id, path=session.path)
            raise
