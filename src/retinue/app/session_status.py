"""How a session stands: what is going on in it, in the words of lists."""

from collections.abc import Iterable
from typing import Any

from retinue.domain.run import Run, Status
from retinue.domain.value import value

RANKS = {Status.RUNNING: 0, Status.WAITING: 1, Status.QUEUED: 2}


@value
class Standing:
    """Idle unless a run says otherwise."""

    run: Run | None = None

    def as_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "status": "idle" if run is None else str(run.status),
            "waiting_for": None if run is None or run.waiting_for is None else str(run.waiting_for),
            "run": None if run is None else run.id,
        }


IDLE = Standing()


def standing(live: Iterable[Run]) -> Standing:
    """Of several that live the one that holds the conversation: it runs, or waits inside a call; then whoever is next in
    the queue, and last who stands aside."""
    ranked = sorted(live, key=lambda run: (run.aside, RANKS.get(run.status, 3), run.created_at))
    return Standing(run=ranked[0] if ranked else None)
