"""Exit tools: tools that an agent must call to end its run; their state is derived from the transcript."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

REQUEST_CHANGES = "request_changes"
EXIT_TOOLS = frozenset({"submit_for_review", "ask_for_help", "llm_unreachable", "approve", REQUEST_CHANGES})
"""Tools that only end a run; available to agents whose definition names them."""
ASK_USER = "ask_user"
"""Used as an exit tool, ask_user ends the run with its question instead of waiting for the answer."""

MAX_NUDGES = 3
"""Reminders in a row before a person must decide how to continue."""
MAX_CHANGE_REQUESTS = 3
"""Change requests in one conversation before a person must decide."""

MAX_SUMMARY_CHARS = 4_000

NUDGE_NOTICE = "nudge"
WAITING_NOTICE = "parked"
"""Kinds of the notices that are counted here."""

NUDGE_TEXT = (
    "Your run has not ended: a reply without a tool call does not end it. "
    "Continue, or end it by calling one of these tools: {exits}."
)
WAITING_TEXT = "Your run is waiting for a person because {reason}. It continues when they reply."


def exit_tools_section(exits: Sequence[str]) -> str:
    """Return the prompt section about exit tools; the rule is enforced in any case."""
    return (
        f"End your run by calling one of these tools: {', '.join(exits)}. "
        "A reply without such a call does not end it. The first successful call ends it immediately."
    )


def count_nudges(run: str, entries: Sequence[Entry]) -> int:
    """Count the reminders in a row; a tool call or a person's message restarts the count."""
    count = 0
    for entry in _run_entries_newest_first(run, entries):
        if isinstance(entry, ToolCall | ToolResult) or _is_from_person(entry):
            break
        count += isinstance(entry, Notice) and entry.topic == NUDGE_NOTICE
    return count


def is_waiting_for_person(run: str, entries: Sequence[Entry]) -> bool:
    """Return True if the run waits for a person and nothing has arrived since."""
    last = next(_run_entries_newest_first(run, entries), None)
    return isinstance(last, Notice) and last.topic == WAITING_NOTICE


def count_turns(run: str, entries: Sequence[Entry]) -> int:
    """Count the run's replies since a person last decided how to continue."""
    count = 0
    for entry in _run_entries_newest_first(run, entries):
        if _is_from_person(entry):
            break
        count += isinstance(entry, Message) and entry.role == "agent"
    return count


def count_change_requests(entries: Iterable[Entry]) -> int:
    """Count the change requests in a conversation since a person last decided."""
    request_ids: set[str] = set()
    count = 0
    for entry in entries:
        if _is_from_person(entry):
            count = 0
        elif isinstance(entry, ToolCall) and entry.tool == REQUEST_CHANGES:
            request_ids.add(entry.id)
        elif isinstance(entry, ToolResult) and entry.ok:
            count += entry.call_id in request_ids
    return count


def find_exit_call(
    run: str, exits: Collection[str], entries: Sequence[Entry]
) -> tuple[ToolCall, ToolResult] | None:
    """Return the first successful exit tool call of the run and its result."""
    calls = {each.id: each for each in entries if isinstance(each, ToolCall) and each.run == run}
    for entry in entries:
        if isinstance(entry, ToolResult) and entry.ok and entry.call_id in calls:
            tool_call = calls[entry.call_id]
            if tool_call.tool in exits:
                return tool_call, entry
    return None


def exit_text(tool_call: ToolCall, tool_result: ToolResult) -> str:
    """Return the run's final text: the arguments of an exit tool, or the result of a tool that does more."""
    if tool_call.tool not in EXIT_TOOLS and tool_call.tool != ASK_USER:
        return tool_result.text
    values = _parse_arguments(tool_call.args).values()
    texts = [each for each in values if isinstance(each, str) and each.strip()]
    list_items = [
        f"- {each}" for value in values if isinstance(value, list) for each in cast("list[Any]", value)
    ]
    return "\n".join((*texts, *list_items))


def exit_summary(tool_call: ToolCall) -> str:
    """Return the summary that the agent gave in its exit call; empty if it gave none."""
    summary = _parse_arguments(tool_call.args).get("summary")
    return summary.strip()[:MAX_SUMMARY_CHARS] if isinstance(summary, str) else ""


def _run_entries_newest_first(run: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the run's entries, newest first, and entries that a person typed, which have no run id."""
    return (entry for entry in reversed(entries) if entry.run in (run, ""))


def _is_from_person(entry: Entry) -> bool:
    """Return True for a person's message during the run; the task itself has the run's id."""
    return isinstance(entry, Message) and entry.role == "user" and entry.id != entry.run and not entry.origin


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
