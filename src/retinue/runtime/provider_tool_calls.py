"""Tool calls that a CLI agent made itself: emit them as events and save them to the transcript."""

from collections.abc import Sequence

from msgspec.structs import replace

from retinue.domain.model_turn import ProviderToolCall, ReplyStep
from retinue.domain.sanitize import text_for_model
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.interfaces import Conversation
from retinue.runtime.run_attempt import RunAttempt
from retinue.runtime.tool_executor import truncate_tool_result

UNFINISHED_RESULT = (
    "No result: the agent was stopped before this call finished. The call may or may not have taken effect."
)


class ProviderToolCalls:
    """Tool calls that a CLI agent made itself in one turn.

    Nothing here executes a call: the agent made it itself, with the permissions of the turn.
    """

    def __init__(self, attempt: RunAttempt) -> None:
        self._attempt = attempt
        self._entry_ids: dict[str, str] = {}
        self._unsaved: dict[str, ProviderToolCall] = {}
        """Calls that were reported and are not yet saved."""

    def track(self, provider_call: ProviderToolCall) -> ProviderToolCall:
        """Remember a reported call and return it under the id that its transcript entry will have."""
        self._unsaved[provider_call.id] = provider_call
        return replace(provider_call, id=self._entry_id(provider_call.id))

    def build_entries(self, step: ReplyStep, at: str) -> list[Entry]:
        """Build the entries of one step: its text, its tool calls and their results."""
        attempt, redact = self._attempt, self._attempt.context.redact
        message = Message(
            id=attempt.context.clock.new_entry_id(),
            role="agent",
            text=redact(step.text),
            at=at,
            run=attempt.run.id,
            tool_call_count=len(step.tool_calls),
        )
        return [
            message,
            *(self._make_tool_call(provider_call, at) for provider_call in step.tool_calls),
            *(self._make_tool_result(provider_call, at) for provider_call in step.tool_calls),
        ]

    def build_unfinished_entries(self, at: str) -> list[Entry]:
        """Build the entries for the calls of a turn that never finished."""
        provider_calls = tuple(
            provider_call if provider_call.is_finished else replace(provider_call, result=UNFINISHED_RESULT)
            for provider_call in self._unsaved.values()
        )
        return self.build_entries(ReplyStep(text="", tool_calls=provider_calls), at) if provider_calls else []

    async def record_saved(self, entries: Sequence[Entry], conversation: Conversation) -> None:
        """Update counters, emit events and write the tool log, as for Retinue's own calls.

        Call it once the entries are on disk.
        """
        self._unsaved.clear()
        if not entries:
            return
        attempt = self._attempt
        results = {each.call_id: each for each in entries if isinstance(each, ToolResult)}
        for entry in entries:
            if isinstance(entry, Message):
                attempt.run = attempt.run.record_reply(
                    entry.usage, tool_calls=entry.tool_call_count, text=entry.text, model=""
                )
            elif isinstance(entry, ToolCall):
                await conversation.log_tool_call(entry, results[entry.id])
        succeeded = sum(each.ok for each in results.values())
        attempt.run = replace(attempt.run, effective_calls=attempt.run.effective_calls + succeeded)
        attempt.emit_saved(*entries)

    def _make_tool_call(self, provider_call: ProviderToolCall, at: str) -> ToolCall:
        redact = self._attempt.context.redact
        entry_id = self._entry_id(provider_call.id)
        return ToolCall(
            id=entry_id,
            tool=redact(provider_call.tool),
            args=redact(provider_call.arguments),
            at=at,
            run=self._attempt.run.id,
        )

    def _make_tool_result(self, provider_call: ProviderToolCall, at: str) -> ToolResult:
        text = truncate_tool_result(self._attempt.context.redact(text_for_model(provider_call.result)))
        return ToolResult(
            call_id=self._entry_id(provider_call.id),
            text=text,
            ok=provider_call.ok,
            duration_ms=provider_call.duration_ms,
            at=at,
            run=self._attempt.run.id,
        )

    def _entry_id(self, provider_id: str) -> str:
        if provider_id not in self._entry_ids:
            self._entry_ids[provider_id] = self._attempt.context.clock.new_entry_id()
        return self._entry_ids[provider_id]
