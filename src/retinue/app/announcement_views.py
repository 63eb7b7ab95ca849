"""The announcements shown with a session: one row for each run it delegated."""

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any

from retinue.domain.delivery import (
    Delivery,
    Report,
    brief_summary,
    failure_summary,
    inbox_status,
    parse_reports,
    single_line,
)
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.timestamps import iso_timestamp
from retinue.domain.transcript import Entry, Notice, ToolResult
from retinue.interfaces import Ledger, Transaction

MAX_SUMMARY_CHARS = 200
MESSAGE_TOOL = "agents_message"
"""Name of the tool that sends a message to another conversation, which then replies."""


async def announcement_rows(
    session: Session, other_sessions: Iterable[Session], ledger: Ledger
) -> list[dict[str, Any]]:
    """Return one JSON row for each run in the ledger that this session requested, oldest first.

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


async def announcement_rows_from_files(
    session: Session,
    other_sessions: Sequence[Session],
    entries: AsyncIterable[list[Entry]],
    known_rows: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return rows for runs that are not in the ledger, because it was replaced or they were pruned.

    They come from the reports in the session's transcript, and from the folders of its children.
    """
    known_runs = {row["metadata"]["runId"] for row in known_rows}
    known_sessions = {row["childSessionId"] for row in known_rows}
    session_by_key = {each.key: each for each in other_sessions}
    rows: list[dict[str, Any]] = []
    async for batch in entries:
        for entry in batch:
            if isinstance(entry, Notice | ToolResult):
                for report in parse_reports(entry.text):
                    if report.run not in known_runs:
                        known_runs.add(report.run)
                        rows.append(_report_json(report, entry.at, session_by_key.get(report.session_key)))
    known_sessions |= {row["childSessionId"] for row in rows}
    children = (each for each in other_sessions if each.parent_id == session.id)
    rows += [_child_json(each) for each in children if each.id not in known_sessions]
    return rows


def _report_json(report: Report, at: str, child: Session | None) -> dict[str, Any]:
    is_done = report.status == Status.DONE
    return _file_row(
        agent=report.agent,
        summary=single_line(report.text),
        created_at=at or None,
        ended_at=at or None,
        child_id=report.session_key if child is None else child.id,
        slug=report.session_key.partition("/")[0] if child is None else child.slug,
        run_id=report.run,
        status="complete" if is_done else "error",
        transcript=report.transcript,
        attributes={} if child is None else child.attributes,
    )


def _child_json(child: Session) -> dict[str, Any]:
    return _file_row(
        agent=child.agent,
        summary=child.last_snippet,
        created_at=iso_timestamp(child.created_at),
        ended_at=None,
        child_id=child.id,
        slug=child.slug,
        run_id=None,
        status="unknown",
        transcript=f"{child.path}/session.md",
        attributes=child.attributes,
    )


def _file_row(  # noqa: PLR0913  (one value each)
    *,
    agent: str,
    summary: str,
    created_at: str | None,
    ended_at: str | None,
    child_id: str,
    slug: str,
    run_id: str | None,
    status: str,
    transcript: str,
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    role = str(attributes.get("role") or "subtask")
    return {
        "type": "watcher" if role == "watcher" else "subtask",
        "summary": _shorten(summary),
        "createdAt": created_at,
        "childSessionId": child_id,
        "metadata": {
            "runId": run_id,
            "agent": agent,
            "slug": slug,
            "capability": role,
            "trigger": str(attributes.get("trigger") or "tool"),
            "status": status,
            "label": None,
            "startedAt": created_at,
            "endedAt": ended_at,
            "transcript": transcript,
            "delivery": None if run_id is None else "delivered",
        },
    }


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
    return _shorten(single_line(brief_summary(run)) if run.status is Status.DONE else failure_summary(run))


def _shorten(summary: str) -> str:
    return summary if len(summary) <= MAX_SUMMARY_CHARS else f"{summary[: MAX_SUMMARY_CHARS - 1]}…"
