"""The session state of a CLI agent, and whether it still matches the transcript."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

STATE_KEY = "program"
MAX_HISTORY_CHARS = 60_000
"""Characters of earlier messages that are passed to a program without session state."""
MAX_ENTRY_CHARS = 2_000
"""Characters of one call's arguments or result in that history."""
HISTORY_INTRO = "This conversation began before you joined it. Its history:"
CONTINUE_PROMPT = "Continue from here. Do not repeat earlier steps unless asked to. The new message:"
OMITTED_MARKER = "[earlier history omitted]"


class StateLocation(Struct, frozen=True, kw_only=True):
    """Where a program's session state was created; it can be resumed only there."""

    program: str
    session: str
    level: str
    cwd: str


class ResumePlan(Struct, frozen=True, kw_only=True):
    """The conversation id to resume, or "", and the message for the program."""

    conversation_id: str
    message: str


def plan_resume(entries: Sequence[Entry], location: StateLocation) -> ResumePlan:
    """Plan to resume the program's own session if the transcript still contains the state the program has."""
    last_reply = _last_reply_index(entries)
    new_entries = entries[last_reply + 1 :]
    if last_reply >= 0 and (conversation_id := _find_conversation_id(entries[: last_reply + 1], location)):
        return ResumePlan(conversation_id=conversation_id, message=_join_texts(new_entries))
    return ResumePlan(conversation_id="", message=message_with_history(entries))


def message_with_history(entries: Sequence[Entry]) -> str:
    """Return the message with the whole conversation, for a program without session state."""
    last_reply = _last_reply_index(entries)
    if last_reply < 0:
        return _join_texts(entries)
    return "\n\n".join(
        (
            HISTORY_INTRO,
            _format_history(entries[: last_reply + 1]),
            CONTINUE_PROMPT,
            _join_texts(entries[last_reply + 1 :]),
        )
    )


def encode_session_state(
    conversation_id: str, location: StateLocation, entries: Sequence[Entry], reply_texts: Sequence[str]
) -> str:
    """Encode the state stored with a reply.

    It contains the conversation id and a hash of the state the program has. `reply_texts` are the texts of the
    reply as stored in the transcript.
    """
    first_id = entries[0].id if entries else ""
    texts = [*_hashed_texts(entries), *(f"agent {text}" for text in reply_texts)]
    return json.dumps(
        {
            STATE_KEY: {
                **asdict(location),
                "id": conversation_id,
                "first": first_id,
                "hash": _hash_texts(texts),
            }
        }
    )


def _find_conversation_id(entries: Sequence[Entry], location: StateLocation) -> str:
    last = entries[-1]
    for block in last.provider_data if isinstance(last, Message) else ():
        state = _decode_session_state(block)
        same_location = all(state.get(key) == value for key, value in asdict(location).items())
        known_entries = _entries_since(entries, str(state.get("first")))
        if (
            same_location
            and known_entries is not None
            and state.get("hash") == _hash_texts(_hashed_texts(known_entries))
        ):
            return str(state.get("id") or "")
    return ""


def _entries_since(entries: Sequence[Entry], first_id: str) -> Sequence[Entry] | None:
    """Return the entries from a given id on.

    The beginning of a long conversation may not be loaded; then None, as it cannot be compared.
    """
    return next((entries[index:] for index, entry in enumerate(entries) if entry.id == first_id), None)


def _decode_session_state(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    state = data.get(STATE_KEY) if isinstance(data, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  (a block of any provider)
    return state if isinstance(state, dict) else {}  # pyright: ignore[reportUnknownVariableType]  (the same)


def _hashed_texts(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the texts of messages and notices.

    Calls are left out: the program's own state records them in more detail than the transcript.
    """
    for entry in entries:
        if isinstance(entry, Message):
            yield f"{entry.role} {entry.text}"
        elif isinstance(entry, Notice):
            yield f"notice {entry.text}"


def _hash_texts(texts: Sequence[str] | Iterator[str]) -> str:
    joined = "\0".join(text.strip() for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _last_reply_index(entries: Sequence[Entry]) -> int:
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if not isinstance(entry, Notice) and not (isinstance(entry, Message) and entry.role == "user"):
            return index
    return -1


def _join_texts(entries: Sequence[Entry]) -> str:
    return "\n\n".join(
        entry.text for entry in entries if isinstance(entry, Message | Notice) and entry.text.strip()
    )


def _format_history(entries: Sequence[Entry]) -> str:
    """Return the newest entries that fit, oldest first."""
    parts: list[str] = []
    remaining_chars = MAX_HISTORY_CHARS
    for entry in reversed(entries):
        text = _format_entry(entry)
        remaining_chars -= len(text)
        if remaining_chars < 0:
            parts.append(OMITTED_MARKER)
            break
        if text:
            parts.append(text)
    return "\n\n".join(reversed(parts))


def _format_entry(entry: Entry) -> str:
    match entry:
        case Message():
            return (
                f"[{'you' if entry.role == 'agent' else 'user'}] {entry.text}" if entry.text.strip() else ""
            )
        case Notice():
            return f"[notice] {entry.text}"
        case ToolCall():
            return f"[you called {entry.tool}] {entry.args[:MAX_ENTRY_CHARS]}"
        case ToolResult():
            return f"[result] {entry.text[:MAX_ENTRY_CHARS]}"
