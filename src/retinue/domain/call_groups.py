"""The order of the calls of one reply: groups run one after another, the calls of a group concurrently."""

from collections.abc import Mapping, Sequence
from typing import Literal

from retinue.domain.tool import Effect, ToolPolicy
from retinue.domain.transcript import ToolCall


def group_calls(calls: Sequence[ToolCall], tools: Mapping[str, ToolPolicy]) -> list[list[ToolCall]]:
    """Split calls into groups: neighbours that only read, neighbours that all delegate, or one call."""
    groups: list[list[ToolCall]] = []
    previous_kind = None
    for call in calls:
        kind = _shared_kind(tools.get(call.tool))
        if kind is None or kind != previous_kind:
            groups.append([])
        groups[-1].append(call)
        previous_kind = kind
    return groups


def sequences_by_recipient(
    calls: Sequence[ToolCall], tools: Mapping[str, ToolPolicy]
) -> list[list[ToolCall]]:
    """Split the calls of a group into sequences: messages to one recipient must arrive in call order."""
    sequences: dict[tuple[str, str], list[ToolCall]] = {}
    for call in calls:
        recipient = _recipient(call, tools.get(call.tool))
        sequences.setdefault((call.tool, recipient) if recipient else (call.id, ""), []).append(call)
    return [*sequences.values()]


def _shared_kind(tool: ToolPolicy | None) -> Literal["read", "delegation"] | None:
    """Return the kind of calls with which a call of this tool may share a group; None if with no others."""
    if tool is None:
        return None
    if tool.is_delegation:
        return "delegation"
    return "read" if tool.effect is Effect.READ or tool.only_reads else None


def _recipient(call: ToolCall, tool: ToolPolicy | None) -> str:
    if tool is None or not tool.recipient_argument:
        return ""
    try:
        return str(
            tool.parse_arguments(call.args.encode("utf-8", "replace")).get(tool.recipient_argument, "")
        )
    except ValueError:
        return ""  # the call gets an error as its result
