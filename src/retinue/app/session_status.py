"""The status of a session, as shown in lists."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from retinue.domain.run import Run, Status

STATUS_PRIORITY = {Status.RUNNING: 0, Status.WAITING: 1, Status.QUEUED: 2}


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The current run of a session; idle if there is none."""

    run: Run | None = None

    def as_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "status": "idle" if run is None else str(run.status),
            "waiting_for": None if run is None or run.waiting_for is None else str(run.waiting_for),
            "run": None if run is None else run.id,
        }


IDLE = SessionStatus()


def session_status(live_runs: Iterable[Run]) -> SessionStatus:
    """Return the status given by the run that occupies the conversation.

    That is the one running or waiting inside a call, else the next in the queue, else a suspended one.
    """
    ranked = sorted(
        live_runs,
        key=lambda run: (run.waits_between_turns, STATUS_PRIORITY.get(run.status, 3), run.created_at),
    )
    return SessionStatus(run=ranked[0] if ranked else None)
