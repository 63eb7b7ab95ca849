"""The announcements shown with a session: one row for each run it delegated."""

from collections.abc import Iterable, Sequence
from typing import Any

from retinue.domain.delivery import Delivery, failure_summary, inbox_status, single_line
from retinue.domain.run import Run, Status, iso_timestamp
from retinue.domain.session import Session
from retinue.interfaces import Ledger, Transaction

MAX_SUMMARY_CHARS = 200
MESSAGE_TOOL = "agents_message"
"""Name of the tool that sends a message to another conversation, which then replies."""


async def announcement_rows(
    session: Session, other_sessions: Iterable[Session], ledger: Ledger
) -> list[dict[str, Any]]:
    """Return one JSON row for each run that this session requested, oldest first.

    Includes runs requested by the session's own runs and runs that a person started below it. The rows are
    derived from the ledger, so they cannot disagree with the runs.
    """
    children = [each.id for each in other_sessions if each.parent_id == session.id]

    def step(tx: Transaction) -> list[tuple[Run, Delivery | None]]:
        found = {run.id: run for run in _delegated_runs(session, tx)}
        found |= {
            run.id: run
            for child in children
            for run in tx.find_runs(session=child)
            if _is_direct_request(session, run)
        }
        return [(run, next(iter(tx.find_deliveries(run=run.id)), None)) for _, run in sorted(found.items())]

    return [_announcement_json(run, delivery) for run, delivery in await ledger.read(step)]


def _delegated_runs(session: Session, tx: Transaction) -> Sequence[Run]:
    requesting_runs = tx.find_runs(session=session.id, with_children=True)
    return [
        run for each in requesting_runs for child in each.child_ids if (run := tx.get_run(child)) is not None
    ]


def _is_direct_request(session: Session, run: Run) -> bool:
    return run.request.requester == session.key and run.request.parent_run is None


def _announcement_json(run: Run, delivery: Delivery | None) -> dict[str, Any]:
    return {
        "type": _announcement_type(run),
        "summary": _announcement_summary(run),
        "createdAt": iso_timestamp(run.created_at),
        "childSessionId": run.session_id,
        "metadata": {
            "runId": run.id,
            "agent": run.agent,
            "slug": run.slug,
            "capability": run.request.role,
            "trigger": run.request.trigger,
            "status": inbox_status(run),
            "label": run.request.label or None,
            "startedAt": iso_timestamp(run.started_at),
            "endedAt": iso_timestamp(run.ended_at),
            "transcript": run.transcript_path,
            "delivery": delivery and str(delivery.state),
        },
    }


def _announcement_type(run: Run) -> str:
    """Return seed 003's announcement type: subtask, watcher or notification."""
    if run.request.entry_point == MESSAGE_TOOL:
        return "notification"
    return "watcher" if run.request.role == "watcher" else "subtask"


def _announcement_summary(run: Run) -> str:
    if run.status.is_live:
        return f"Started {run.agent} via {run.request.trigger}"
    summary = single_line(run.text) if run.status is Status.DONE else failure_summary(run)
    return summary if len(summary) <= MAX_SUMMARY_CHARS else f"{summary[: MAX_SUMMARY_CHARS - 1]}…"
