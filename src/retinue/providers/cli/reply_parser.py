"""Builds a reply from the output of a CLI agent."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from retinue.domain.model_turn import ModelReply, ProviderToolCall, ReplyDelta, ReplyStep
from retinue.domain.run import Usage

MAX_TOOL_CALLS = 2_000
MAX_REPORTED_RESULT_CHARS = 8_000
"""Characters of one call's result kept in the transcript; the program has read all of it."""
MAX_ARGUMENT_CHARS = 16_000
MAX_TEXT_CHARS = 2_000_000
MISSING_RESULT = "No result: the program ended before it reported one."


class CliReplyBuilder:
    """Collect a program's messages and tool calls in any order.

    Never raises: the program's output is data.
    """

    def __init__(self, on_delta: Callable[[ReplyDelta], None]) -> None:
        self._on_delta = on_delta
        self._steps: list[tuple[list[str], list[str]]] = [([], [])]
        """Texts, and the ids of the calls that followed them."""
        self._tool_calls: dict[str, ProviderToolCall] = {}
        self._started_at: dict[str, float] = {}
        self._is_streaming = False
        """Whether deltas of the current message were already received."""
        self._has_text = False
        self.conversation_id = ""
        """The program's id of this conversation."""
        self.model = ""
        self.usage = Usage()
        self.error = ""
        """Why the turn failed, in the program's own words."""
        self.last_warning = ""
        """The last error reported during the turn, recovered or not."""
        self.is_finished = False
        """The program reported the end of its turn; without that there is no reply."""
        self.final_text: str | None = None
        """The final text, if the program names it."""

    @property
    def has_no_output(self) -> bool:
        """Whether the program has neither written text nor called a tool yet."""
        return not self._tool_calls and not self._has_text

    def report_activity(self) -> None:
        self._on_delta(ReplyDelta())

    def add_text_delta(self, text: str) -> None:
        """Add a delta of a message that arrives complete later."""
        if not text:
            return
        if not self._is_streaming and self._has_text:
            self._on_delta(ReplyDelta(text="\n\n"))
        self._is_streaming = self._has_text = True
        self._on_delta(ReplyDelta(text=text))

    def add_thinking(self, text: str) -> None:
        if text:
            self._on_delta(ReplyDelta(thinking=text))

    def add_message(self, text: str) -> None:
        """Add a complete message, whether or not deltas of it were received."""
        if not text.strip():
            return
        if not self._is_streaming:
            self.add_text_delta(text)
        self._is_streaming = False
        texts, call_ids = self._steps[-1]
        if call_ids:
            texts, call_ids = list[str](), list[str]()
            self._steps.append((texts, call_ids))
        if sum(map(len, texts)) < MAX_TEXT_CHARS:
            texts.append(text[:MAX_TEXT_CHARS])

    def start_tool_call(self, call_id: str, tool: str, arguments: Mapping[str, Any]) -> None:
        if call_id in self._tool_calls or len(self._tool_calls) >= MAX_TOOL_CALLS:
            return
        self._is_streaming = False
        tool_call = ProviderToolCall(id=call_id, tool=tool or "tool", arguments=_encode_arguments(arguments))
        self._tool_calls[call_id] = tool_call
        self._started_at[call_id] = time.monotonic()
        self._steps[-1][1].append(call_id)
        self._on_delta(ReplyDelta(provider_tool_call=tool_call))

    def finish_tool_call(self, call_id: str, text: str, *, ok: bool) -> None:
        tool_call = self._tool_calls.get(call_id)
        if tool_call is None or tool_call.is_finished:
            return
        duration_ms = round((time.monotonic() - self._started_at[call_id]) * 1000)
        self._tool_calls[call_id] = tool_call = replace(
            tool_call, result=_shorten_result(text), ok=ok, duration_ms=duration_ms, is_finished=True
        )
        self._on_delta(ReplyDelta(provider_tool_call=tool_call))

    def build(self) -> ModelReply:
        steps = [
            ReplyStep(text="\n\n".join(texts), tool_calls=tuple(map(self._finished_call, call_ids)))
            for texts, call_ids in self._steps
        ]
        text = ""
        if not steps[-1].tool_calls:
            text = steps.pop().text
        return ModelReply(
            text=self.final_text or text,
            model=self.model,
            usage=self.usage,
            steps=tuple(each for each in steps if each.tool_calls),
        )

    def _finished_call(self, call_id: str) -> ProviderToolCall:
        tool_call = self._tool_calls[call_id]
        return (
            tool_call
            if tool_call.is_finished
            else replace(tool_call, result=MISSING_RESULT, is_finished=True)
        )


def _encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Encode arguments as a JSON object of limited length."""
    try:
        text = msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError):
        return "{}"
    return (
        text
        if len(text) <= MAX_ARGUMENT_CHARS
        else msgspec.json.encode({"cut": text[:MAX_ARGUMENT_CHARS]}).decode()
    )


def _shorten_result(text: str) -> str:
    if len(text) <= MAX_REPORTED_RESULT_CHARS:
        return text
    half = MAX_REPORTED_RESULT_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def content_text(content: Any) -> str:
    """Return the text of a content field, in any of the forms programs use."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return content_text(content.get("content", content.get("text", "")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  (the program's JSON)
    if isinstance(content, list):
        return "\n".join(filter(None, (content_text(each) for each in content)))  # pyright: ignore[reportUnknownVariableType]  (the same)
    return ""


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one if it is not an object."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]  (a program's own JSON)


def as_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
