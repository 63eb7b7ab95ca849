"""Transcript entries: messages, tool calls, tool results and notices, in the order of the file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from retinue.domain.run import Usage


class Message(Struct, frozen=True, kw_only=True):
    """A message of a person, another agent or the model."""

    id: str
    role: Literal["user", "agent"]
    text: str
    at: str = ""
    """ISO 8601, UTC, to the second."""
    origin: str = ""
    """Author of a user message: empty for a person, else `agent:<name>` or a session's key."""
    run: str = ""
    model: str = ""
    usage: Usage = Usage()
    stop_reason: str = ""
    """Set when the reply did not end normally: `length`, `refused`, `cancelled`."""
    tool_call_count: int = 0
    """Number of tool calls in this reply; fewer at the end of the file mean a torn tail."""
    provider_data: tuple[str, ...] = ()
    """What the provider wants back with a reply, unchanged, each as JSON text; kept in a sidecar, never shown."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool call requested by the model. Its id is created here, never taken from a provider."""

    id: str
    tool: str
    args: str
    """The JSON text of the arguments, as the model wrote it."""
    at: str = ""
    run: str = ""
    invalid_reason: str = ""
    """Why this call must never run: its arguments were cut off or are not JSON."""
    vendor_id: str = ""
    """The id by which the server that issued the call knows it, as `server.id`; sent back to that server only."""


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a tool call, as sent to the model."""

    call_id: str
    text: str
    ok: bool = True
    duration_ms: int = 0
    at: str = ""
    run: str = ""

    @property
    def id(self) -> str:
        return self.call_id


class Notice(Struct, frozen=True, kw_only=True):
    """A message from the runtime to the model, neither a person's nor the model's own."""

    id: str
    topic: str
    text: str
    at: str = ""
    run: str = ""


Entry = Message | ToolCall | ToolResult | Notice

ENTRY_KINDS: Mapping[type[Entry], str] = {
    Message: "message",
    ToolCall: "tool_call",
    ToolResult: "tool_result",
    Notice: "notice",
}
RESULT_ID_SUFFIX = ":result"
"""Suffix of a tool result's public id. A result has its call's id, but public ids must be unique."""


def make_ids_unique(entries: Sequence[Entry]) -> list[Entry]:
    """Give entries that a person copied unique ids, keeping their text.

    Each copied call gets a new id, and each result belongs to the call before it.
    """
    seen_count: dict[str, int] = {}
    latest_id: dict[str, str] = {}
    unique: list[Entry] = []
    for entry in entries:
        if isinstance(entry, ToolCall):
            seen_count[entry.id] = seen_count.get(entry.id, 0) + 1
            unique_id = entry.id if seen_count[entry.id] == 1 else f"{entry.id}-{seen_count[entry.id]}"
            latest_id[entry.id] = unique_id
            unique.append(replace(entry, id=unique_id))
        elif isinstance(entry, ToolResult):
            unique.append(replace(entry, call_id=latest_id.get(entry.call_id, entry.call_id)))
        else:
            unique.append(entry)
    return unique


def unanswered_calls(entries: Sequence[Entry]) -> tuple[ToolCall, ...]:
    """Return the tool calls without a result; no request may be sent while there are any."""
    answered = {entry.call_id for entry in entries if isinstance(entry, ToolResult)}
    return tuple(entry for entry in entries if isinstance(entry, ToolCall) and entry.id not in answered)


def public_entry_id(entry: Entry) -> str:
    """Return the id by which programs refer to an entry, unique within the conversation."""
    return f"{entry.call_id}{RESULT_ID_SUFFIX}" if isinstance(entry, ToolResult) else entry.id


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON with its kind; what is kept for the provider is left out."""
    data = asdict(entry) | {"id": public_entry_id(entry)}
    data.pop("provider_data", None)
    data.pop("vendor_id", None)
    if isinstance(entry, Message):
        data["usage"] = asdict(entry.usage)
    return {"kind": ENTRY_KINDS[type(entry)], **data}


def last_message_snippet(entries: Iterable[Entry], limit: int = 120) -> str:
    """Return the start of the last message on one line, for lists."""
    last = ""
    for entry in entries:
        if isinstance(entry, Message) and entry.text.strip():
            last = entry.text
    flat = " ".join(last.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
