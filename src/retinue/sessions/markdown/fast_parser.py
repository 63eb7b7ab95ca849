"""Fast patterns for marker lines exactly as Retinue writes them; other lines take the slow path."""

import re
from collections.abc import Callable, Mapping

from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult

_VALUE = r'([^\s>"%]+)'
_NUMBER = "([0-9]{1,18})"
"""Longer numbers count nothing real; the slow path reports them."""
_END = r" n=[0-9]{1,18} -->\n"
_NO_USAGE = Usage()


def _optional_attributes(*names: str) -> str:
    return "".join(f"(?: {name}={_VALUE})?" for name in names)


def _parse_user(match: re.Match[str], body: str) -> Entry:
    entry_id, at, origin, run = match.groups("")
    return Message(id=entry_id, by="user", text=body, at=at, origin=origin, run=run)


def _parse_agent(match: re.Match[str], body: str) -> Entry:
    entry_id, at, model, input_tokens, output_tokens, cached_tokens, calls, run = match.groups("")
    token_usage = Usage(
        input=int(input_tokens or 0), output=int(output_tokens or 0), cached=int(cached_tokens or 0)
    )
    usage = token_usage if input_tokens or output_tokens or cached_tokens else _NO_USAGE
    return Message(
        id=entry_id, by="agent", text=body, at=at, model=model, usage=usage, calls=int(calls or 0), run=run
    )


def _parse_tool_call(match: re.Match[str], body: str) -> Entry:
    entry_id, tool, at, run = match.groups("")
    return ToolCall(id=entry_id, tool=tool, args=body, at=at, run=run)


def _parse_tool_result(match: re.Match[str], body: str) -> Entry:
    of, outcome, duration_ms, at, run = match.groups("")
    return ToolResult(of=of, text=body, ok=outcome == "ok", ms=int(duration_ms or 0), at=at, run=run)


FAST_PATTERNS: Mapping[str, tuple[re.Pattern[str], Callable[[re.Match[str], str], Entry]]] = {
    "us": (re.compile(f"user id={_VALUE}{_optional_attributes('at', 'from', 'run')}{_END}"), _parse_user),
    "ag": (
        re.compile(
            f"agent id={_VALUE}{_optional_attributes('at', 'model')}(?: in={_NUMBER})?(?: out={_NUMBER})?"
            f"(?: cached={_NUMBER})?(?: calls={_NUMBER})?{_optional_attributes('run')}{_END}"
        ),
        _parse_agent,
    ),
    "ca": (
        re.compile(f"call id={_VALUE} tool={_VALUE}{_optional_attributes('at', 'run')}{_END}"),
        _parse_tool_call,
    ),
    "re": (
        re.compile(
            f"result of={_VALUE} (ok|failed)(?: ms={_NUMBER})?{_optional_attributes('at', 'run')}{_END}"
        ),
        _parse_tool_result,
    ),
}
"""Pattern and builder by the first two letters of the marker's kind."""
