"""tools.org: an outline of tool calls for people; written only, never read back."""

import re
from datetime import datetime

from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.transcript import ToolCall, ToolResult
from retinue.sessions.markdown.writer import escape_unsafe_characters

_ORG_SYNTAX = re.compile(r"(\n[ \t]*)(,*(?:\*|#\+))")
"""Org syntax at the start of a line. Matching the preceding newline is many times faster than `^`."""


def render_tool_heading(tool_call: ToolCall, tool_result: ToolResult, started_at: datetime) -> str:
    """Render a tool call with its properties, arguments and result."""
    outcome = "ok" if tool_result.ok else "failed"
    tool, call = _single_line(tool_call.tool), _single_line(tool_call.id)
    return (
        f"* {tool} {call}\n"
        f":PROPERTIES:\n"
        f":ID: {call}\n"
        f":TOOL: {tool}\n"
        f":START: {iso_timestamp_seconds(started_at)}\n"
        f":DURATION_MS: {tool_result.duration_ms}\n"
        f":OUTCOME: {outcome}\n"
        f":END:\n"
        f"#+begin_src json\n{_org_block(tool_call.args)}#+end_src\n"
        f"#+begin_example\n{_org_block(tool_result.text)}#+end_example\n\n"
    )


def _single_line(text: str) -> str:
    return text if text.isalnum() and text.isascii() else " ".join(escape_unsafe_characters(text).split())


def _org_block(text: str) -> str:
    """Escape text so that no line can end the block or open a heading."""
    if not text:
        return ""
    safe = escape_unsafe_characters(text)
    if "*" in safe or "#+" in safe:
        safe = _ORG_SYNTAX.sub(r"\1,\2", f"\n{safe}")[1:]
    return safe if safe.endswith("\n") else f"{safe}\n"
