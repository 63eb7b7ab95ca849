"""Table columns for runs and sessions, and formatting of ages and durations."""

from collections.abc import Sequence
from datetime import UTC, datetime

from retinue.cli.ui.terminal import Column, Row


def format_age(timestamp: str | None) -> str:
    """Return the time since a timestamp, in one unit."""
    if not timestamp:
        return "-"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def format_duration_ms(ms: int | None) -> str:
    if ms is None:
        return "-"
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"  # noqa: PLR2004  (milliseconds of a second)


def _result_text(row: Row) -> str:
    return row["error"] or row["text"] or ""


RUN_COLUMNS: Sequence[Column] = (
    ("RUN", lambda row: row["run_id"]),
    ("AGENT", lambda row: row["agent"]),
    ("STATUS", lambda row: row["status"]),
    ("AGE", lambda row: format_age(row["started_at"])),
    ("DURATION", lambda row: format_duration_ms(row["duration_ms"])),
    ("TURNS", lambda row: str(row["turns"])),
    ("SESSION", lambda row: row["slug"]),
    ("RESULT", _result_text),
)

SESSION_COLUMNS: Sequence[Column] = (
    ("SESSION", lambda row: ("  " * row["depth"]) + row["slug"] + _branch_suffix(row)),
    ("AGENT", lambda row: row["agent"]),
    ("AGE", lambda row: format_age(row["updated_at"])),
    ("NAME", lambda row: ("📌 " if row["pinned_at"] else "") + (row["name"] or "")),
    ("LAST MESSAGE", lambda row: row["last_snippet"] or ""),
)


def _branch_suffix(row: Row) -> str:
    return "" if row["branch"] == "main" else f"/{row['branch']}"
