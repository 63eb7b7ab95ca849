"""inbox: status and results of the agents that this conversation started."""

from typing import Annotated, Any

from retinue.domain.bounded_text import read_result_call
from retinue.domain.delivery import escape_role_markers, run_inbox_row
from retinue.domain.run import Status
from retinue.domain.tool import Effect
from retinue.errors import Failed
from retinue.interfaces import Call
from retinue.runtime.inbox import RunDelivery, drain_inbox, pending_inbox_rows
from retinue.runtime.tool_executor import truncate_tool_result
from retinue.tools.define import tool
from retinue.tools.delegation.json_result import json_result

MAX_ROWS = 100
"""Maximum number of results taken at once, and of pending rows shown."""
MAX_FIELD_CHARS = 1_000
"""Characters of one field; `read` returns the whole result."""


@tool(effect=Effect.READ, category="agents", inspects_runs=True)
async def inbox(
    call: Call,
    drain: Annotated[bool, "Take the results now, so that they are not announced to you again."] = False,
) -> str:
    """Show the status of the agents you started: those still running, and results that you have not received yet.
    Results are also delivered automatically before your next turn, so there is no need to poll."""
    context = call.context
    if context is None:
        raise Failed("This tool requires a session.")
    taken_rows = (
        await drain_inbox(call.session.id, context, receiver=call.id, limit=MAX_ROWS) if drain else []
    )
    pending = await context.ledger.read(lambda tx: pending_inbox_rows(call.session.id, tx))
    rows = [*pending[:MAX_ROWS], *taken_rows]
    return json_result(
        updates=[_row_as_json(row) for row in rows], more=max(0, len(pending) - MAX_ROWS) or None
    )


def _row_as_json(row: RunDelivery) -> dict[str, Any]:
    """Encode a row.

    A child's text is data: it stays inside a JSON string, and lines in it that look like role markers are
    escaped.
    """
    run = row.run
    fields = run_inbox_row(*row)
    has_more = run.status is Status.DONE and fields["summary"] != run.text.strip()
    fields |= {
        "read": read_result_call(run.id) if has_more else None,
        "files": [{"path": each.path, "bytes": each.size} for each in run.report.files] or None,
    }
    for name in ("summary", "error", "label"):
        if fields[name] is not None:
            fields[name] = escape_role_markers(truncate_tool_result(fields[name], MAX_FIELD_CHARS))
    return {name: value for name, value in fields.items() if value is not None}
