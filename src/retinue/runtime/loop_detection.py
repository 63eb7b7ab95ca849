"""Loop detection: nudge a model that makes no progress, then stop it."""

from collections.abc import Sequence

from retinue.domain.limits import MAX_BAD_REPLIES, MAX_EMPTY_REPLIES, Limits
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.errors import ModelFailed

EMPTY_REPLY_NUDGE = "Your last reply was empty. Answer, or call a tool."
REPEATED_CALL_WARNING = "You have made this same call {n} times in a row, and its result will not change. Do something else, or answer."

STOP_FACTOR = 2
"""The model is warned after `limits.identical_calls` repetitions, and stopped after this many times as many."""


class LoopDetector:
    """Counts empty replies and identical calls in a row, and replies with invalid calls, in one run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._empty_replies = 0
        self._invalid_replies = 0
        self._has_invalid_call = False
        self._last_call: tuple[str, str] = ("", "")
        self._repeat_count = 0

    def restore(self, entries: Sequence[Entry], run: str) -> None:
        """Restore the count of identical calls from the transcript of a suspended run.

        Only calls with a result are counted, because an open call is repeated and counted then.
        """
        answered_ids: set[str] = set()
        for entry in reversed(entries):
            if isinstance(entry, ToolResult):
                answered_ids.add(entry.call_id)
            elif isinstance(entry, ToolCall) and entry.run == run and entry.id in answered_ids:
                signature = (entry.tool, entry.args)
                if self._repeat_count and signature != self._last_call:
                    return
                self._last_call, self._repeat_count = signature, self._repeat_count + 1

    def on_empty_reply(self) -> str:
        """Count an empty reply and return the nudge for the model."""
        self._empty_replies += 1
        if self._empty_replies >= MAX_EMPTY_REPLIES:
            raise ModelFailed(f"the model sent {self._empty_replies} empty replies in a row", reason="stuck")
        return EMPTY_REPLY_NUDGE

    def on_tool_calls(self) -> None:
        """Reset the count of empty replies."""
        self._empty_replies = 0

    def check_call(self, tool_call: ToolCall) -> str:
        """Count a call; return a warning if it repeats the previous one too often, else an empty string."""
        signature = (tool_call.tool, tool_call.args)
        self._repeat_count = self._repeat_count + 1 if signature == self._last_call else 1
        self._last_call = signature
        warn_after = self._limits.identical_calls
        if self._repeat_count > STOP_FACTOR * warn_after:
            raise ModelFailed(
                f"the model made the same call to {tool_call.tool} {self._repeat_count} times in a row",
                reason="stuck",
            )
        return REPEATED_CALL_WARNING.format(n=self._repeat_count) if self._repeat_count > warn_after else ""

    def on_invalid_call(self) -> None:
        """Note that a call of this reply was invalid: an unknown tool or unreadable arguments."""
        self._has_invalid_call = True

    def on_reply_done(self) -> None:
        """Count a reply with invalid calls, once all its calls have results.

        The model learns of all its invalid calls at once, so they count as one.
        """
        self._invalid_replies += self._has_invalid_call
        self._has_invalid_call = False
        if self._invalid_replies > MAX_BAD_REPLIES:
            raise ModelFailed(
                f"the model sent {self._invalid_replies} replies with invalid tool calls", reason="stuck"
            )
