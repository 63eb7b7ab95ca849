"""A sub-agent's text as its parent receives it: the whole, or its start and end with the call that reads the rest."""

import json

from msgspec import Struct

RESULT_PREFIX = "result:"
"""Path prefix with which `read` returns the result of a sub-agent's run."""
ENTRY_PREFIX = "entry:"
"""Path prefix with which `read` returns an entry of the agent's own conversation."""


class BoundedText(Struct, frozen=True, kw_only=True):
    text: str
    length: int
    """Characters of the whole text."""
    is_truncated: bool = False


def bound_text(text: str, run_id: str, max_chars: int) -> BoundedText:
    """Shorten a text to `max_chars` of its start and end; the note between them names the call that reads the whole."""
    length = len(text)
    if length <= max_chars:
        return BoundedText(text=text, length=length)
    head, tail = text[: max_chars - max_chars // 2], text[length - max_chars // 2 :]
    note = _omission_note(length - max_chars, length, run_id)
    return BoundedText(text=f"{head}{note}{tail}", length=length, is_truncated=True)


def read_result_call(run_id: str) -> str:
    """Return the tool call that reads the whole result of a run."""
    return f"read {json.dumps({'path': f'{RESULT_PREFIX}{run_id}'})}"


def _omission_note(omitted: int, length: int, run_id: str) -> str:
    return (
        f"\n[… {omitted:,} of {length:,} characters omitted. "
        f"The whole text is stored; call: {read_result_call(run_id)} …]\n"
    )
