"""Stored text that `read` returns instead of a file: an entry of the conversation, or a sub-agent's result."""

from contextlib import suppress

from msgspec.structs import asdict

from retinue.domain.bounded_text import ENTRY_PREFIX, RESULT_PREFIX
from retinue.domain.delivery import escape_role_markers
from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, ToolCall
from retinue.errors import Failed, NotFound
from retinue.interfaces import Call, RuntimeContext, Transaction
from retinue.runtime.child_report import load_result

EMPTY_ENTRY = "[this entry has no text]"
EMPTY_RESULT = "[the run ended without a text]"
NO_TEXT_BUT_CALLS = "[this reply has no text, only these tool calls]"
MAX_LINE_CHARS = 20_000
"""A longer line is split, so that every part of it can be read."""


async def load_stored_text(path: str, call: Call) -> str | None:
    """Return the text that `entry:ID` or `result:RUN` names; None for any other path.

    It comes from what the runtime has stored, so no file permission is needed. Only entries of the caller's own
    conversation and results of its own sub-agents can be read.

    Raises:
        Failed: There is no such entry or result, or the run has not ended.
    """
    context = call.context
    if context is None:
        return None
    if path.startswith(ENTRY_PREFIX):
        text = await _load_entry(path.removeprefix(ENTRY_PREFIX), call, context)
    elif path.startswith(RESULT_PREFIX):
        text = await _load_child_result(path.removeprefix(RESULT_PREFIX), call, context)
    else:
        return None
    return split_long_lines(escape_role_markers(context.redact(text)))


def split_long_lines(text: str) -> str:
    if len(text) <= MAX_LINE_CHARS:
        return text
    pieces = (
        line[start : start + MAX_LINE_CHARS]
        for line in text.split("\n")
        for start in range(0, max(1, len(line)), MAX_LINE_CHARS)
    )
    return "\n".join(pieces)


async def _load_entry(entry_id: str, call: Call, context: RuntimeContext) -> str:
    if not entry_id:
        raise Failed(f"The id of the entry is missing. Use {ENTRY_PREFIX}ID.")
    try:
        entry = await context.store.read_entry(call.session, entry_id)
    except NotFound as error:
        raise Failed(f"This conversation has no entry {entry_id!r}.") from error
    return _entry_text(entry) or await _tool_calls_text(entry, call, context) or EMPTY_ENTRY


def _entry_text(entry: Entry) -> str:
    return entry.args if isinstance(entry, ToolCall) else str(asdict(entry).get("text", ""))


async def _tool_calls_text(entry: Entry, call: Call, context: RuntimeContext) -> str:
    """Describe a reply without text by its tool calls, which are the entries after it."""
    if not isinstance(entry, Message) or not entry.tool_call_count:
        return ""
    following = await context.store.read_entry_page(call.session, after=entry.id, limit=entry.tool_call_count)
    calls = [each for each in following if isinstance(each, ToolCall)]
    return "\n".join(
        (NO_TEXT_BUT_CALLS, *(f"{ENTRY_PREFIX}{each.id} {each.tool} {each.args}" for each in calls))
    )


async def _load_child_result(run_id: str, call: Call, context: RuntimeContext) -> str:
    run = await context.ledger.read(lambda tx: tx.get_run(run_id))
    if run is None or not await _is_child_run(run, call.session, context):
        raise Failed(f"This conversation has no sub-agent with the run {run_id!r}.")
    if run.status.is_live:
        raise Failed(f"Run {run_id} has not ended ({run.status}). Its result will be delivered to you.")
    return await load_result(run, context) or EMPTY_RESULT


async def _is_child_run(run: Run, session: Session, context: RuntimeContext) -> bool:
    """Return True if this session requested the run, or if it ran in a child of this session.

    A branch can read what its copied entries mention: the runs whose call or announcement is in its own transcript.
    """

    def is_requested_here(tx: Transaction) -> bool:
        requester = tx.get_run(run.request.parent_run) if run.request.parent_run else None
        return requester is not None and requester.session_id == session.id

    if run.request.inbox == session.id or await context.ledger.read(is_requested_here):
        return True
    try:
        if (await context.store.find(run.session_id)).parent_id == session.id:
            return True
    except NotFound:
        pass  # deleted
    deliveries = await context.ledger.read(lambda tx: tx.find_deliveries(run=run.id))
    for entry_id in (run.request.call_id, *(each.id for each in deliveries)):
        with suppress(NotFound):
            if entry_id and await context.store.read_entry(session, entry_id):
                return True
    return False
