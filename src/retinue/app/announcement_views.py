"""What a session shows of those it has asked: one line for each, while they work and when they have ended."""

from collections.abc import Iterable, Sequence
from typing import Any

from retinue.domain.delivery import Delivery, error, inbox_status, one_line
from retinue.domain.run import Run, Status, iso
from retinue.domain.session import Session
from retinue.interfaces import Ledger, Tx

MAX_SUMMARY = 200
ANSWERING = "agents_message"
"""The door through which another conversation is asked, which answers for itself."""


async def announced(session: Session, below: Iterable[Session], ledger: Ledger) -> list[dict[str, Any]]:
    """The oldest first: the runs that runs of this session asked for, and those that a person began below it. Derived
    from the ledger, so that it cannot say anything else than the runs do."""
    children = [each.id for each in below if each.parent == session.id]

    def step(tx: Tx) -> list[tuple[Run, Delivery | None]]:
        found = {run.id: run for run in _asked(session, tx)}
        found |= {run.id: run for child in children for run in tx.runs(session=child) if _for(session, run)}
        return [(run, next(iter(tx.deliveries(run=run.id)), None)) for _, run in sorted(found.items())]

    return [_crumb(run, delivery) for run, delivery in await ledger.look(step)]


def _asked(session: Session, tx: Tx) -> Sequence[Run]:
    asking = tx.runs(session=session.id, family=True)
    return [run for each in asking for child in each.children if (run := tx.run(child)) is not None]


def _for(session: Session, run: Run) -> bool:
    return run.ask.requester == session.key and run.ask.parent_run is None


def _crumb(run: Run, delivery: Delivery | None) -> dict[str, Any]:
    return {
        "type": _type(run),
        "summary": _summary(run),
        "createdAt": iso(run.created_at),
        "childSessionId": run.session_id,
        "metadata": {
            "runId": run.id,
            "agent": run.agent,
            "slug": run.slug,
            "capability": run.ask.role,
            "trigger": run.ask.trigger,
            "status": inbox_status(run),
            "label": run.ask.label or None,
            "startedAt": iso(run.started_at),
            "endedAt": iso(run.ended_at),
            "transcript": run.path,
            "delivery": delivery and str(delivery.state),
        },
    }


def _type(run: Run) -> str:
    """Seed 003's words: subtask, watcher, notification."""
    if run.ask.door == ANSWERING:
        return "notification"
    return "watcher" if run.ask.role == "watcher" else "subtask"


def _summary(run: Run) -> str:
    if run.status.live:
        return f"Started {run.agent} via {run.ask.trigger}"
    said = one_line(run.text) if run.status is Status.DONE else error(run)
    return said if len(said) <= MAX_SUMMARY else f"{said[: MAX_SUMMARY - 1]}…"
